package pg

import "errors"

// MinVersion is the oldest major version of PostgreSQL that Lockstep runs on.
const MinVersion = 15

// User is the superuser of every server that this package starts.
const User = "lockstep"

var (
	// ErrNotInstalled means that this machine has no usable PostgreSQL binaries.
	ErrNotInstalled = errors.New("no PostgreSQL 15 or newer found in PATH, pg_config, /usr/lib/postgresql or Homebrew: " +
		"install it (Debian, Ubuntu: apt-get install postgresql; macOS: brew install postgresql@17) " +
		"or set DATABASE_URL to a running server")
	// ErrInUse means that another process uses the data folder.
	ErrInUse = errors.New("data folder is in use by another process")
	// ErrStopped is returned after Stop.
	ErrStopped = errors.New("the PostgreSQL server is stopped")
)

// Options configures a server. The zero value is a temporary server.
type Options struct {
	// Data is the folder that keeps the server's data between runs; it is created when missing.
	// When this process is root, the folder is given to the unprivileged OS user that runs the
	// server, which must be able to reach it: not below /root. Defaults to a temporary folder that
	// Stop removes.
	Data string

	// Port is the TCP port on 127.0.0.1. Defaults to a free one.
	Port int

	// MaxConnections is the server's max_connections. Defaults to 200.
	MaxConnections int

	// Settings are further lines of postgresql.conf, name → value; they override the defaults of this package.
	Settings map[string]string

	// Binaries is the folder of initdb and postgres. Defaults to the newest version found on this
	// machine, or to the version that wrote existing data.
	Binaries string

	// Progress receives a short sentence before each step that takes time. Defaults to none.
	Progress func(step string)
}

func (o Options) withDefaults() Options {
	if o.MaxConnections == 0 {
		o.MaxConnections = 200
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	return o
}

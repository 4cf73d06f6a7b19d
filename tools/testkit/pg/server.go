package pg

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"lockstep.internal/tools/testkit/port"
)

// Server is a running PostgreSQL. Its methods may be called from any goroutine.
type Server struct {
	opts    Options
	cluster *cluster
	socket  string
	port    int
	held    *port.Held // the port, also while the server is stopped or killed; nil if Options.Port is set

	mu      sync.Mutex
	process *process // nil while stopped or killed
	closed  bool
}

// Start starts a server and returns when it accepts connections. The context bounds the start only.
// The caller must call Stop.
func Start(ctx context.Context, opts Options) (*Server, error) {
	opts = opts.withDefaults()
	c, err := openCluster(ctx, opts)
	if err != nil {
		return nil, fmt.Errorf("prepare PostgreSQL: %w", err)
	}
	s := &Server{opts: opts, cluster: c, port: opts.Port}
	if err := s.launch(ctx); err != nil {
		s.closed = true
		return nil, errors.Join(fmt.Errorf("start PostgreSQL: %w", err), s.cleanup())
	}
	return s, nil
}

// launch finds a port and starts the program. It retries if the port was taken in between.
func (s *Server) launch(ctx context.Context) error {
	if s.socket == "" {
		socket, err := socketFolder(s.cluster)
		if err != nil {
			return err
		}
		s.socket = socket
	}
	s.opts.Progress("starting PostgreSQL " + strconv.Itoa(s.cluster.inst.major))
	const attempts = 10
	for attempt := 1; ; attempt++ {
		number, held := s.port, (*port.Held)(nil)
		if number == 0 {
			var err error
			if held, err = port.Hold(); err != nil {
				return err
			}
			number = held.Number()
		}
		p, err := startProcess(ctx, s.cluster.inst, s.cluster.account, s.cluster.data(), s.cluster.logFile(),
			s.cluster.arguments(s.opts, number, s.socket))
		if err == nil {
			s.process = p
			if s.port == 0 {
				s.port, s.held = number, held // once, before Start returns: read without the mutex afterwards
			}
			return nil
		}
		err = errors.Join(err, held.Release())
		if attempt == attempts || ctx.Err() != nil || !isTransient(err) {
			return err
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// isTransient reports whether a start error is temporary: a port that was taken, or processes of a
// killed server that are about to end.
func isTransient(err error) bool {
	text := err.Error()
	return strings.Contains(text, "Address already in use") ||
		strings.Contains(text, "could not create any TCP/IP sockets") ||
		strings.Contains(text, "pre-existing shared memory block")
}

// socketFolder makes a folder for the unix socket in a short path.
func socketFolder(c *cluster) (string, error) {
	socket := filepath.Join(c.home, "socket")
	const longest = 90 // sun_path holds 104 bytes on macOS, and the socket's own name takes up to 14
	if len(socket) > longest {
		var err error
		if socket, err = os.MkdirTemp("/tmp", temporaryPrefix+"socket-"); err != nil {
			return "", fmt.Errorf("create a folder for the unix socket: %w", err)
		}
	} else if err := os.MkdirAll(socket, 0o700); err != nil {
		return "", fmt.Errorf("create a folder for the unix socket: %w", err)
	}
	return socket, c.account.chown(socket)
}

// URL is the connection string of the server's own database "postgres" over TCP, with the
// superuser's password.
func (s *Server) URL() string { return s.databaseURL("postgres") }

// Port is the TCP port on 127.0.0.1; Restart does not change it.
func (s *Server) Port() int { return s.port }

// Socket is the folder of the unix socket. It asks for no password.
func (s *Server) Socket() string { return s.socket }

// Version is the major version.
func (s *Server) Version() int { return s.cluster.inst.major }

func (s *Server) databaseURL(name string) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword(User, s.cluster.password),
		Host:     net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)),
		Path:     "/" + name,
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// CreateDatabase creates an empty database unless it exists, and returns its connection string.
func (s *Server) CreateDatabase(ctx context.Context, name string) (string, error) {
	if err := CreateDatabase(ctx, s.URL(), name); err != nil {
		return "", err
	}
	return s.databaseURL(name), nil
}

// CreateDatabase creates an empty database on the server of the connection string, unless it
// exists.
func CreateDatabase(ctx context.Context, serverURL, name string) error {
	conn, err := pgx.Connect(ctx, serverURL)
	if err != nil {
		return fmt.Errorf("connect to create database %s: %w", name, err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	// Not template1: it cannot be copied while a session is connected to it.
	_, err = conn.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize()+" TEMPLATE template0 ENCODING 'UTF8'")
	var pgErr *pgconn.PgError
	const duplicateDatabase = "42P04"
	if errors.As(err, &pgErr) && pgErr.Code == duplicateDatabase {
		return nil
	}
	if err != nil {
		return fmt.Errorf("create database %s: %w", name, err)
	}
	return nil
}

// DropDatabase drops a database if it exists, closing its connections.
func DropDatabase(ctx context.Context, serverURL, name string) error {
	conn, err := pgx.Connect(ctx, serverURL)
	if err != nil {
		return fmt.Errorf("connect to drop database %s: %w", name, err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if _, err := conn.Exec(ctx, "DROP DATABASE IF EXISTS "+pgx.Identifier{name}.Sanitize()+" WITH (FORCE)"); err != nil {
		return fmt.Errorf("drop database %s: %w", name, err)
	}
	return nil
}

// Done is closed when the current run of the server has ended, for any reason.
func (s *Server) Done() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		ended := make(chan struct{})
		close(ended)
		return ended
	}
	return s.process.done
}

// Kill ends the server like a crash: connections break, nothing is flushed, and the next Restart goes through crash
// recovery. Committed transactions survive.
func (s *Server) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end(context.Background(), syscall.SIGQUIT)
}

// Restart starts the server again on the same data and port, after stopping it if it still runs.
func (s *Server) Restart(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrStopped
	}
	s.end(ctx, syscall.SIGINT)
	if err := s.launch(ctx); err != nil {
		return fmt.Errorf("restart PostgreSQL: %w", err)
	}
	return nil
}

// Stop shuts the server down, closing open connections; when ctx is done first it kills the
// server. It removes a temporary server's folder. Further calls do nothing.
func (s *Server) Stop(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	s.end(ctx, syscall.SIGINT)
	return s.cleanup()
}

func (s *Server) end(ctx context.Context, sig syscall.Signal) {
	if s.process == nil {
		return
	}
	s.process.stop(ctx, sig)
	s.process = nil
}

func (s *Server) cleanup() error {
	err := s.held.Release()
	if s.socket != "" {
		if failed := os.RemoveAll(s.socket); failed != nil {
			err = errors.Join(err, fmt.Errorf("remove the socket's folder: %w", failed))
		}
	}
	return errors.Join(err, s.cluster.close())
}

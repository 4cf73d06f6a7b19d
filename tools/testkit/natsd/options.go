package natsd

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

const host = "127.0.0.1"

// Options configures a server. The zero value is a server without accounts, with a temporary
// store.
type Options struct {
	// ConfigFile is a nats-server.conf. Its listeners, store folder, log and pid files are replaced by these
	// options; all other settings apply. It is read again at each Restart. Defaults to none: no authentication,
	// JetStream on.
	ConfigFile string

	// StoreDir keeps the streams. Defaults to a temporary folder that Stop removes.
	StoreDir string

	// Port for clients on 127.0.0.1. Defaults to a free one (so does -1).
	Port int

	// MaxStore is the disk space in bytes that streams may reserve. Defaults to 1 TiB: the free disk space does not
	// matter.
	MaxStore int64

	// SyncAlways makes every acknowledged write survive a power loss, at a fraction of the speed.
	// Defaults to false: the server flushes every SyncInterval.
	SyncAlways bool

	// SyncInterval is the interval at which the store is flushed to disk. Defaults to that of the configuration
	// file, else two minutes.
	SyncInterval time.Duration

	// ReadyTimeout bounds Start and Restart. Defaults to 30 s.
	ReadyTimeout time.Duration

	// Logger receives the server's log; without debug and trace messages. Defaults to none.
	Logger *slog.Logger
}

// authTimeout is the time that a client has to authenticate, if the configuration file sets none.
const authTimeout = time.Minute

// lameDuckGrace is the time between closing the listener and closing the connections, in which pending logins can
// finish.
const lameDuckGrace = 20 * time.Millisecond

func (o Options) withDefaults() Options {
	if o.ReadyTimeout == 0 {
		o.ReadyTimeout = 30 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.MaxStore == 0 {
		o.MaxStore = 1 << 40
	}
	return o
}

// server returns new options of nats-server, because the server modifies its options.
func (o Options) server(store string, port int) (*server.Options, error) {
	so := &server.Options{}
	if o.ConfigFile != "" {
		var err error
		if so, err = server.ProcessConfigFile(o.ConfigFile); err != nil {
			return nil, fmt.Errorf("read NATS configuration: %w", err)
		}
	}
	so.Host, so.Port, so.ClientAdvertise = host, port, ""
	so.HTTPPort, so.HTTPSPort, so.ProfPort = 0, 0, 0
	so.Cluster, so.Gateway, so.LeafNode = server.ClusterOpts{}, server.GatewayOpts{}, server.LeafNodeOpts{}
	so.MQTT, so.Routes = server.MQTTOpts{}, nil
	if so.Websocket.Port != 0 {
		so.Websocket.Host, so.Websocket.Port, so.Websocket.Advertise = host, server.RANDOM_PORT, ""
	}
	so.PidFile, so.PortsFileDir, so.LogFile, so.Syslog = "", "", "", false
	so.NoSigs = true
	// A busy machine is slow to authenticate. A client takes an early ping for a failure meanwhile.
	so.DisableShortFirstPing = true
	if so.AuthTimeout == 0 {
		so.AuthTimeout = authTimeout.Seconds()
	}
	so.LameDuckGracePeriod, so.LameDuckDuration = lameDuckGrace, lameDuckGrace+time.Millisecond
	so.JetStream, so.StoreDir, so.JetStreamMaxStore = true, store, o.MaxStore
	if o.SyncAlways {
		so.SyncAlways = true
	}
	if o.SyncInterval != 0 {
		so.SyncInterval = o.SyncInterval
	}
	return so, nil
}

package natsauth

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"lockstep.internal/libs/topology"
)

// SyncAlways makes JetStream write to the disk before it acknowledges: nothing acknowledged is lost
// in a power failure, at a tenth of the throughput or less.
const SyncAlways time.Duration = -1

const (
	defaultCell       = "local"
	defaultListenHost = "127.0.0.1"
	defaultListenPort = 4222
	defaultStoreDir   = "jetstream"
	defaultSync       = 10 * time.Second
)

// Options describe the server that [Init] writes a configuration for. The zero value is a working
// server on this machine alone.
type Options struct {
	// Cell is the cell's name, a DNS label. Defaults to "local".
	Cell topology.Cell
	// ServerName must be unique in a cluster. Defaults to a random name per start.
	ServerName string
	// ListenHost is the address to listen on. Defaults to 127.0.0.1.
	ListenHost string
	// ListenPort is the port for clients; -1 uses a free one. Defaults to 4222.
	ListenPort int
	// MonitorPort serves the server's own health and metrics, to everybody; -1 takes a free one.
	// Defaults to none.
	MonitorPort int
	// MonitorHost is the address of MonitorPort. Defaults to ListenHost.
	MonitorHost string
	// StoreDir holds the streams. A relative one is relative to the server's working directory, not
	// to the configuration: this is how nats-server reads it. Defaults to "jetstream".
	StoreDir string
	// SyncInterval is the interval at which streams are flushed to the disk. With one replica, a power failure loses
	// the acknowledged messages of this time. Defaults to 10 s; see [SyncAlways].
	SyncInterval time.Duration
	// TLS turns on TLS for clients. Without it tokens are sent in clear text: omit it on a loopback address only.
	TLS *TLS
	// WebSocketPort is the port for clients behind HTTP proxies, on ListenHost; -1 uses a free one. It has the same TLS as
	// ListenPort. Defaults to none.
	WebSocketPort int
	// Cluster joins several servers. Defaults to one server alone.
	Cluster *Cluster
	// MapCells are the other cells whose runners write their entry into the cell map of this NATS system. Each gets a
	// principal, see [CellWriter].
	MapCells []topology.Cell
	// Principals are static users in addition to [StaticPrincipals]. Duplicate names are an error.
	Principals []StaticPrincipal
}

// TLS contains paths of PEM files on the server; relative paths start at its working directory.
type TLS struct {
	// CertFile and KeyFile are required.
	CertFile string
	KeyFile  string
	// CAFile verifies the certificates of clients; needed with VerifyClients.
	CAFile string
	// VerifyClients rejects clients without a certificate signed by CAFile.
	VerifyClients bool
}

// Cluster describes the routes between servers. They carry everything: keep them on a private
// network or use TLS.
type Cluster struct {
	// Name must be the same on all servers.
	Name string
	// ListenHost and ListenPort are the address for routes. Host defaults to 127.0.0.1; port -1 uses a free one.
	ListenHost string
	ListenPort int
	// Routes are the URLs of the other servers, such as "nats://nats-1:6222"; more are found
	// through them.
	Routes []string
	// TLS protects the routes. Defaults to none.
	TLS *TLS
	// Servers are all servers of the cluster. With them [Init] writes one configuration for each, and ServerName,
	// ListenPort and Routes follow from them. Defaults to one configuration for a server of this name and these routes.
	Servers []ClusterServer
}

// ClusterServer is one server of a cluster.
type ClusterServer struct {
	// Name is a DNS label. The server's configuration is <name>.conf.
	Name string
	// Host is where the other servers reach it.
	Host string
	// Port is its port for routes.
	Port int
}

// ErrInvalidOptions is wrapped by what [Init] returns for options that it cannot render.
var ErrInvalidOptions = errors.New("invalid options")

func (o Options) withDefaults() Options {
	if o.Cell == "" {
		o.Cell = defaultCell
	}

	if o.ListenHost == "" {
		o.ListenHost = defaultListenHost
	}

	if o.ListenPort == 0 {
		o.ListenPort = defaultListenPort
	}

	if o.StoreDir == "" {
		o.StoreDir = defaultStoreDir
	}

	if o.SyncInterval == 0 {
		o.SyncInterval = defaultSync
	}

	if o.Cluster != nil && o.Cluster.ListenHost == "" {
		cluster := *o.Cluster
		cluster.ListenHost = defaultListenHost
		o.Cluster = &cluster
	}

	return o
}

// configurations are the options of each configuration file, by its name.
func (o Options) configurations() map[string]Options {
	if o.Cluster == nil || len(o.Cluster.Servers) == 0 {
		return map[string]Options{configName: o}
	}

	all := make(map[string]Options)

	for _, server := range o.Cluster.Servers {
		cluster := *o.Cluster
		cluster.ListenPort, cluster.Routes = server.Port, nil

		for _, other := range o.Cluster.Servers {
			if other.Name != server.Name {
				cluster.Routes = append(cluster.Routes, "nats://"+net.JoinHostPort(other.Host, strconv.Itoa(other.Port)))
			}
		}

		one := o
		one.ServerName, one.Cluster = server.Name, &cluster
		all[server.Name+configExtension] = one
	}

	return all
}

// principals are all static users, those that every cell has first.
func (o Options) principals() []StaticPrincipal {
	principals := StaticPrincipals(o.Cell)
	for _, cell := range o.MapCells {
		principals = append(principals, CellWriter(cell))
	}

	return append(principals, o.Principals...)
}

func (o Options) validate() error {
	var errs []error

	fault := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: "+format, append([]any{ErrInvalidOptions}, args...)...))
	}

	if err := topology.ValidateCell(string(o.Cell)); err != nil {
		fault("%w", err)
	}

	for _, cell := range o.MapCells {
		if err := topology.ValidateCell(string(cell)); err != nil {
			fault("cell of the map: %w", err)
		} else if cell == o.Cell {
			fault("cell %q of the map is the cell of this server", cell)
		}
	}

	for name, port := range map[string]int{
		"listen port": o.ListenPort, "monitor port": o.MonitorPort, "websocket port": o.WebSocketPort,
	} {
		if port < -1 || port > 65535 {
			fault("%s %d is not a port", name, port)
		}
	}

	if o.SyncInterval < 0 && o.SyncInterval != SyncAlways {
		fault("sync interval %s is negative", o.SyncInterval)
	}

	errs = append(errs, o.TLS.validate("tls"))

	if c := o.Cluster; c != nil {
		if c.Name == "" {
			fault("cluster without a name")
		}

		if len(c.Servers) == 0 && (c.ListenPort < -1 || c.ListenPort == 0 || c.ListenPort > 65535) {
			fault("cluster listen port %d is not a port", c.ListenPort)
		}

		errs = append(errs, c.TLS.validate("cluster tls"), c.validateServers())
	}

	seen := make(map[string]bool)

	for _, p := range o.principals() {
		if seen[p.Name] {
			fault("static principal %q is listed twice", p.Name)
		}

		seen[p.Name] = true

		errs = append(errs, p.validate())
	}

	return errors.Join(errs...)
}

func (c *Cluster) validateServers() error {
	var errs []error

	seen := make(map[string]bool)

	for _, s := range c.Servers {
		switch {
		case !namePattern.MatchString(s.Name):
			errs = append(errs, fmt.Errorf("%w: server name %q is not a DNS label", ErrInvalidOptions, s.Name))
		case seen[s.Name]:
			errs = append(errs, fmt.Errorf("%w: server %q is listed twice", ErrInvalidOptions, s.Name))
		case s.Host == "" || strings.ContainsAny(s.Host, " /\\\n\r\t"):
			errs = append(errs, fmt.Errorf("%w: server %s: %q is not a host", ErrInvalidOptions, s.Name, s.Host))
		case s.Port < 1 || s.Port > 65535:
			errs = append(errs, fmt.Errorf("%w: server %s: %d is not a port", ErrInvalidOptions, s.Name, s.Port))
		}

		seen[s.Name] = true
	}

	if len(c.Servers) == 1 || len(c.Servers) == 2 {
		errs = append(errs, fmt.Errorf("%w: a cluster of %d servers survives the failure of none: list three or more",
			ErrInvalidOptions, len(c.Servers)))
	}

	return errors.Join(errs...)
}

func (p StaticPrincipal) validate() error {
	switch {
	case !namePattern.MatchString(p.Name):
		return fmt.Errorf("%w: static principal %q is not a DNS label", ErrInvalidOptions, p.Name)
	case p.Name == nameIssuer || p.Name == nameExchange || p.Name == keyDir:
		return fmt.Errorf("%w: static principal %q has a reserved name", ErrInvalidOptions, p.Name)
	case len(p.Permissions.Pub.Allow)+len(p.Permissions.Pub.Deny) == 0,
		len(p.Permissions.Sub.Allow)+len(p.Permissions.Sub.Deny) == 0:
		return fmt.Errorf("%w: static principal %q lists no permissions, which would allow everything",
			ErrInvalidOptions, p.Name)
	}

	switch p.Account {
	case AccountControl, AccountDeploys, AccountRunners, AccountAdmission, AccountGateway, AccountRouter, AccountRelay,
		AccountOperator, AccountCells, AccountMap, AccountAuth, AccountSystem:
		return nil
	case AccountAgents, AccountSubscribers, AccountListeners:
		return fmt.Errorf("%w: static principal %q in account %s, whose users come from the directory only",
			ErrInvalidOptions, p.Name, p.Account)
	default:
		return fmt.Errorf("%w: static principal %q in unknown account %q", ErrInvalidOptions, p.Name, p.Account)
	}
}

func (t *TLS) validate(what string) error {
	switch {
	case t == nil:
		return nil
	case t.CertFile == "" || t.KeyFile == "":
		return fmt.Errorf("%w: %s needs a certificate file and a key file", ErrInvalidOptions, what)
	case t.VerifyClients && t.CAFile == "":
		return fmt.Errorf("%w: %s can verify certificates only with a CA file", ErrInvalidOptions, what)
	case strings.ContainsAny(t.CertFile+t.KeyFile+t.CAFile, "\n\r"):
		return fmt.Errorf("%w: %s has a file name with a line break", ErrInvalidOptions, what)
	default:
		return nil
	}
}

package relay

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"time"

	"connectrpc.com/connect"
	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/certpool"
	"lockstep.internal/libs/config"
	"lockstep.internal/libs/directory"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/natsconn"
	"lockstep.internal/libs/service"
	"lockstep.internal/libs/telemetry"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/relay/audit"
	"lockstep.internal/services/relay/auth"
	"lockstep.internal/services/relay/connectapi"
	"lockstep.internal/services/relay/hub"
	"lockstep.internal/services/relay/intake"
	"lockstep.internal/services/relay/nats"
	"lockstep.internal/services/relay/peer"
	"lockstep.internal/services/relay/proxy"
	"lockstep.internal/services/relay/registry"
	"lockstep.internal/services/relay/tunnel"
)

// Program is what --help says of the service.
func Program() config.Program {
	return config.Program{
		Name: serviceName,
		About: "Carries requests to agents behind firewalls, which have dialled out to it: the Kubernetes API of their clusters, and HTTP and TCP to targets there. Any relay reaches " +
			"any agent, whichever relay it is connected to.",
	}
}

const serviceName = "relay"

// gcPercent lets the heap grow to five times what is in use before it is swept, unless GOGC says something else: little is in use, and much is thrown away.
const gcPercent = 400

// Main runs the service until ctx is done.
func Main(ctx context.Context, cfg Config) error {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	tel, err := telemetry.Open(ctx, cfg.Telemetry, telemetry.Options{Service: serviceName, Version: service.Version()})
	if err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	defer tel.Close(context.WithoutCancel(ctx)) //nolint:errcheck // the last spans are no reason to fail
	p, err := assemble(ctx, cfg, tel)
	if err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	defer p.peers.Close()
	defer p.transport.Close()
	return service.Run(ctx, service.Options{Name: serviceName, Config: p.cfg.Config, Logger: tel.Logger, Metrics: tel.Metrics}, p.parts()...)
}

// process is the service put together.
type process struct {
	cfg            Config
	cell           topology.Cell
	tel            *telemetry.Telemetry
	self           registry.Relay
	conn           *natsconn.Conn
	js             jetstream.JetStream
	directory      *directory.Directory
	configurations *nats.Configurations
	registry       *registry.Registry
	book           *nats.Book
	teller         *nats.Teller
	trail          *audit.Log
	peers          *peer.Pool
	hub            *hub.Hub
	transport      *proxy.Transport
	proxy          *proxy.Handler
	intake         *intake.Handler
	// Tunnels that others have opened.
	ofAgents, ofRelays tunnel.Sessions

	agents, external, internal service.Part
}

func assemble(ctx context.Context, cfg Config, tel *telemetry.Telemetry) (*process, error) {
	p := &process{
		cfg: cfg, cell: topology.Cell(cfg.Cell.Name), tel: tel, registry: registry.New(),
		self: registry.Relay{ID: uuid.NewString(), URL: cfg.Internal.URL, Version: service.Version(), StartedAt: time.Now().UTC().Truncate(time.Millisecond)},
	}
	for _, step := range []func(context.Context) error{p.connect, p.openRegistry, p.openPeers, p.openExternal, p.openAgents, p.measure} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (p *process) connect(ctx context.Context) error {
	cfg := p.cfg.NATS
	cfg.Name, cfg.InboxPrefix = serviceName, natsauth.InboxPrefix(natsauth.PrincipalRelay)
	var err error
	if p.conn, err = natsconn.Connect(ctx, cfg, p.tel.Logger); err != nil {
		return fmt.Errorf("connect to NATS: %w", err)
	}
	if err := p.tel.Metrics.Register(p.conn.Collector()); err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	if p.js, err = p.conn.JetStream(); err != nil {
		return fmt.Errorf("connect to NATS: %w", err)
	}
	if p.directory, err = directory.New(directory.Config{Conn: p.conn.Conn, Cell: p.cell, Logger: p.tel.Logger}); err != nil {
		return fmt.Errorf("directory: %w", err)
	}
	p.configurations = nats.NewConfigurations(p.js, p.cell, p.tel.Logger)
	return nil
}

func (p *process) openRegistry(context.Context) error {
	p.teller = nats.NewTeller(p.js, p.cell, p.self.ID, p.tel.Logger)
	p.trail = audit.NewLog(audit.Config{Publish: p.teller.Publish, Logger: p.tel.Logger})
	p.book = nats.NewBook(nats.Config{
		JetStream: p.js, Self: p.self, Registry: p.registry, Lease: p.cfg.Registry.Lease,
		Announcer: p.teller, Gone: func(c registry.Connection) { p.transport.Release(c.ID) }, Logger: p.tel.Logger,
	})
	return nil
}

func (p *process) openPeers(context.Context) error {
	cfg, err := p.cfg.internalTokens()
	if err != nil {
		return fmt.Errorf("internal.secret_file: %w", err)
	}
	signer, err := auth.NewSigner(cfg)
	if err != nil {
		return fmt.Errorf("internal.secret_file: %w", err)
	}
	verifier, err := auth.NewVerifier(cfg)
	if err != nil {
		return fmt.Errorf("internal.secret_file: %w", err)
	}
	secure, err := p.cfg.Internal.client()
	if err != nil {
		return err
	}
	p.peers = peer.NewPool(peer.Config{
		Dialer: tunnel.Dialer{TLS: secure, Direct: true}, Tunnel: p.cfg.Tunnel.tunnel(), Token: func() (string, error) { return signer.Sign(p.self.ID) },
	})
	p.hub = hub.New(hub.Config{Self: p.self.ID, Registry: p.registry, Peer: p.peers.Session, Patience: p.cfg.External.Patience})
	p.internal = p.listener("internal", p.cfg.Internal.Listener, &peer.Handler{
		Verifier: verifier, Sessions: &p.ofRelays, Follow: p.hub.Follow, Tunnel: p.cfg.Tunnel.tunnel(), Logger: p.tel.Logger,
	})
	return nil
}

// client is how this relay appears to others, and whom it believes.
func (c InternalConfig) client() (*tls.Config, error) {
	secure := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CAFile != "" {
		authorities, err := certpool.Load(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("internal.ca_file: %w", err)
		}
		secure.RootCAs = authorities
	}
	if c.TLS.Enabled() {
		secure.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(c.TLS.CertFile, c.TLS.KeyFile)
			if err != nil {
				return nil, fmt.Errorf("internal.tls: %w", err)
			}
			return &pair, nil
		}
	}
	return secure, nil
}

func (p *process) openExternal(context.Context) error {
	users, err := access.NewVerifier(access.Config{Directory: p.directory, Cell: p.cell, Audience: serviceName})
	if err != nil {
		return fmt.Errorf("external: %w", err)
	}
	services, err := p.cfg.services()
	if err != nil {
		return fmt.Errorf("external.secret_file: %w", err)
	}
	rules, err := p.cfg.rules()
	if err != nil {
		return fmt.Errorf("external.callers_file: %w", err)
	}
	tracing, err := p.tel.Connect()
	if err != nil {
		return fmt.Errorf("external: %w", err)
	}
	authenticator := proxy.NewAuthenticator(users, services, p.directory.Changed, time.Now)
	p.transport = proxy.NewTransport(p.hub)
	p.proxy = proxy.NewHandler(proxy.Config{
		Authenticator: authenticator, Directory: p.directory, Rules: rules, Opener: p.hub, Transport: p.transport, Audit: p.trail,
		MaxRequests: p.cfg.External.MaxRequests, MaxRequestsPerCaller: p.cfg.External.MaxRequestsPerCaller, Logger: p.tel.Logger, Now: time.Now,
	})
	mux := http.NewServeMux()
	mux.Handle("/", connectapi.NewHandler(connectapi.Dependencies{
		Registry: p.registry, Callers: authenticator, May: p.proxy.May, Get: p.proxy.Get, Logger: p.tel.Logger, Interceptors: []connect.Interceptor{tracing},
	}))
	p.external = p.listener("external", p.cfg.External.Listener, p.proxy.Before(p.tel.HTTP, mux))
	return nil
}

func (p *process) openAgents(context.Context) error {
	p.intake = intake.New(intake.Config{
		RelayID: p.self.ID, Agents: agents{p.directory}, Holder: p.hub, Tellers: []intake.Teller{releaser{p.transport}, p.book}, Configurations: p.configurations,
		Sessions: &p.ofAgents, Tunnel: p.cfg.Tunnel.tunnel(), MaxConnections: p.cfg.Agents.MaxConnections, MaxConnectionsPerAgent: p.cfg.Agents.MaxConnectionsPerAgent, Logger: p.tel.Logger, Now: time.Now,
	})
	p.agents = p.listener("agents", p.cfg.Agents.Listener, p.intake)
	return nil
}

func (p *process) listener(name string, cfg service.Listener, handler http.Handler) service.Part {
	return service.HTTPServer(name, cfg, handler, service.HTTPOptions{Logger: p.tel.Logger, WrapConn: tunnel.Gather})
}

// measure registers what can be seen of the relay.
func (p *process) measure(context.Context) error {
	if err := p.tel.Metrics.Register(p.proxy.Metrics()); err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	const streams = "lockstep_relay_streams"
	for _, gauge := range []struct {
		name, help, direction string
		value                 func() int
	}{
		{"lockstep_relay_connections", "Connections of agents that this relay holds.", "", p.intake.Connections},
		{"lockstep_relay_known_connections", "Connections of agents that all relays hold, as far as this one knows.", "", p.registry.Connections},
		{"lockstep_relay_requests", "Requests to agents that are under way.", "", p.proxy.Requests},
		{"lockstep_relay_unpublished_records", "Records of the audit trail that wait to be published.", "", p.trail.Waiting},
		{streams, streamsHelp, "to_agent", func() int { opened, _ := p.ofAgents.Streams(); return opened }},
		{streams, streamsHelp, "to_relay", p.peers.Streams},
		{streams, streamsHelp, "from_relay", func() int { _, taken := p.ofRelays.Streams(); return taken }},
	} {
		options := prometheus.GaugeOpts{Name: gauge.name, Help: gauge.help}
		if gauge.direction != "" {
			options.ConstLabels = prometheus.Labels{"direction": gauge.direction}
		}
		if err := p.tel.Metrics.Register(prometheus.NewGaugeFunc(options, func() float64 { return float64(gauge.value()) })); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	return nil
}

const streamsHelp = "Streams that are open: to agents that this relay holds, to other relays that hold the agent, and from other relays, which then have another one to an agent here. Some are kept for the next request."

// agents are the directory's, as the intake asks for them.
type agents struct{ *directory.Directory }

// Agent is what is known of an agent's token.
func (a agents) Agent(id int64) (intake.Credential, bool) {
	found, known := a.Directory.Agent(id)
	return intake.Credential{ProjectID: found.ProjectID, TokenHash: found.TokenHash, Revoked: found.Revoked}, known
}

// releaser has nothing kept of connections that are no more.
type releaser struct{ *proxy.Transport }

// Connected is nothing to it.
func (releaser) Connected(registry.Connection) {}

// Disconnected releases what is kept.
func (r releaser) Disconnected(c registry.Connection, _ time.Time, _ events.DisconnectReason) {
	r.Release(c.ID)
}

var errNoAddress = errors.New("internal.url is needed: the address that relays listen on for each other is no address to reach this one at")

// internalURL is where other relays reach this one that listens there.
func internalURL(address string, secure bool) (string, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", fmt.Errorf("internal.url: %w", err)
	}
	if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
		return "", errNoAddress
	}
	scheme := "ws"
	if secure {
		scheme = "wss"
	}
	return scheme + "://" + net.JoinHostPort(host, port), nil
}

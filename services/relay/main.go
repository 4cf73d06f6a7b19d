package relay

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/certpool"
	"lockstep.internal/libs/config"
	"lockstep.internal/libs/directory"
	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/natsconn"
	"lockstep.internal/libs/reload"
	"lockstep.internal/libs/service"
	"lockstep.internal/libs/telemetry"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/relay/agentlistener"
	"lockstep.internal/services/relay/api"
	"lockstep.internal/services/relay/audit"
	"lockstep.internal/services/relay/auth"
	"lockstep.internal/services/relay/connections"
	"lockstep.internal/services/relay/forward"
	"lockstep.internal/services/relay/nats"
	"lockstep.internal/services/relay/peer"
	"lockstep.internal/services/relay/policy"
	"lockstep.internal/services/relay/registry"
	"lockstep.internal/services/relay/tunnel"
)

// Program describes the binary.
func Program() config.Program {
	return config.Program{
		Name: serviceName,
		About: "Forwards requests to agents, which run behind firewalls and dial the relay. Targets are the Kubernetes API " +
			"of an agent's cluster, and HTTP and TCP addresses. Any relay reaches any agent, whichever relay the agent is " +
			"connected to.",
	}
}

const serviceName = "relay"

// gcPercent is high because the live heap is small.
const gcPercent = 400

// Main runs the service until ctx is done.
func Main(ctx context.Context, cfg Config) error {
	service.CollectGarbageAt(gcPercent)
	options := telemetry.Options{Service: serviceName, Version: service.Version()}
	tel, err := telemetry.Open(ctx, cfg.Telemetry, options)
	if err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	defer tel.Close(context.WithoutCancel(ctx)) //nolint:errcheck // losing the last spans is not a failure
	p, err := newProcess(ctx, cfg, tel)
	if err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	defer p.peers.Close()
	defer p.transport.Close()
	run := service.Options{Name: serviceName, Config: p.cfg.Config, Logger: tel.Logger, Metrics: tel.Metrics}
	return service.Run(ctx, run, p.parts()...)
}

// process has the parts of the service.
type process struct {
	cfg  Config
	cell topology.Cell
	tel  *telemetry.Telemetry
	self registry.Relay

	conn      *natsconn.Conn
	js        jetstream.JetStream // of the control plane
	directory *directory.Directory
	configs   *nats.AgentConfigs
	events    *nats.EventPublisher
	audit     *audit.Log

	registry     *registry.Registry
	store        *nats.RegistryStore
	peers        *peer.Pool
	connections  *connections.Pool
	transport    *forward.Transport
	forward      *forward.Handler
	agentHandler *agentlistener.Handler

	// Sessions that agents and other relays have opened.
	agentSessions, relaySessions tunnel.SessionGroup

	// unread bounds the memory of all tunnels.
	unread *tunnel.Budget
	// refused counts requests and connections above a limit.
	refused *prometheus.CounterVec

	// Servers for agents, callers and other relays.
	agents, external, internal service.Part
	// reloads read files again when they change.
	reloads []service.Part
}

func newProcess(ctx context.Context, cfg Config, tel *telemetry.Telemetry) (*process, error) {
	p := &process{
		cfg: cfg, cell: topology.Cell(cfg.Cell.Name), tel: tel, registry: registry.New(),
		self: registry.Relay{
			ID: uuid.NewString(), URL: cfg.Internal.URL, Version: service.Version(), Commit: service.Commit(),
			StartedAt: time.Now().UTC().Truncate(time.Millisecond),
		},
	}
	p.refused = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "lockstep_relay_refused_total",
		Help: "Requests, connections of agents and streams that were refused or reset because of a limit.",
	}, []string{"limit"})
	p.unread = tunnel.NewBudget(int64(cfg.Tunnel.MaxUnread), func() { p.countRefused("unread") })
	for _, step := range []func(context.Context) error{
		p.connectNATS, p.openPeers, p.openExternal, p.openAgents, p.registerMetrics,
	} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	p.cfg.OnListen = p.onListen(p.cfg.OnListen)
	return p, nil
}

func (p *process) countRefused(limit string) { p.refused.WithLabelValues(limit).Inc() }

func (p *process) connectNATS(ctx context.Context) error {
	cfg := p.cfg.NATS
	cfg.Name, cfg.InboxPrefix = serviceName, natsauth.InboxPrefix(natsauth.PrincipalRelay)
	var err error
	if p.conn, err = natsconn.Connect(ctx, cfg, p.tel.Logger); err != nil {
		return fmt.Errorf("connect to NATS: %w", err)
	}
	if err := p.tel.Metrics.Register(p.conn.Collector()); err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	own, err := p.conn.JetStream()
	if err != nil {
		return fmt.Errorf("connect to NATS: %w", err)
	}
	if p.js, err = jetstream.NewWithAPIPrefix(p.conn.Conn, natsauth.ControlAPIPrefix); err != nil {
		return fmt.Errorf("connect to NATS: %w", err)
	}
	p.directory, err = directory.New(directory.Config{JetStream: p.js, Cell: p.cell, Logger: p.tel.Logger})
	if err != nil {
		return fmt.Errorf("directory: %w", err)
	}
	p.configs = nats.NewAgentConfigs(p.js, p.cell, p.tel.Logger)
	p.events = nats.NewEventPublisher(p.js, p.cell, p.self.ID, p.tel.Logger)
	p.audit = audit.NewLog(audit.Config{
		Publish: p.events.Publish, Burst: p.cfg.Audit.Burst, PerMinute: p.cfg.Audit.PerMinute, Logger: p.tel.Logger,
	})
	p.store = nats.NewRegistryStore(nats.RegistryConfig{
		JetStream: own, Replicas: p.cfg.Registry.Replicas, Self: p.self, Registry: p.registry,
		Lease: p.cfg.Registry.Lease, Events: p.events,
		OnRemoved: func(c registry.Connection) { p.transport.Evict(c.ID) }, Logger: p.tel.Logger,
	})
	return nil
}

func (p *process) openPeers(context.Context) error {
	cfg, err := p.cfg.internalTokens(p.self.ID)
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
	p.reload("internal.secret_file", p.cfg.internalSecrets, cfg.Secrets, func(secrets [][]byte) error {
		return errors.Join(signer.SetSecrets(secrets), verifier.SetSecrets(secrets))
	})
	tlsConfig, err := p.cfg.Internal.clientTLS()
	if err != nil {
		return err
	}
	p.peers = peer.NewPool(peer.Config{
		Dialer: tunnel.Dialer{TLS: tlsConfig, NoProxy: true}, Tunnel: p.cfg.Tunnel.tunnel(p.unread),
		Token: func(relayID string) (string, error) { return signer.SignFor(p.self.ID, relayID) },
	})
	p.connections = connections.NewPool(connections.Config{
		Self: p.self.ID, Registry: p.registry, Peer: p.peers.Session, AgentTimeout: p.cfg.External.AgentTimeout,
		MaxWaiting: p.cfg.External.MaxWaitingRequests, Refused: func() { p.countRefused("waiting_requests") },
	})
	p.internal = p.server("internal", p.cfg.Internal.Listener, &peer.Handler{
		Verifier: verifier, Sessions: &p.relaySessions, Serve: p.connections.ServePeer, Tunnel: p.cfg.Tunnel.tunnel(p.unread),
		Logger: p.tel.Logger,
	})
	return nil
}

// clientTLS is the TLS configuration to dial other relays with.
func (c InternalConfig) clientTLS() (*tls.Config, error) {
	tlsConfig := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.ServerName}
	if c.CAFile != "" {
		pool, err := certpool.Load(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("internal.ca_file: %w", err)
		}
		tlsConfig.RootCAs = pool
	}
	if c.TLS.Enabled() {
		tlsConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(c.TLS.CertFile, c.TLS.KeyFile)
			if err != nil {
				return nil, fmt.Errorf("internal.tls: %w", err)
			}
			return &pair, nil
		}
	}
	return tlsConfig, nil
}

func (p *process) openExternal(context.Context) error {
	users, err := access.NewVerifier(access.Config{Directory: p.directory, Cell: p.cell, Audience: serviceName})
	if err != nil {
		return fmt.Errorf("external: %w", err)
	}
	services, err := p.cfg.serviceVerifier()
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
	authenticator := forward.NewAuthenticator(users, services, p.directory.Changed, time.Now)
	p.transport = forward.NewTransport(p.connections)
	p.forward = forward.NewHandler(forward.Config{
		Authenticator: authenticator, Directory: p.directory, Rules: rules, Opener: p.connections, Transport: p.transport,
		Audit: p.audit, MaxRequests: p.cfg.External.MaxRequests, MaxRequestsPerCaller: p.cfg.External.MaxRequestsPerCaller,
		MaxRequestsPerAgent: p.cfg.External.MaxRequestsPerAgent, StreamLifetime: p.cfg.External.StreamLifetime,
		Refused: p.countRefused, Logger: p.tel.Logger, Now: time.Now,
	})
	if services != nil {
		secrets, err := p.cfg.serviceSecrets()
		if err != nil {
			return fmt.Errorf("external.secret_file: %w", err)
		}
		p.reload("external.secret_file", p.cfg.serviceSecrets, secrets, func(secrets [][]byte) error {
			defer p.forward.Reauthorize()
			return authenticator.SetServiceSecrets(secrets)
		})
	}
	if p.cfg.External.CallersFile != "" {
		p.reloads = append(p.reloads, reload.Part(reload.Source[[]policy.Rule]{
			Name: "external.callers_file", Read: p.cfg.rules, Logger: p.tel.Logger,
			Apply: func(rules []policy.Rule) error {
				p.forward.SetRules(rules)
				return nil
			},
		}, rules))
	}
	relayAPI := api.NewHandler(api.Dependencies{
		Registry: p.registry, Callers: authenticator, MayRead: p.forward.MayRead, Get: p.forward.Get, Logger: p.tel.Logger,
		Interceptors: []connect.Interceptor{tracing},
	})
	p.external = p.server("external", p.cfg.External.Listener, p.forward.Mux(p.tel.HTTP, relayAPI))
	return nil
}

// reload adds a part that reads secrets again when their files change.
func (p *process) reload(name string, read func() ([][]byte, error), initial [][]byte, apply func([][]byte) error) {
	p.reloads = append(p.reloads, reload.Part(
		reload.Source[[][]byte]{Name: name, Read: read, Apply: apply, Logger: p.tel.Logger}, initial,
	))
}

func (p *process) openAgents(context.Context) error {
	p.agentHandler = agentlistener.NewHandler(agentlistener.Config{
		RelayID: p.self.ID, Agents: p.directory, Pool: p.connections, Observer: p.store, AgentConfigs: p.configs,
		Sessions: &p.agentSessions, Tunnel: p.cfg.Tunnel.tunnel(p.unread), MaxConnections: p.cfg.Agents.MaxConnections,
		MaxConnectionsPerAgent: p.cfg.Agents.MaxConnectionsPerAgent, Refused: p.countRefused,
		Logger: p.tel.Logger, Now: time.Now,
	})
	p.agents = p.server("agents", p.cfg.Agents.Listener, p.agentHandler)
	return nil
}

func (p *process) server(name string, cfg service.Listener, handler http.Handler) service.Part {
	return service.HTTPServer(name, cfg, handler, service.HTTPOptions{Logger: p.tel.Logger, WrapConn: tunnel.Coalesce})
}

func (p *process) registerMetrics(context.Context) error {
	for _, metrics := range []prometheus.Collector{p.forward.Metrics(), p.refused} {
		if err := p.tel.Metrics.Register(metrics); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	const streams = "lockstep_relay_streams"
	for _, gauge := range []struct {
		name, help, direction string
		value                 func() int
	}{
		{"lockstep_relay_connections", "Connections of agents to this relay.", "", p.agentHandler.Connections},
		{"lockstep_relay_known_connections", "Agent connections in the registry, of all relays.", "", p.registry.Connections},
		{"lockstep_relay_requests", "Requests to agents in flight.", "", p.forward.Requests},
		{"lockstep_relay_waiting_requests", "Requests that wait for an agent to connect.", "", p.connections.Waiting},
		{"lockstep_relay_unread_bytes", "Memory for data of streams that was not read.", "", p.unread.Used},
		{"lockstep_relay_unpublished_records", "Audit records that are not published yet.", "", p.audit.Unpublished},
		{streams, streamsHelp, "to_agent", func() int { opened, _ := p.agentSessions.Streams(); return opened }},
		{streams, streamsHelp, "to_relay", p.peers.Streams},
		{streams, streamsHelp, "from_relay", func() int { _, accepted := p.relaySessions.Streams(); return accepted }},
	} {
		options := prometheus.GaugeOpts{Name: gauge.name, Help: gauge.help}
		if gauge.direction != "" {
			options.ConstLabels = prometheus.Labels{"direction": gauge.direction}
		}
		value := func() float64 { return float64(gauge.value()) }
		if err := p.tel.Metrics.Register(prometheus.NewGaugeFunc(options, value)); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	return nil
}

const streamsHelp = "Open streams, also idle ones: to agents of this relay, to other relays, and from other relays. " +
	"Each stream from another relay is also counted as a stream to an agent."

// parts of the service, and their order.
func (p *process) parts() []service.Part {
	p.agents.StopBefore = []string{"registry", "events"}
	p.agents.StartAfter = []string{"directory", "configurations"}
	p.internal.StopBefore = []string{"registry"}
	p.external.StopBefore = []string{"registry", "directory", "audit"}
	return append([]service.Part{
		p.conn.Part(), p.directory.Part(),
		{
			Name: "configurations", StartAfter: []string{"nats"}, Check: p.configs.Check,
			Run: func(ctx context.Context, self *service.Handle) error {
				p.configs.Run(ctx, self.Ready)
				return nil
			},
		},
		{Name: "registry", StartAfter: []string{"nats"}, Run: func(ctx context.Context, self *service.Handle) error {
			return p.store.Run(ctx, self.Ready)
		}},
		{Name: "events", StopBefore: []string{"nats"}, Run: func(ctx context.Context, self *service.Handle) error {
			self.Ready()
			return p.events.Run(ctx, self.DrainContext())
		}},
		{Name: "audit", StopBefore: []string{"nats"}, Run: func(ctx context.Context, self *service.Handle) error {
			self.Ready()
			return p.audit.Run(ctx, self.DrainContext())
		}},
		service.Func("agent revocation", func(ctx context.Context) error {
			p.agentHandler.Run(ctx)
			return nil
		}),
		service.Func("caller revocation", func(ctx context.Context) error {
			p.forward.Run(ctx)
			return nil
		}),
		{Name: "tunnels", StopBefore: []string{"registry", "events"}, Run: p.drainTunnels},
		{Name: "requests", StopBefore: []string{"registry", "audit"}, Run: p.drainRequests},
		p.agents, p.internal, p.external,
	}, p.reloads...)
}

// onListen sets the URL of this relay to where it listens, unless one is configured.
func (p *process) onListen(next func(map[string]string)) func(map[string]string) {
	return func(addresses map[string]string) {
		if p.cfg.Internal.URL == "" {
			url, err := internalURL(addresses["internal"], p.cfg.Internal.TLS.Enabled())
			if err != nil {
				p.tel.Logger.Error("internal.url is not set and cannot be derived from the listen address", logkey.Error(err))
			}
			p.store.SetURL(url)
		}
		if next != nil {
			next(addresses)
		}
	}
}

// drainTunnels waits for the drain. Then it unregisters this relay, drains all sessions and waits for their end. It
// returns after all disconnections are queued. The parts that publish them stop later.
func (p *process) drainTunnels(ctx context.Context, self *service.Handle) error {
	self.Ready()
	<-ctx.Done()
	err := p.store.Unregister(self.DrainContext())
	var draining sync.WaitGroup
	for _, sessions := range []*tunnel.SessionGroup{&p.agentSessions, &p.relaySessions} {
		draining.Go(func() { sessions.Drain(self.DrainContext()) })
	}
	draining.Wait()
	p.agentHandler.Drain(self.DrainContext())
	if err != nil {
		return fmt.Errorf("unregister from the registry: %w", err)
	}
	return nil
}

// drainRequests waits for the drain, and then for the requests in flight. http.Server.Shutdown does not wait
// for hijacked connections.
func (p *process) drainRequests(ctx context.Context, self *service.Handle) error {
	self.Ready()
	<-ctx.Done()
	p.forward.Drain(self.DrainContext())
	return nil
}

// internalURL returns the URL at which other relays dial a relay that listens at address. One that listens at all
// addresses is dialled by its host name.
func internalURL(address string, secure bool) (string, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", fmt.Errorf("internal.url: %w", err)
	}
	if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
		if host, err = os.Hostname(); err != nil {
			return "", fmt.Errorf("internal.url: %w", err)
		}
	}
	scheme := "ws"
	if secure {
		scheme = "wss"
	}
	return scheme + "://" + net.JoinHostPort(host, port), nil
}

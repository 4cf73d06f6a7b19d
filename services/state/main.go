package state

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"connectrpc.com/connect"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.internal/libs/certpool"
	"lockstep.internal/libs/config"
	"lockstep.internal/libs/cursor"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/natsconn"
	"lockstep.internal/libs/outbox"
	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/libs/service"
	"lockstep.internal/libs/telemetry"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/api"
	"lockstep.internal/services/state/ingest"
	"lockstep.internal/services/state/nats"
	"lockstep.internal/services/state/postgres"
	"lockstep.internal/services/state/publish"
	"lockstep.internal/services/state/rebuild"
	"lockstep.internal/services/state/signing"
	"lockstep.internal/services/state/vault"
)

// Program describes the service for --help.
func Program() config.Program {
	return config.Program{
		Name: "state",
		About: "Serves the API, stores organizations, projects, users, agents and workspaces in PostgreSQL, " +
			"reads the reports of clusters from NATS, decides, and publishes every change.",
	}
}

const serviceName = "state"

// Main runs the service until ctx is done.
func Main(ctx context.Context, cfg Config) error {
	tel, err := telemetry.Open(ctx, cfg.Telemetry, telemetry.Options{Service: serviceName, Version: service.Version()})
	if err != nil {
		return fmt.Errorf("state: %w", err)
	}
	defer tel.Close(context.WithoutCancel(ctx)) //nolint:errcheck // the last spans are no reason to fail
	p, err := assemble(ctx, cfg, tel)
	if err != nil {
		return fmt.Errorf("state: %w", err)
	}
	defer p.pool.Close()
	return service.Run(
		ctx,
		service.Options{Name: serviceName, Config: cfg.Config, Logger: tel.Logger, Metrics: tel.Metrics},
		p.parts()...)
}

// process holds the adapters of the service.
type process struct {
	cfg             Config
	tel             *telemetry.Telemetry
	pool            *pgxpool.Pool
	directory       *postgres.Directory
	workspaces      *postgres.Workspaces
	observations    *postgres.Observations
	secrets         *postgres.Secrets
	changes         *postgres.Changes
	keyring         *signing.Keyring
	conn            *natsconn.Conn
	callout         *natsconn.Conn
	system          *natsconn.Conn
	publisher       *outbox.Publisher
	responder       *natsauth.Responder
	agents          *nats.Agents
	subscribers     *nats.Subscribers
	background      *background
	api             service.Part
	readers         *nats.Readers
	ingest          []service.Part
	secretResponder *nats.SecretResponder
}

func assemble(ctx context.Context, cfg Config, tel *telemetry.Telemetry) (*process, error) {
	p := &process{cfg: cfg, tel: tel, background: newBackground()}
	for _, step := range []func(context.Context) error{p.openDatabase, p.connect, p.openStreams, p.openIngest, p.openCallout, p.openAPI} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (p *process) openDatabase(context.Context) error {
	url := p.cfg.Database.URL.Reveal()
	if p.cfg.Database.URLFile.IsSet() {
		var err error
		if url, err = p.cfg.Database.URLFile.Read(); err != nil {
			return fmt.Errorf("database.url_file: %w", err)
		}
	}
	seed, err := p.cfg.Secrets.SealSeedFile.Read()
	if err != nil {
		return fmt.Errorf("secrets.seal_seed_file: %w", err)
	}
	digest, err := p.cfg.Secrets.DigestKeyFile.Read()
	if err != nil {
		return fmt.Errorf("secrets.digest_key_file: %w", err)
	}
	v, err := vault.Open(seed, digest)
	if err != nil {
		return fmt.Errorf("open the vault: %w", err)
	}
	p.pool, err = libpostgres.Open(
		libpostgres.Config{
			URL:             url,
			Schema:          serviceName,
			ApplicationName: "lockstep-state",
			MaxConnections:  int32(p.cfg.Database.MaxConnections),
		},
	)
	if err != nil {
		return fmt.Errorf("open the database: %w", err)
	}
	cell := p.cell()
	encoder := publish.Encoder{Cell: cell}
	p.directory = &postgres.Directory{DB: p.pool, Encoder: encoder, Now: time.Now}
	p.workspaces = &postgres.Workspaces{Encoder: encoder}
	p.observations = &postgres.Observations{Encoder: encoder, Workspaces: p.workspaces}
	p.secrets = &postgres.Secrets{Vault: v}
	p.changes = postgres.NewChanges(p.pool)
	p.keyring = &signing.Keyring{
		Store: &postgres.SigningKeys{
			Directory: p.directory,
			Vault:     v,
			Logger:    p.tel.Logger,
		},
		Cell:   cell,
		Logger: p.tel.Logger,
		Now:    time.Now,
	}
	return nil
}

// connect opens three connections to NATS: the service's own, one for the auth callout, and one in the system
// account that disconnects agents.
func (p *process) connect(ctx context.Context) error {
	own := p.cfg.NATS
	if !own.NKeySeedFile.IsSet() {
		own.NKeySeedFile = config.SecretFile(natsauth.SeedFile(p.cfg.Agents.KeysDir, natsauth.PrincipalState))
	}
	for _, c := range []struct {
		to        **natsconn.Conn
		principal string
		cfg       natsconn.Config
	}{{&p.conn, natsauth.PrincipalState, own}, {&p.callout, natsauth.PrincipalCallout, p.cfg.NATS}, {&p.system, natsauth.PrincipalSystem, p.cfg.NATS}} {
		if c.to != &p.conn {
			c.cfg.NKeySeedFile = config.SecretFile(natsauth.SeedFile(p.cfg.Agents.KeysDir, c.principal))
		}
		c.cfg.Name, c.cfg.InboxPrefix = "state-"+c.principal, natsauth.InboxPrefix(c.principal)
		conn, err := natsconn.Connect(ctx, c.cfg, p.tel.Logger)
		if err != nil {
			return fmt.Errorf("connect to NATS as %s: %w", c.principal, err)
		}
		*c.to = conn
	}
	if err := p.tel.Metrics.Register(p.conn.Collector()); err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	return nil
}

func (p *process) openStreams(context.Context) error {
	metrics, err := outbox.NewMetrics(p.tel.Metrics)
	if err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	p.publisher, err = outbox.New(
		outbox.Config{Pool: p.pool, Conn: p.conn.Conn, Logger: p.tel.Logger, Metrics: metrics, Restored: p.republish},
	)
	if err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	return nil
}

// republish publishes the directory and all desired states again, and requests full resyncs: a stream or the
// database was restored from an older backup.
func (p *process) republish(ctx context.Context, tx pgx.Tx, r outbox.Restoration) error {
	p.tel.Logger.WarnContext(ctx, "publishing everything again after a restore",
		slog.String("stream", r.Stream), slog.String("reason", r.Reason))
	// Lock in the usual order: agents before workspaces.
	if r.Stream == "" {
		if err := p.directory.RaiseConfigurations(ctx, tx); err != nil {
			return fmt.Errorf("publish the configurations again: %w", err)
		}
	}
	if err := p.observations.In(tx).
		RequestAllResyncs(ctx, events.ResyncRequestCauseRestoredStream, time.Now()); err != nil {
		return fmt.Errorf("request full resyncs: %w", err)
	}
	if err := p.directory.RepublishAll(ctx, tx); err != nil {
		return fmt.Errorf("publish the directory again: %w", err)
	}
	if err := p.workspaces.RepublishAll(ctx, tx); err != nil {
		return fmt.Errorf("publish the workspaces again: %w", err)
	}
	// The backup lacks the consumers of newer agents.
	p.agents.RequestEnsure()
	return nil
}

func (p *process) openIngest(context.Context) error {
	js, err := p.conn.JetStream()
	if err != nil {
		return fmt.Errorf("ingest: %w", err)
	}
	cursors, err := cursor.NewMetrics(p.tel.Metrics)
	if err != nil {
		return fmt.Errorf("ingest: %w", err)
	}
	metrics, err := ingest.NewMetrics(p.tel.Metrics)
	if err != nil {
		return fmt.Errorf("ingest: %w", err)
	}
	p.readers = &nats.Readers{
		Pool: p.pool, JetStream: js, Cell: p.cell(), Logger: p.tel.Logger, Observations: p.observations, Cursors: cursors,
		Ingest: &ingest.Ingest{Logger: p.tel.Logger, Metrics: metrics},
	}
	p.ingest, err = p.readers.Parts()
	if err != nil {
		return fmt.Errorf("ingest: %w", err)
	}
	return nil
}

// rebuild serves the API's Rebuild.
func (p *process) rebuild(
	ctx context.Context,
	check bool,
	progress func(rebuild.Progress) error,
) (rebuild.Outcome, error) {
	r := rebuild.Rebuild{Readers: p.readers, OnProgress: progress}
	began := time.Now()
	out, err := r.Run(ctx, check)
	if err != nil {
		return out, fmt.Errorf("state: %w", err)
	}
	p.tel.Logger.InfoContext(ctx, "rebuilt the read model", slog.Bool("check", check), slog.Bool("replaced", out.Replaced),
		slog.Any("differences", out.Differences), slog.Duration("duration", time.Since(began)))
	return out, nil
}

func (p *process) cell() topology.Cell { return topology.Cell(p.cfg.Cell.Name) }

func (p *process) openCallout(context.Context) error {
	keys, err := natsauth.LoadCalloutKeys(p.cfg.Agents.KeysDir)
	if err != nil {
		return fmt.Errorf("agents.keys_dir: %w", err)
	}
	js, err := p.conn.JetStream()
	if err != nil {
		return fmt.Errorf("agents: %w", err)
	}
	cell := p.cell()
	disconnector := &natsauth.Disconnector{Conn: p.system.Conn}
	p.subscribers = &nats.Subscribers{
		Streams:      js,
		Disconnector: disconnector,
		Logger:       p.tel.Logger,
		Background:   p.background.run,
	}
	p.agents = &nats.Agents{
		Streams: js, Disconnector: disconnector, Cell: cell, Logger: p.tel.Logger, Background: p.background.run,
		EnsureAgain: make(chan struct{}, 1),
	}
	p.responder = &natsauth.Responder{
		Conn: p.callout.Conn, Keys: keys, Cell: cell, Logger: p.tel.Logger,
		Authenticator: &nats.Authenticator{Directory: p.directory},
	}
	p.secretResponder = &nats.SecretResponder{
		Conn:       p.conn.Conn,
		Cell:       cell,
		Pool:       p.pool,
		Directory:  p.directory,
		Workspaces: p.workspaces,
		Secrets:    p.secrets,
		Logger:     p.tel.Logger,
	}
	return nil
}

func (p *process) openAPI(context.Context) error {
	js, err := p.conn.JetStream()
	if err != nil {
		return fmt.Errorf("api: %w", err)
	}
	tracing, err := p.tel.Connect()
	if err != nil {
		return fmt.Errorf("api: %w", err)
	}
	endpoint, err := p.endpoint()
	if err != nil {
		return err
	}
	handler := api.NewHandler(api.Dependencies{
		Pool: p.pool, Directory: p.directory, Workspaces: p.workspaces, Observations: p.observations, Secrets: p.secrets,
		Changes: p.changes, Streams: js, Agents: p.agents, Subscribers: p.subscribers, Endpoint: endpoint, Rebuild: p.rebuild,
		Issuer: p.keyring, Cell: p.cell(), Logger: p.tel.Logger, Now: time.Now, Interceptors: []connect.Interceptor{tracing},
	})
	p.api = service.HTTPServer(
		"api",
		p.cfg.API,
		handler,
		service.HTTPOptions{Logger: p.tel.Logger, Metrics: p.tel.Metrics, StopBefore: []string{"database", "nats"}},
	)
	return nil
}

func (p *process) endpoint() (api.AgentEndpoint, error) {
	e := api.AgentEndpoint{URLs: p.cfg.Agents.URLs, Cell: p.cfg.Cell.Name}
	if len(e.URLs) == 0 {
		e.URLs = []string{p.cfg.NATS.URL.Reveal()}
	}
	if p.cfg.Agents.CAFile != "" {
		raw, err := certpool.ReadPEM(p.cfg.Agents.CAFile)
		if err != nil {
			return e, fmt.Errorf("agents.ca_file: %w", err)
		}
		e.CA = string(raw)
	}
	return e, nil
}

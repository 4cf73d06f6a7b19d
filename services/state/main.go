package state

import (
	"context"
	"fmt"
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
	"lockstep.internal/services/state/connectapi"
	"lockstep.internal/services/state/nats"
	"lockstep.internal/services/state/postgres"
	"lockstep.internal/services/state/signing"
	"lockstep.internal/services/state/vault"
)

// Program is what --help says of the service.
func Program() config.Program {
	return config.Program{
		Name: "state",
		About: "The authority for what people want: organizations, projects, users, agents, workspaces. It serves the API, keeps everything in PostgreSQL, " +
			"reads what clusters say from NATS, and tells everybody what changed.",
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
	return service.Run(ctx, service.Options{Name: serviceName, Config: cfg.Config, Logger: tel.Logger, Metrics: tel.Metrics}, p.parts()...)
}

// process is the service put together.
type process struct {
	cfg          Config
	tel          *telemetry.Telemetry
	pool         *pgxpool.Pool
	directory    *postgres.Directory
	workspaces   *postgres.Workspaces
	observations *postgres.Observations
	secrets      *postgres.Secrets
	changes      *postgres.Changes
	keyring      *signing.Keyring
	conn         *natsconn.Conn
	callout      *natsconn.Conn
	system       *natsconn.Conn
	publisher    *outbox.Publisher
	responder    *natsauth.Responder
	agents       *nats.Agents
	subscribers  *nats.Subscribers
	background   *background
	api          service.Part
	reader       *nats.Ingest
	ingest       []service.Part
	secretary    *nats.SecretResponder
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
	p.pool, err = libpostgres.Open(libpostgres.Config{URL: url, Schema: serviceName, ApplicationName: "lockstep-state", MaxConnections: int32(p.cfg.Database.MaxConnections)})
	if err != nil {
		return fmt.Errorf("open the database: %w", err)
	}
	cell := topology.Cell(p.cfg.Cell.Name)
	p.directory = &postgres.Directory{DB: p.pool, Cell: cell, Now: time.Now}
	p.workspaces = &postgres.Workspaces{Cell: cell}
	p.observations = &postgres.Observations{Cell: cell}
	p.secrets = &postgres.Secrets{Vault: v}
	p.changes = postgres.NewChanges(p.pool)
	p.keyring = &signing.Keyring{
		Store: &postgres.SigningKeys{Directory: p.directory, Vault: v, Logger: p.tel.Logger}, Cell: cell, Logger: p.tel.Logger, Now: time.Now,
	}
	return nil
}

// connect opens the service's three connections: its own, the one that admits agents, and the one that cuts them.
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
	p.publisher, err = outbox.New(outbox.Config{Pool: p.pool, Conn: p.conn.Conn, Logger: p.tel.Logger, Metrics: metrics, Restored: p.restored})
	if err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	return nil
}

// restored tells the present truth again after a stream, or the database, came back from an older copy: what is wanted, who there is; and asks
// the clusters for theirs.
func (p *process) restored(ctx context.Context, tx pgx.Tx, r outbox.Restoration) error {
	p.tel.Logger.WarnContext(ctx, "something was restored from an older copy: everything is told again", "reason", r.Reason)
	// In the order in which everybody locks: agents before workspaces.
	if r.Stream == "" {
		if err := p.directory.RaiseConfigurations(ctx, tx); err != nil {
			return fmt.Errorf("configure agents again: %w", err)
		}
	}
	if err := p.observations.AskEveryone(ctx, tx, events.ResyncRequestCauseRestoredStream, time.Now()); err != nil {
		return fmt.Errorf("ask for full resyncs: %w", err)
	}
	if err := p.directory.TellAgain(ctx, tx); err != nil {
		return fmt.Errorf("tell the directory again: %w", err)
	}
	if err := p.workspaces.TellAgain(ctx, tx); err != nil {
		return fmt.Errorf("tell workspaces again: %w", err)
	}
	// Agents registered after the copy was taken have lost the consumers that they read with.
	p.agents.AdmitAgain()
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
	metrics, err := nats.NewIngestMetrics(p.tel.Metrics)
	if err != nil {
		return fmt.Errorf("ingest: %w", err)
	}
	p.workspaces.Unexpected = metrics.Unexpected
	p.reader = &nats.Ingest{
		Pool: p.pool, JetStream: js, Cell: p.workspaces.Cell, Logger: p.tel.Logger, Workspaces: p.workspaces, Observations: p.observations,
		Cursors: cursors, Metrics: metrics,
	}
	p.ingest, err = p.reader.Parts()
	if err != nil {
		return fmt.Errorf("ingest: %w", err)
	}
	return nil
}

// rebuild is the API's way to a rebuild.
func (p *process) rebuild(ctx context.Context, check bool, told func(stream string, sequence, last uint64) error) (connectapi.Rebuilt, error) {
	r := nats.Rebuild{Ingest: p.reader, Told: func(at nats.RebuildProgress) error { return told(at.Stream, at.Sequence, at.Last) }}
	began := time.Now()
	out, err := r.Run(ctx, check)
	if err != nil {
		return connectapi.Rebuilt{}, fmt.Errorf("state: %w", err)
	}
	p.tel.Logger.InfoContext(ctx, "what is derived from the streams was rebuilt", "check", check, "differences", out.Differences, "seconds", time.Since(began).Seconds())
	return connectapi.Rebuilt{Tables: out.Tables, Differences: out.Differences, Replaced: out.Replaced}, nil
}

func (p *process) openCallout(context.Context) error {
	keys, err := natsauth.LoadCalloutKeys(p.cfg.Agents.KeysDir)
	if err != nil {
		return fmt.Errorf("agents.keys_dir: %w", err)
	}
	js, err := p.conn.JetStream()
	if err != nil {
		return fmt.Errorf("agents: %w", err)
	}
	cell := topology.Cell(p.cfg.Cell.Name)
	kicker := &natsauth.Disconnector{Conn: p.system.Conn}
	p.subscribers = &nats.Subscribers{Streams: js, Kicker: kicker, Logger: p.tel.Logger, Background: p.background.run}
	p.agents = &nats.Agents{Streams: js, Kicker: kicker, Cell: cell, Logger: p.tel.Logger, Background: p.background.run, Again: make(chan struct{}, 1)}
	p.responder = &natsauth.Responder{
		Conn: p.callout.Conn, Keys: keys, Cell: cell, Logger: p.tel.Logger,
		Authenticator: &nats.Authenticator{Directory: p.directory},
	}
	p.secretary = &nats.SecretResponder{
		Conn: p.conn.Conn, Cell: cell, Pool: p.pool, Directory: p.directory, Workspaces: p.workspaces, Secrets: p.secrets, Logger: p.tel.Logger,
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
	handler := connectapi.NewHandler(connectapi.Dependencies{
		Pool: p.pool, Directory: p.directory, Workspaces: p.workspaces, Observations: p.observations, Secrets: p.secrets, Changes: p.changes, Streams: js, Agents: p.agents, Subscribers: p.subscribers,
		Endpoint: endpoint, Rebuild: p.rebuild, Issuer: p.keyring, Cell: topology.Cell(p.cfg.Cell.Name), Logger: p.tel.Logger, Now: time.Now, Interceptors: []connect.Interceptor{tracing},
	})
	p.api = service.HTTPServer("api", p.cfg.API, handler, service.HTTPOptions{Logger: p.tel.Logger, Metrics: p.tel.Metrics, StopBefore: []string{"database", "nats"}})
	return nil
}

func (p *process) endpoint() (connectapi.AgentEndpoint, error) {
	e := connectapi.AgentEndpoint{URLs: p.cfg.Agents.URLs, Cell: p.cfg.Cell.Name}
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

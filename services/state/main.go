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
	"lockstep.internal/libs/consumers"
	"lockstep.internal/libs/cursor"
	"lockstep.internal/libs/idrange"
	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/natsconn"
	"lockstep.internal/libs/outbox"
	"lockstep.internal/libs/readmodel"
	"lockstep.internal/libs/service"
	"lockstep.internal/libs/telemetry"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/state/admin"
	"lockstep.internal/services/state/agent"
	"lockstep.internal/services/state/api"
	"lockstep.internal/services/state/devfile/registry"
	"lockstep.internal/services/state/ingest"
	"lockstep.internal/services/state/judge"
	"lockstep.internal/services/state/meter"
	"lockstep.internal/services/state/nats"
	"lockstep.internal/services/state/postgres"
	"lockstep.internal/services/state/publish"
	"lockstep.internal/services/state/rebuild"
	"lockstep.internal/services/state/republish"
	"lockstep.internal/services/state/rerender"
	"lockstep.internal/services/state/secret"
	"lockstep.internal/services/state/signing"
	"lockstep.internal/services/state/vault"
)

// Program describes the service for --help.
func Program() config.Program {
	return config.Program{
		Name: "state",
		About: "Serves the API, stores organizations, projects, users, agents and workspaces in PostgreSQL, " +
			"reads the reports of clusters from NATS, computes states, and publishes every change.",
	}
}

const serviceName = "state"

// gcPercent is high because little memory is in use and much is garbage: reports are decoded and stored.
const gcPercent = 400

// Main runs the service until ctx is done.
func Main(ctx context.Context, cfg Config) error {
	service.CollectGarbageAt(gcPercent)
	tel, err := telemetry.Open(ctx, cfg.Telemetry, telemetry.Options{Service: serviceName, Version: service.Version()})
	if err != nil {
		return fmt.Errorf("state: %w", err)
	}
	defer tel.Close(context.WithoutCancel(ctx)) //nolint:errcheck // a failure to send the last spans is ignored
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
	directory       *admin.Directory
	encoder         publish.Encoder
	workspaces      *postgres.Workspaces
	ingestStores    *postgres.IngestStores
	secrets         *postgres.Secrets
	changes         *postgres.Changes
	accessChanges   *postgres.AccessChanges
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
	consumers       *nats.Consumers
	ingest          []service.Part
	judge           *judge.Judge
	renderer        *rerender.Renderer
	meter           *nats.Meter
	silences        *nats.Silences
	activity        *nats.ActivityWatch
	endedTokens     *nats.EndedTokens
	secretResponder *nats.SecretResponder
	// consumerResponder creates consumers for other services.
	consumerResponder *consumers.Responder
}

func assemble(ctx context.Context, cfg Config, tel *telemetry.Telemetry) (*process, error) {
	p := &process{cfg: cfg, tel: tel, background: newBackground()}
	for _, step := range []func(context.Context) error{
		p.openDatabase, p.connect, p.openOutbox, p.openIngest, p.openAgents, p.openAPI,
	} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (p *process) openDatabase(context.Context) error {
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
	p.pool, err = p.cfg.Database.Open(serviceName)
	if err != nil {
		return fmt.Errorf("open the database: %w", err)
	}
	cell := p.cell()
	p.encoder = publish.Encoder{Cell: cell}
	p.directory = &admin.Directory{
		Directory: &postgres.Directory{DB: p.pool, Now: time.Now},
		Encoder:   p.encoder,
	}
	p.workspaces = &postgres.Workspaces{}
	p.ingestStores = &postgres.IngestStores{Workspaces: p.workspaces}
	p.secrets = &postgres.Secrets{Vault: v}
	p.changes, p.accessChanges = postgres.NewChanges(p.pool), postgres.NewAccessChanges(p.pool)
	p.keyring = &signing.Keyring{
		Store: &admin.SigningKeys{
			Directory: p.directory,
			Keys:      &postgres.SigningKeys{Vault: v, Logger: p.tel.Logger},
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
	}{
		{&p.conn, natsauth.PrincipalState, own},
		{&p.callout, natsauth.PrincipalCallout, p.cfg.NATS},
		{&p.system, natsauth.PrincipalSystem, p.cfg.NATS},
	} {
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

func (p *process) openOutbox(context.Context) error {
	metrics, err := outbox.NewMetrics(p.tel.Metrics)
	if err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	p.publisher, err = outbox.New(outbox.Config{
		Pool: p.pool, Conn: p.conn.Conn, Logger: p.tel.Logger, Metrics: metrics, Restored: p.republish,
		OrderingKey: p.cell().OrderingKey(),
	})
	if err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	return nil
}

// republish publishes everything again: a stream or the database was restored from an older backup.
func (p *process) republish(ctx context.Context, tx pgx.Tx, r outbox.Restoration) error {
	p.tel.Logger.WarnContext(ctx, "publishing everything again after a restore",
		slog.String(logkey.Stream, r.Stream), slog.String(logkey.Reason, r.Reason))
	if err := p.republisher().All(ctx, tx, r); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	// The backup lacks the consumers of newer agents.
	p.agents.RequestEnsure()
	return nil
}

func (p *process) republisher() *republish.Republisher {
	return &republish.Republisher{
		Directory: p.directory, Workspaces: p.workspaces, IngestStores: p.ingestStores, Ingest: p.consumers.Ingest,
	}
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
	p.consumers = &nats.Consumers{
		Pool: p.pool, JetStream: js, Cell: p.cell(), Logger: p.tel.Logger, IngestStores: p.ingestStores,
		CursorMetrics: cursors,
		Ingest:        &ingest.Ingest{Logger: p.tel.Logger, Encoder: p.encoder, Metrics: metrics},
	}
	p.activity = &nats.ActivityWatch{JetStream: js, Processed: p.consumers.ActivitySequence, Logger: p.tel.Logger}
	p.consumers.Ingest.ActivityReadUntil = p.activity.ReadUntil
	p.judge = &judge.Judge{
		Pool: p.pool, Logger: p.tel.Logger, Ingest: p.consumers.Ingest, IngestStores: p.ingestStores,
	}
	p.renderer = &rerender.Renderer{
		Pool: p.pool, Logger: p.tel.Logger, Ingest: p.consumers.Ingest, IngestStores: p.ingestStores, Now: time.Now,
	}
	p.ingest, err = p.consumers.Parts()
	if err != nil {
		return fmt.Errorf("ingest: %w", err)
	}
	return nil
}

// rebuild serves the API's Rebuild.
func (p *process) rebuild(
	ctx context.Context,
	check bool,
	progress func(readmodel.Progress) error,
) (readmodel.Outcome, error) {
	began := time.Now()
	out, err := rebuild.New(p.consumers, progress).Run(ctx, check)
	if err != nil {
		return out, fmt.Errorf("state: %w", err)
	}
	p.tel.Logger.InfoContext(ctx, "rebuilt the read model",
		slog.Bool(logkey.Check, check), slog.Bool(logkey.Replaced, out.Replaced),
		slog.Any(logkey.Differences, out.Differences), slog.Duration(logkey.Duration, time.Since(began)))
	return out, nil
}

func (p *process) cell() topology.Cell { return topology.Cell(p.cfg.Cell.Name) }

func (p *process) openAgents(context.Context) error {
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
		JetStream:    js,
		Disconnector: disconnector,
		Logger:       p.tel.Logger,
		Background:   p.background.enqueue,
	}
	p.agents = &nats.Agents{
		JetStream: js, Disconnector: disconnector, Cell: cell, Logger: p.tel.Logger, Background: p.background.enqueue,
		EnsureRequests: make(chan struct{}, 1),
	}
	p.meter = &nats.Meter{
		JetStream: js, Limits: p.cfg.limits(), Logger: p.tel.Logger, Block: p.blockAgent,
		Unblock: p.directory.UnblockAgents, Disconnect: p.agents.Disconnect,
	}
	if err := p.tel.Metrics.Register(p.meter); err != nil {
		return fmt.Errorf("metrics of agents' limits: %w", err)
	}
	p.silences = &nats.Silences{
		JetStream: js, Patience: p.cfg.Agents.SilentAfter, Processed: p.consumers.ObservedSequence,
		Record: p.directory.RecordSilences, Count: p.directory.CountSilent, Logger: p.tel.Logger,
	}
	if err := p.tel.Metrics.Register(p.silences); err != nil {
		return fmt.Errorf("metrics of silent agents: %w", err)
	}
	p.endedTokens = &nats.EndedTokens{
		Agents: p.directory.AgentsWithEndedToken, Disconnect: p.agents.Disconnect, Clear: p.directory.ClearEndedToken,
		Logger: p.tel.Logger,
	}
	p.responder = &natsauth.Responder{
		Conn: p.callout.Conn, Keys: keys, Cell: cell, Logger: p.tel.Logger,
		Authenticator: &nats.Authenticator{Directory: p.directory.Directory},
	}
	p.consumerResponder = &consumers.Responder{
		Direct: consumers.Direct{JetStream: js, Cell: cell, Service: serviceName}, Logger: p.tel.Logger,
	}
	p.secretResponder = &nats.SecretResponder{
		Conn: p.conn.Conn, Cell: cell, Logger: p.tel.Logger,
		Sealer: &secret.Sealer{
			Key: p.secrets.Vault.Key(),
			Store: &postgres.SecretStore{
				Pool: p.pool, Directory: p.directory.Directory, Workspaces: p.workspaces, Secrets: p.secrets,
			},
		},
	}
	return nil
}

// blockAgent blocks an agent that exceeded a limit.
func (p *process) blockAgent(ctx context.Context, excess meter.Excess) (bool, error) {
	return p.directory.BlockAgent(
		ctx, excess.AgentID, agent.Block{Reason: excess.Reason, At: time.Now().UTC(), Until: excess.Until.UTC()})
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
	keys, err := p.cfg.Gateway.keys()
	if err != nil {
		return fmt.Errorf("api: %w", err)
	}
	devfiles, err := registry.New(p.cfg.Devfile.Registries, nil)
	if err != nil {
		return fmt.Errorf("devfile.registries: %w", err)
	}
	handler := api.NewHandler(api.Dependencies{
		Pool: p.pool, Directory: p.directory, Workspaces: p.workspaces, IngestStores: p.ingestStores, Secrets: p.secrets,
		Encoder: p.encoder, Ingest: p.consumers.Ingest, Changes: p.changes, JetStream: js, Agents: p.agents,
		AccessChanges: p.accessChanges, StreamLifetime: p.cfg.Access.StreamLifetime,
		MaxTokensPerUser: p.cfg.Access.MaxTokensPerUser, MaxAgentsPerProject: p.cfg.Agents.MaxPerProject,
		Subscribers: p.subscribers, Endpoint: endpoint, NamespacePrefix: p.cfg.Workspace.NamespacePrefix,
		Rebuild: p.rebuild, DeadLetters: nats.DeadLetters{JetStream: js, Cell: p.cell()}, Issuer: p.keyring, Cell: p.cell(),
		Gateway: api.Gateway{URL: p.cfg.Gateway.URL, PublicKeys: keys, Cell: p.cell()},
		IDs:     idrange.OfCell(p.cfg.Cell.Number), Devfiles: devfiles.Fetch,
		Logger: p.tel.Logger, Now: time.Now, Interceptors: []connect.Interceptor{tracing},
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
	e := api.AgentEndpoint{URLs: p.cfg.agentURLs(), Cell: p.cfg.Cell.Name}
	if p.cfg.Agents.CAFile != "" {
		raw, err := certpool.ReadPEM(p.cfg.Agents.CAFile)
		if err != nil {
			return e, fmt.Errorf("agents.ca_file: %w", err)
		}
		e.CA = string(raw)
	}
	return e, nil
}

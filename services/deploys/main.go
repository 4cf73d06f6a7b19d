package deploys

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"lockstep.internal/libs/readmodel"

	"connectrpc.com/connect"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/config"
	"lockstep.internal/libs/consumers"
	"lockstep.internal/libs/cursor"
	"lockstep.internal/libs/directory"
	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/natsconn"
	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/libs/service"
	"lockstep.internal/libs/telemetry"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/deploys/api"
	"lockstep.internal/services/deploys/environment"
	"lockstep.internal/services/deploys/history"
	"lockstep.internal/services/deploys/metrics"
	"lockstep.internal/services/deploys/nats"
	"lockstep.internal/services/deploys/postgres"
	"lockstep.internal/services/deploys/rebuild"
	"lockstep.internal/services/deploys/sink"
	"lockstep.internal/services/deploys/sink/catalog"
)

// Program describes the service for --help.
func Program() config.Program {
	return config.Program{
		Name: "deploys",
		About: "Publishes when each deploy starts and how it ends, exactly once. It reads what watchers observe of " +
			"Deployments, StatefulSets and DaemonSets, publishes facts about their rollouts as CDEvents, delivers them " +
			"to sinks, and keeps their history.",
	}
}

const serviceName = "deploys"

// Main runs the service until ctx is done.
func Main(ctx context.Context, cfg Config) error {
	tel, err := telemetry.Open(ctx, cfg.Telemetry, telemetry.Options{Service: serviceName, Version: service.Version()})
	if err != nil {
		return fmt.Errorf("deploys: %w", err)
	}
	defer tel.Close(context.WithoutCancel(ctx)) //nolint:errcheck // only the last spans are lost
	p, err := assemble(ctx, cfg, tel)
	if err != nil {
		return fmt.Errorf("deploys: %w", err)
	}
	defer p.pool.Close()
	defer p.catalog.Close()
	return service.Run(ctx,
		service.Options{Name: serviceName, Config: cfg.Config, Logger: tel.Logger, Metrics: tel.Metrics}, p.parts()...)
}

// process holds the adapters of the service.
type process struct {
	cfg       Config
	cell      topology.Cell
	tel       *telemetry.Telemetry
	pool      *pgxpool.Pool
	conn      *natsconn.Conn
	js        jetstream.JetStream
	consumers consumers.Requested
	changes   *postgres.Changes
	directory *directory.Directory
	reader    *nats.Reader
	consumer  *nats.Consumer
	// reconcile triggers the reconciler.
	reconcile  chan struct{}
	reconciler *nats.Reconciler
	sinks      *sink.Set
	// catalog holds the configured sinks.
	catalog *catalog.Sinks
	api     service.Part
}

func assemble(ctx context.Context, cfg Config, tel *telemetry.Telemetry) (*process, error) {
	p := &process{cfg: cfg, cell: topology.Cell(cfg.Cell.Name), tel: tel, reconcile: make(chan struct{}, 1)}
	for _, step := range []func(context.Context) error{
		p.openDatabase, p.connect, p.openDirectory, p.openIngest, p.openSinks, p.openAPI,
	} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (p *process) openDatabase(context.Context) error {
	var err error
	p.pool, err = p.cfg.Database.Open(serviceName)
	if err != nil {
		return fmt.Errorf("open the database: %w", err)
	}
	p.changes = postgres.NewChanges(p.pool)
	return nil
}

func (p *process) connect(ctx context.Context) error {
	cfg := p.cfg.NATS
	cfg.Name, cfg.InboxPrefix = serviceName, natsauth.InboxPrefix(natsauth.PrincipalDeploys)
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
	p.consumers = consumers.Requested{JetStream: p.js, Cell: p.cell, Service: natsauth.PrincipalDeploys}
	return nil
}

func (p *process) openDirectory(context.Context) error {
	var err error
	p.directory, err = directory.New(directory.Config{JetStream: p.js, Cell: p.cell, Logger: p.tel.Logger})
	if err != nil {
		return fmt.Errorf("directory: %w", err)
	}
	return nil
}

func (p *process) openIngest(context.Context) error {
	cursors, err := cursor.NewMetrics(p.tel.Metrics)
	if err != nil {
		return fmt.Errorf("ingest: %w", err)
	}
	counts, err := metrics.New(p.tel.Metrics)
	if err != nil {
		return fmt.Errorf("ingest: %w", err)
	}
	p.reader = &nats.Reader{
		Pool: p.pool, JetStream: p.js, Cell: p.cell, Logger: p.tel.Logger, Directory: p.directory,
		Consumers:    p.consumers,
		Environments: environment.Rules{Label: p.cfg.Environments.Label, Settle: p.cfg.Environments.Settle},
		History:      history.Rules{GroupLabel: p.cfg.Environments.Label},
		Cached:       p.cfg.Ingest.CachedWorkloads, Tracer: p.tel.Tracer, Cursors: cursors, Metrics: counts,
	}
	if p.consumer, err = p.reader.Consumer(); err != nil {
		return err
	}
	p.reconciler = &nats.Reconciler{
		Pool: p.pool, JetStream: p.js, Cell: p.cell, Logger: p.tel.Logger, Metrics: counts, Trigger: p.reconcile,
	}
	return nil
}

func (p *process) openSinks(context.Context) error {
	metrics, err := sink.NewMetrics(p.tel.Metrics)
	if err != nil {
		return fmt.Errorf("sinks: %w", err)
	}
	var configs []catalog.Config
	if p.cfg.SinksFile != "" {
		if configs, err = catalog.ReadFile(p.cfg.SinksFile); err != nil {
			return fmt.Errorf("sinks_file: %w", err)
		}
	}
	if p.catalog, err = catalog.Build(configs); err != nil {
		return fmt.Errorf("sinks_file: %w", err)
	}
	p.sinks, err = sink.New(sink.Config{
		Cell: p.cell, Pool: p.pool, JetStream: p.js, Logger: p.tel.Logger, Metrics: metrics, Entries: p.catalog.Entries,
		Consumers: p.consumers,
	})
	if err != nil {
		return fmt.Errorf("sinks: %w", err)
	}
	return nil
}

func (p *process) openAPI(context.Context) error {
	tracing, err := p.tel.Connect()
	if err != nil {
		return fmt.Errorf("api: %w", err)
	}
	verifier, err := access.NewVerifier(access.Config{
		Directory: p.directory, Cell: p.cell, Audience: serviceName, StreamLifetime: p.cfg.Access.StreamLifetime,
		Scopes: api.Scopes(),
	})
	if err != nil {
		return fmt.Errorf("api: %w", err)
	}
	handler := api.NewHandler(api.Dependencies{
		Pool: p.pool, Changes: p.changes, Access: verifier, Roles: p.directory, Sinks: p.sinks,
		Rebuild: p.rebuild,
		Stream:  observations{&nats.Releaser{JetStream: p.js, Cell: p.cell}, p}, Projects: p.directory,
		Logger: p.tel.Logger, Now: time.Now, Interceptors: []connect.Interceptor{tracing},
	})
	p.api = service.HTTPServer("api", p.cfg.API, handler,
		service.HTTPOptions{Logger: p.tel.Logger, Metrics: p.tel.Metrics, StopBefore: []string{"database", "nats"}})
	return nil
}

// observations gives the API access to the stream OBSERVED.
type observations struct {
	*nats.Releaser

	process *process
}

// Check reports whether the reader works.
func (o observations) Check(ctx context.Context) error { return o.process.consumer.Check(ctx) }

// Position returns the position of the reader.
func (o observations) Position(ctx context.Context) (at cursor.Position, err error) {
	err = libpostgres.InTx(ctx, o.process.pool, func(tx pgx.Tx) error {
		at, err = o.process.consumer.Position(ctx, tx)
		return err
	})
	return at, err
}

// rebuild rebuilds the read model for the API.
func (p *process) rebuild(
	ctx context.Context, check bool, progress func(readmodel.Progress) error,
) (readmodel.Outcome, error) {
	start := time.Now()
	out, err := rebuild.New(p.reader, progress).Run(ctx, check)
	if err != nil {
		return readmodel.Outcome{}, fmt.Errorf("deploys: %w", err)
	}
	p.tel.Logger.InfoContext(ctx, "rebuilt the tables", slog.Bool(logkey.Check, check),
		slog.Any(logkey.Differences, out.Differences), slog.Duration(logkey.Duration, time.Since(start)))
	if out.Replaced {
		select {
		case p.reconcile <- struct{}{}:
		default:
		}
	}
	return out, nil
}

// parts returns the parts of the service with their dependencies.
func (p *process) parts() []service.Part {
	api := p.api
	api.StartAfter = []string{"database", "changes"}
	return []service.Part{
		p.conn.Part(),
		{Name: "database", Run: p.migrate, Check: libpostgres.Check(p.pool)},
		{Name: "streams", StartAfter: []string{"nats"}, Run: p.findStreams},
		p.directory.Part(),
		{Name: "changes", StartAfter: []string{"database"}, Run: func(ctx context.Context, self *service.Handle) error {
			return p.changes.Run(ctx, self.Ready)
		}},
		nats.Part(p.consumer),
		p.reconciler.Part(),
		{
			Name: "sinks", StartAfter: []string{"database", "streams"},
			Check: func(ctx context.Context) error { return service.Degraded(p.sinks.Check(ctx)) },
			Run: func(ctx context.Context, self *service.Handle) error {
				self.Ready()
				return p.sinks.Run(ctx)
			},
		},
		api,
	}
}

// findStreams waits until the service state has created the streams.
func (p *process) findStreams(ctx context.Context, _ *service.Handle) error {
	for _, name := range []string{
		topology.StreamObserved, topology.StreamDeploys, topology.StreamSinks, topology.StreamDirectory,
	} {
		if _, err := p.js.Stream(ctx, name); err != nil {
			return fmt.Errorf("open stream %s, which the service state creates: %w", name, err)
		}
	}
	return nil
}

func (p *process) migrate(ctx context.Context, _ *service.Handle) error {
	series, err := postgres.Migrations()
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	sinks, err := sink.Migrations()
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	if err := libpostgres.Migrate(ctx, p.pool, p.tel.Logger, append(series, sinks)...); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	return nil
}

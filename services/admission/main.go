package admission

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/config"
	"lockstep.internal/libs/consumers"
	"lockstep.internal/libs/cursor"
	"lockstep.internal/libs/directory"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/natsconn"
	"lockstep.internal/libs/outbox"
	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/libs/seal"
	"lockstep.internal/libs/service"
	"lockstep.internal/libs/telemetry"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/admission/api"
	"lockstep.internal/services/admission/decide"
	"lockstep.internal/services/admission/deliver"
	"lockstep.internal/services/admission/endpoint"
	"lockstep.internal/services/admission/nats"
	"lockstep.internal/services/admission/postgres"
	"lockstep.internal/services/admission/publish"
)

const serviceName = "admission"

// Program describes the service for --help.
func Program() config.Program {
	return config.Program{
		Name: serviceName,
		About: "Decides which CI jobs of one cell may run, and on which runners, before a runner can see them: asks " +
			"admission controllers, which are web servers or policies, and publishes their decisions.",
	}
}

// Main runs the service until ctx is done.
func Main(ctx context.Context, cfg Config) error {
	tel, err := telemetry.Open(ctx, cfg.Telemetry, telemetry.Options{Service: serviceName, Version: service.Version()})
	if err != nil {
		return fmt.Errorf("admission: %w", err)
	}
	defer tel.Close(context.WithoutCancel(ctx)) //nolint:errcheck // only the last spans are lost
	p := &process{cfg: cfg, tel: tel, now: time.Now}
	defer p.close()
	if err := p.assemble(ctx); err != nil {
		return fmt.Errorf("admission: %w", err)
	}
	return service.Run(ctx,
		service.Options{Name: serviceName, Config: cfg.Config, Logger: tel.Logger, Metrics: tel.Metrics}, p.parts()...)
}

// process holds the adapters of the service.
type process struct {
	cfg Config
	tel *telemetry.Telemetry
	now func() time.Time

	key        seal.Key
	pool       *pgxpool.Pool
	asks       *libpostgres.ChangeListener[string]
	conn       *natsconn.Conn
	js         jetstream.JetStream
	directory  *directory.Directory
	runners    *nats.Runners
	jobs       postgres.Jobs
	decider    *decide.Decider
	metrics    *deliver.Metrics
	publisher  *outbox.Publisher
	consumer   *cursor.Consumer[nats.JobEvent]
	dispatcher *deliver.Dispatcher
	api        service.Part
}

func (p *process) close() {
	if p.pool != nil {
		p.pool.Close()
	}
}

func (p *process) assemble(ctx context.Context) error {
	for _, step := range []func(context.Context) error{
		p.openDatabase, p.connect, p.openCopies, p.openJobs, p.openAPI,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (p *process) cell() topology.Cell { return topology.Cell(p.cfg.Cell.Name) }

// publicURL returns the address of this service for controllers.
func (p *process) publicURL() string { return strings.TrimSuffix(p.cfg.Cell.PublicURL, "/") }

func (p *process) openDatabase(context.Context) error {
	var err error
	if p.key, err = p.cfg.Secrets.Open(); err != nil {
		return err
	}
	if p.pool, err = p.cfg.Database.Open(serviceName); err != nil {
		return fmt.Errorf("open the database: %w", err)
	}
	p.asks = libpostgres.NewChangeListener(p.pool, postgres.AskChannel, func(payload string) (string, error) {
		return payload, nil
	})
	decisions, err := postgres.NewMetrics(p.tel.Metrics)
	if err != nil {
		return err
	}
	p.jobs = postgres.Jobs{Pool: p.pool, Encoder: publish.Encoder{Cell: p.cell()}, Metrics: decisions}
	return nil
}

func (p *process) connect(ctx context.Context) error {
	cfg := p.cfg.NATS
	cfg.Name, cfg.InboxPrefix = serviceName, natsauth.InboxPrefix(natsauth.PrincipalAdmission)
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
	return nil
}

func (p *process) openCopies(context.Context) error {
	var err error
	p.directory, err = directory.New(directory.Config{JetStream: p.js, Cell: p.cell(), Logger: p.tel.Logger})
	if err != nil {
		return fmt.Errorf("directory: %w", err)
	}
	p.runners = nats.NewRunners(p.js, p.cell(), p.tel.Logger)
	return nil
}

func (p *process) surroundings() surroundings { return surroundings{p.directory, p.runners} }

func (p *process) openJobs(context.Context) error {
	p.decider = decide.New(decide.Config{Surroundings: p.surroundings(), Retry: decide.DefaultRetry()})
	cursors, err := cursor.NewMetrics(p.tel.Metrics)
	if err != nil {
		return fmt.Errorf("jobs: %w", err)
	}
	reader := &nats.Reader{
		Pool: p.pool, JetStream: p.js, Cell: p.cell(), Logger: p.tel.Logger, Directory: p.surroundings(), Jobs: p.jobs,
		Decider: p.decider, Now: p.now, Metrics: cursors,
		Consumers: consumers.Requested{JetStream: p.js, Cell: p.cell(), Service: natsauth.PrincipalAdmission},
	}
	if p.consumer, err = reader.Consumer(); err != nil {
		return err
	}
	published, err := outbox.NewMetrics(p.tel.Metrics)
	if err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	p.publisher, err = nats.NewPublisher(p.pool, p.conn.Conn, p.jobs.Encoder, p.tel.Logger, published, p.now)
	if err != nil {
		return err
	}
	if p.metrics, err = deliver.NewMetrics(p.tel.Metrics); err != nil {
		return err
	}
	p.dispatcher = deliver.New(deliver.Config{
		Jobs: p.jobs, Decider: p.decider, Changes: p.asks, Key: p.key, Network: p.cfg.Controllers.Config,
		PublicURL: p.publicURL(), Logger: p.tel.Logger, Metrics: p.metrics, Now: p.now,
	})
	return nil
}

func (p *process) openAPI(context.Context) error {
	tracing, err := p.tel.Connect()
	if err != nil {
		return fmt.Errorf("api: %w", err)
	}
	verifier, err := access.NewVerifier(access.Config{
		Directory: p.directory, Cell: p.cell(), Audience: serviceName, StreamLifetime: p.cfg.Access.StreamLifetime,
		Scopes: api.Scopes(),
	})
	if err != nil {
		return fmt.Errorf("api: %w", err)
	}
	mux := http.NewServeMux()
	people := api.NewHandler(api.Dependencies{
		Controllers: postgres.Controllers{Pool: p.pool, Now: p.now}, Jobs: p.jobs, Access: verifier, Directory: p.directory,
		Key: p.key, Logger: p.tel.Logger, Interceptors: []connect.Interceptor{tracing},
	})
	for _, pattern := range api.Patterns() {
		mux.Handle(pattern, p.afterCopies(people))
	}
	mux.Handle(endpoint.Pattern, p.afterCopies(endpoint.NewHandler(endpoint.Config{
		Jobs: p.jobs, Decider: p.decider, Directory: p.directory, Runners: p.runners, Logger: p.tel.Logger, Now: p.now,
	})))
	p.api = service.HTTPServer("api", p.cfg.API, p.tel.HTTP(mux),
		service.HTTPOptions{Logger: p.tel.Logger, Metrics: p.tel.Metrics, StopBefore: []string{"database", "nats"}})
	p.api.StartAfter = []string{"database"}
	return nil
}

// afterCopies refuses requests until the copies are loaded: before, a project that exists would be not_found.
func (p *process) afterCopies(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !p.directory.Ready() || !p.runners.Ready() {
			fault.WriteConnect(w, r, p.tel.Logger, fault.New(errcode.Unavailable,
				"the service has not read the streams of projects, users and runners yet: try again"))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// parts returns the parts of the service with their dependencies.
func (p *process) parts() []service.Part {
	start := func(name string, run func(ctx context.Context, ready func()) error, after ...string) service.Part {
		return service.Part{
			Name: name, StartAfter: after,
			Run: func(ctx context.Context, self *service.Handle) error { return run(ctx, self.Ready) },
		}
	}
	atOnce := func(run func(ctx context.Context) error) func(context.Context, func()) error {
		return func(ctx context.Context, ready func()) error {
			ready()
			return run(ctx)
		}
	}
	checked := func(part service.Part, check func(context.Context) error) service.Part {
		part.Check = check
		return part
	}
	overdue := deliver.Overdue{
		Jobs: p.jobs, Decider: p.decider, Logger: p.tel.Logger, Now: p.now, Keep: p.cfg.Decisions.Keep,
		Metrics: p.metrics,
	}
	// Without its copies, the service would decide without the controllers of groups, or without runners.
	copies := []string{"database", "streams", "directory", "runners"}
	return []service.Part{
		p.conn.Part(),
		{Name: "database", Run: p.migrate, Check: libpostgres.Check(p.pool)},
		{Name: "streams", StartAfter: []string{"nats"}, Run: p.findStreams},
		p.directory.Part(),
		checked(start("runners", p.runners.Run, "nats"), p.runners.Check),
		start("asks", p.asks.Run, "database"),
		checked(start("outbox", atOnce(p.publisher.Run), "database", "nats"), p.publisher.Check),
		checked(start("jobs", atOnce(p.consumer.Run), copies...), p.consumer.Check),
		checked(start("dispatcher", p.dispatcher.Run, append(copies, "asks")...), p.dispatcher.Check),
		start("overdue", overdue.Run, copies...),
		p.api,
	}
}

// migrate creates the schema of the service.
func (p *process) migrate(ctx context.Context, _ *service.Handle) error {
	series, err := postgres.Migrations()
	if err != nil {
		return err
	}
	if err := libpostgres.Migrate(ctx, p.pool, p.tel.Logger, series...); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	return nil
}

// findStreams waits until the service state has created the streams.
func (p *process) findStreams(ctx context.Context, _ *service.Handle) error {
	for _, name := range []string{
		topology.StreamJobs, topology.StreamAdmission, topology.StreamRunners, topology.StreamDirectory,
	} {
		if _, err := p.js.Stream(ctx, name); err != nil {
			return fmt.Errorf("open stream %s, which the service state creates: %w", name, err)
		}
	}
	return nil
}

package runners

import (
	"context"
	"fmt"
	"net/http"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/directory"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/natsconn"
	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/libs/service"
	"lockstep.internal/libs/telemetry"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
)

const serviceName = "runners"

// Program describes the service for --help.
func Program() config.Program {
	return config.Program{
		Name: serviceName,
		About: "Gives the CI jobs of one cell to GitLab runners. It is not complete: it connects to NATS and PostgreSQL, " +
			"and refuses every request of runners.",
	}
}

// Main runs the service until ctx is done.
func Main(ctx context.Context, cfg Config) error {
	tel, err := telemetry.Open(ctx, cfg.Telemetry, telemetry.Options{Service: serviceName, Version: service.Version()})
	if err != nil {
		return fmt.Errorf("runners: %w", err)
	}
	defer tel.Close(context.WithoutCancel(ctx)) //nolint:errcheck // only the last spans are lost
	p, err := assemble(ctx, cfg, tel)
	if err != nil {
		return fmt.Errorf("runners: %w", err)
	}
	defer p.pool.Close()
	return service.Run(ctx,
		service.Options{Name: serviceName, Config: cfg.Config, Logger: tel.Logger, Metrics: tel.Metrics}, p.parts()...)
}

// process holds the adapters of the service.
type process struct {
	cfg       Config
	tel       *telemetry.Telemetry
	pool      *pgxpool.Pool
	conn      *natsconn.Conn
	js        jetstream.JetStream
	directory *directory.Directory
}

func assemble(ctx context.Context, cfg Config, tel *telemetry.Telemetry) (*process, error) {
	p := &process{cfg: cfg, tel: tel}
	for _, step := range []func(context.Context) error{p.openDatabase, p.connect, p.openDirectory} {
		if err := step(ctx); err != nil {
			if p.pool != nil {
				p.pool.Close()
			}
			return nil, err
		}
	}
	return p, nil
}

func (p *process) openDatabase(context.Context) error {
	var err error
	if p.pool, err = p.cfg.Database.Open(serviceName); err != nil {
		return fmt.Errorf("open the database: %w", err)
	}
	return nil
}

func (p *process) connect(ctx context.Context) error {
	cfg := p.cfg.NATS
	cfg.Name, cfg.InboxPrefix = serviceName, natsauth.InboxPrefix(natsauth.PrincipalRunners)
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

func (p *process) openDirectory(context.Context) error {
	var err error
	p.directory, err = directory.New(directory.Config{
		JetStream: p.js, Cell: topology.Cell(p.cfg.Cell.Name), Logger: p.tel.Logger,
	})
	if err != nil {
		return fmt.Errorf("directory: %w", err)
	}
	return nil
}

// parts returns the parts of the service with their dependencies.
func (p *process) parts() []service.Part {
	api := service.HTTPServer("api", p.cfg.API, p.tel.HTTP(fault.Handler(p.tel.Logger, refuse)),
		service.HTTPOptions{Logger: p.tel.Logger, Metrics: p.tel.Metrics, StopBefore: []string{"database", "nats"}})
	api.StartAfter = []string{"database"}
	return []service.Part{
		p.conn.Part(),
		{Name: "database", Run: p.migrate, Check: libpostgres.Check(p.pool)},
		{Name: "streams", StartAfter: []string{"nats"}, Run: p.findStreams},
		p.directory.Part(),
		api,
	}
}

// refuse answers every request: this version has no jobs.
func refuse(http.ResponseWriter, *http.Request) error {
	return fault.New(errcode.Unimplemented, "this version gives no jobs to runners: use a later one")
}

// migrate creates the schema of the service.
func (p *process) migrate(ctx context.Context, _ *service.Handle) error {
	if err := libpostgres.Migrate(ctx, p.pool, p.tel.Logger); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	return nil
}

// findStreams waits until the service state has created the streams.
func (p *process) findStreams(ctx context.Context, _ *service.Handle) error {
	for _, name := range []string{topology.StreamJobs, topology.StreamDirectory} {
		if _, err := p.js.Stream(ctx, name); err != nil {
			return fmt.Errorf("open stream %s, which the service state creates: %w", name, err)
		}
	}
	return nil
}

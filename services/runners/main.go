package runners

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/certpool"
	"lockstep.internal/libs/config"
	"lockstep.internal/libs/consumers"
	"lockstep.internal/libs/cursor"
	"lockstep.internal/libs/directory"
	"lockstep.internal/libs/jobtoken"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/natsconn"
	"lockstep.internal/libs/outbox"
	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/libs/service"
	"lockstep.internal/libs/telemetry"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/runners/api"
	"lockstep.internal/services/runners/artifact"
	"lockstep.internal/services/runners/assign"
	"lockstep.internal/services/runners/execution"
	"lockstep.internal/services/runners/move"
	"lockstep.internal/services/runners/nats"
	"lockstep.internal/services/runners/objects"
	"lockstep.internal/services/runners/personaltoken"
	"lockstep.internal/services/runners/postgres"
	"lockstep.internal/services/runners/publish"
	"lockstep.internal/services/runners/registration"
	"lockstep.internal/services/runners/rpc"
	"lockstep.internal/services/runners/runner"
	"lockstep.internal/services/runners/schedule"
	"lockstep.internal/services/runners/signing"
)

const (
	serviceName = "runners"
	// maxDefinitions is the size of the definitions that a replica remembers, as the database has them.
	maxDefinitions = 32 << 20
)

// Program describes the service for --help.
func Program() config.Program {
	return config.Program{
		Name: serviceName,
		About: "Gives the CI jobs of one cell to GitLab runners: creates pipelines from .gitlab-ci.yml, queues their jobs, " +
			"serves the HTTP contract of unmodified GitLab runners, and keeps traces and artifacts.",
	}
}

// Main runs the service until ctx is done.
func Main(ctx context.Context, cfg Config) error {
	tel, err := telemetry.Open(ctx, cfg.Telemetry, telemetry.Options{Service: serviceName, Version: service.Version()})
	if err != nil {
		return fmt.Errorf("runners: %w", err)
	}
	defer tel.Close(context.WithoutCancel(ctx)) //nolint:errcheck // only the last spans are lost
	p := &process{cfg: cfg, tel: tel, now: time.Now}
	defer p.close()
	if err := p.assemble(ctx); err != nil {
		return fmt.Errorf("runners: %w", err)
	}
	return service.Run(ctx,
		service.Options{Name: serviceName, Config: cfg.Config, Logger: tel.Logger, Metrics: tel.Metrics}, p.parts()...)
}

// process holds the adapters of the service.
type process struct {
	cfg Config
	tel *telemetry.Telemetry
	now func() time.Time

	pool    *pgxpool.Pool
	objects objects.Store
	conn    *natsconn.Conn
	js      jetstream.JetStream
	// mapConn is nil if the cell map is in the NATS of this cell. mapJS is never nil.
	mapConn   *natsconn.Conn
	mapJS     jetstream.JetStream
	directory *directory.Directory
	publisher *outbox.Publisher
	// decisions is nil without admission.
	decisions *cursor.Consumer[publish.Admission]

	jobChanges, traceChanges, runnerChanges *libpostgres.ChangeListener[int64]
	pipelineChanges                         *postgres.PipelineChanges

	jobs       postgres.Jobs
	executions postgres.Executions
	picks      picks
	keyring    *signing.Keyring
	registry   *runner.Registry
	runners    *registration.Service
	scheduler  *schedule.Scheduler
	queue      *assign.Assigner
	execution  *execution.Jobs
	artifacts  *execution.Artifacts
	tails      *execution.Tails
	api        service.Part

	users  *personaltoken.Authenticator
	moves  postgres.Moves
	driver *move.Driver
	state  rpc.State
	// otherCells is the client for runners services of other cells.
	otherCells *http.Client
}

func (p *process) close() {
	if p.pool != nil {
		p.pool.Close()
	}
}

func (p *process) assemble(ctx context.Context) error {
	for _, step := range []func(context.Context) error{
		p.openDatabase, p.openObjects, p.connect, p.connectMap, p.openDirectory, p.openKeys, p.openRunners, p.openJobs,
		p.openEvents, p.openQueue, p.openUsers, p.openMoves, p.openAPI,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (p *process) openDatabase(context.Context) error {
	var err error
	if p.pool, err = p.cfg.Database.Open(serviceName); err != nil {
		return fmt.Errorf("open the database: %w", err)
	}
	p.jobChanges, p.traceChanges = postgres.NewJobChanges(p.pool), postgres.NewTraceChanges(p.pool)
	p.runnerChanges, p.pipelineChanges = postgres.NewRunnerChanges(p.pool), postgres.NewPipelineChanges(p.pool)
	p.jobs = postgres.Jobs{Encoder: publish.Encoder{Cell: p.cell()}}
	return nil
}

func (p *process) cell() topology.Cell { return topology.Cell(p.cfg.Cell.Name) }

func (p *process) openObjects(context.Context) error {
	var err error
	if p.objects, err = objects.Open(p.cfg.Artifacts.Store); err != nil {
		return fmt.Errorf("open the store of artifacts: %w", err)
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

// openEvents opens what publishes events, and what reads the decisions of admission.
func (p *process) openEvents(context.Context) error {
	outboxes, err := outbox.NewMetrics(p.tel.Metrics)
	if err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	p.publisher, err = nats.Publisher{
		Pool: p.pool, Conn: p.conn.Conn, Encoder: p.jobs.Encoder, Runners: p.runnerStore(), Scheduler: p.scheduler,
		Logger: p.tel.Logger, Metrics: outboxes,
	}.Open()
	if err != nil || !p.cfg.Admission.Enabled {
		return err
	}
	cursors, err := cursor.NewMetrics(p.tel.Metrics)
	if err != nil {
		return fmt.Errorf("admission: %w", err)
	}
	p.decisions, err = nats.AdmissionReader{
		Pool: p.pool, JetStream: p.js, Cell: p.cell(), Scheduler: p.scheduler, Logger: p.tel.Logger, Metrics: cursors,
		Consumers: consumers.Requested{JetStream: p.js, Cell: p.cell(), Service: serviceName},
	}.Open()
	return err
}

func (p *process) runnerStore() postgres.Runners {
	return postgres.Runners{Pool: p.pool, Encoder: p.jobs.Encoder, Now: p.now}
}

// connectMap connects to the NATS with the cell map, if that is another one.
func (p *process) connectMap(ctx context.Context) error {
	if p.mapJS = p.js; p.cfg.Map.URL == "" {
		return nil
	}
	cfg := natsconn.DefaultConfig()
	cfg.URL, cfg.NKeySeedFile, cfg.TLS.CAFile = p.cfg.Map.URL, p.cfg.Map.NKeySeedFile, p.cfg.Map.CAFile
	cfg.Name, cfg.InboxPrefix = serviceName, natsauth.InboxPrefix(natsauth.CellWriter(p.cell()).Name)
	var err error
	if p.mapConn, err = natsconn.Connect(ctx, cfg, p.tel.Logger); err != nil {
		return fmt.Errorf("connect to the NATS of the cell map: %w", err)
	}
	if p.mapJS, err = p.mapConn.JetStream(); err != nil {
		return fmt.Errorf("connect to the NATS of the cell map: %w", err)
	}
	return nil
}

func (p *process) openDirectory(context.Context) error {
	var err error
	p.directory, err = directory.New(directory.Config{JetStream: p.js, Cell: p.cell(), Logger: p.tel.Logger})
	if err != nil {
		return fmt.Errorf("directory: %w", err)
	}
	return nil
}

func (p *process) openKeys(context.Context) error {
	key, err := p.cfg.Signing.Open()
	if err != nil {
		return err
	}
	p.moves = postgres.Moves{Pool: p.pool, Jobs: p.jobs, Key: key, Now: p.now}
	p.keyring = &signing.Keyring{
		Store: &postgres.SigningKeys{
			DB: p.pool, Key: key, Schedule: signing.Schedule, Logger: p.tel.Logger, Now: p.now,
		},
		Cell: p.cell(), Logger: p.tel.Logger, Now: p.now, Registry: p.cfg.Registry.Host != "",
	}
	return nil
}

func (p *process) openRunners(context.Context) error {
	store := p.runnerStore()
	p.registry = runner.NewRegistry(runner.Config{
		Store: store, Changes: p.runnerChanges.Subscribe(), Logger: p.tel.Logger, Now: p.now,
	})
	p.runners = registration.New(registration.Config{
		Cell: p.cell(), Store: store, Registry: p.registry, Directory: p.directory, Logger: p.tel.Logger,
		TokenLifetime: p.cfg.Runners.TokenLifetime, Now: p.now,
	})
	return nil
}

func (p *process) places() registration.Places { return registration.Places{Directory: p.directory} }

func (p *process) openJobs(context.Context) error {
	server, err := url.Parse(p.cfg.Cell.PublicURL)
	if err != nil {
		return fmt.Errorf("cell.public_url: %w", err)
	}
	if p.cfg.Cell.PublicURL == "" {
		server = nil
	}
	p.scheduler = &schedule.Scheduler{
		Store: postgres.Pipelines{Pool: p.pool, Jobs: p.jobs}, Now: p.now, Logger: p.tel.Logger, ServerURL: server,
		Admission: schedule.Admission(p.cfg.Admission),
	}
	p.executions = postgres.Executions{Pool: p.pool, Jobs: p.jobs, Followers: p.scheduler}
	p.execution = execution.NewJobs(execution.Config{
		Store: p.executions, Now: p.now, TraceLimit: int64(p.cfg.Traces.Limit),
		Tokens: execution.NewTokens(jobtoken.NewVerifier(p.keyring.Find, p.now), p.keyring.Refresh),
	})
	p.artifacts = execution.NewArtifacts(execution.ArtifactConfig{
		Jobs: p.execution, Store: postgres.Artifacts{Pool: p.pool}, Objects: p.objects, Sizes: p.sizes(),
		Bounds: artifact.DefaultBounds(),
		Expiry: artifact.Expiry{Default: p.cfg.Artifacts.ExpireIn, Max: p.cfg.Artifacts.MaxExpire},
	})
	p.tails = execution.NewTails(execution.TailConfig{
		Store: postgres.Traces{Pool: p.pool}, Traces: p.traceChanges, Jobs: p.jobChanges, Logger: p.tel.Logger, Now: p.now,
	})
	return nil
}

func (p *process) openQueue(context.Context) error {
	metrics, err := assign.NewMetrics(p.tel.Metrics)
	if err != nil {
		return fmt.Errorf("queue: %w", err)
	}
	p.picks = picks{postgres.Picks{
		Pool: p.pool, Jobs: p.jobs, Now: p.now, Definitions: postgres.NewDefinitions(maxDefinitions),
	}, p.executions}
	p.queue = assign.New(assign.Config{
		Cell: p.cell(), Runners: waiting{p.registry, p.places(), p.now}, Store: p.picks, Tokens: p.keyring,
		Payloads: assign.Answers{Registry: assign.Registry{Host: p.cfg.Registry.Host}}, Changes: p.jobChanges,
		Logger: p.tel.Logger, Metrics: metrics, Now: p.now,
	})
	return nil
}

// sizes returns the largest sizes of artifacts.
func (p *process) sizes() artifact.Sizes {
	sizes := artifact.DefaultSizes()
	sizes.Archive = int64(p.cfg.Artifacts.MaxSize)
	return sizes
}

// client returns a client for requests to another service, whose certificate is one of the CAs in a file; empty for
// those of the system. Without a timeout, each call has its own.
func client(setting, caFile string, timeout time.Duration) (*http.Client, error) {
	secure := &tls.Config{MinVersion: tls.VersionTLS12}
	if caFile != "" {
		var err error
		if secure.RootCAs, err = certpool.Load(caFile); err != nil {
			return nil, fmt.Errorf("%s: %w", setting, err)
		}
	}
	return &http.Client{
		Timeout: timeout, Transport: &http.Transport{TLSClientConfig: secure, ForceAttemptHTTP2: true},
	}, nil
}

// openUsers opens the check of personal access tokens.
func (p *process) openUsers(context.Context) error {
	verifier, err := p.verifier()
	if err != nil {
		return err
	}
	state, err := client("state.ca_file", p.cfg.State.CAFile, stateTimeout)
	if err != nil {
		return err
	}
	p.users = personaltoken.New(personaltoken.Config{
		Exchanger: personaltoken.NewState(state, p.cfg.State.URL, serviceName), Verifier: verifier, Users: p.directory,
		Now: p.now,
	})
	return nil
}

// verifier returns the check of access tokens.
func (p *process) verifier() (*access.Verifier, error) {
	verifier, err := access.NewVerifier(access.Config{
		Directory: p.directory, Cell: p.cell(), Audience: serviceName, StreamLifetime: p.cfg.Access.StreamLifetime,
		Scopes: api.Scopes(),
	})
	if err != nil {
		return nil, fmt.Errorf("api: %w", err)
	}
	return verifier, nil
}

const stateTimeout = 10 * time.Second

package runners

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"connectrpc.com/connect"

	"lockstep.internal/libs/cellmap"
	"lockstep.internal/libs/directory"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/logkey"
	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/libs/readmodel"
	"lockstep.internal/libs/service"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/api"
	"lockstep.internal/services/runners/arrival"
	"lockstep.internal/services/runners/execution"
	"lockstep.internal/services/runners/gitlab"
	"lockstep.internal/services/runners/nats"
	"lockstep.internal/services/runners/postgres"
	"lockstep.internal/services/runners/rebuild"
	"lockstep.internal/services/runners/registration"
	"lockstep.internal/services/runners/registry"
	"lockstep.internal/services/runners/signing"
	"lockstep.internal/services/runners/stuck"
)

func (p *process) openAPI(context.Context) error {
	tracing, err := p.tel.Connect()
	if err != nil {
		return fmt.Errorf("api: %w", err)
	}
	verifier, err := p.verifier()
	if err != nil {
		return err
	}
	programs, err := p.programs()
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/api/v4/", gitlab.NewHandler(gitlab.Config{
		Runners: programs, Queue: p.queue, Jobs: p.execution, Artifacts: p.artifacts, Hold: p.cfg.Queue.Hold,
		MaxTracePart: int64(p.cfg.Traces.Limit), Logger: p.tel.Logger,
	}))
	people := api.NewHandler(api.Dependencies{
		Pool: p.pool, Scheduler: p.scheduler, JobChanges: p.jobChanges, PipelineChanges: p.pipelineChanges,
		Access: verifier, Directory: p.directory, Registry: p.registry, Runners: p.runners,
		Moves:  p.moveService(),
		Traces: traces{postgres.Traces{Pool: p.pool}}, Tail: p.tails.TailHandler, Archives: p.artifacts,
		Rebuild: p.rebuild, MaxStreams: p.cfg.Access.MaxStreams, Logger: p.tel.Logger, Now: p.now,
		Interceptors: []connect.Interceptor{tracing},
	})
	for _, pattern := range api.Patterns() {
		mux.Handle(pattern, p.afterDirectory(people))
	}
	mux.Handle(arrival.Pattern(), p.afterDirectory(p.arrivals(tracing)))
	mux.Handle("GET "+signing.KeySetPath, p.keyring.Handler())
	if p.cfg.Registry.Host != "" {
		mux.Handle("GET /jwt/auth", registry.NewHandler(registry.Config{
			Jobs: execution.Registry{Jobs: p.execution, Path: p.registryPath}, Issuer: p.cfg.Registry.Issuer,
			Service: p.cfg.Registry.Service, Key: p.keyring.Current, Now: p.now, Logger: p.tel.Logger,
		}))
	}
	p.api = service.HTTPServer("api", p.cfg.API, p.tel.HTTP(mux),
		service.HTTPOptions{Logger: p.tel.Logger, Metrics: p.tel.Metrics, StopBefore: []string{"database", "nats", "queue"}})
	p.api.StartAfter = []string{"database"}
	return nil
}

// afterDirectory refuses requests until the directory is loaded: before, a project that exists would be not_found.
func (p *process) afterDirectory(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !p.directory.Ready() {
			fault.WriteConnect(w, r, p.tel.Logger, fault.New(errcode.Unavailable,
				"the service has not read the directory of projects and users yet: try again"))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// programs returns what runners may do with themselves.
func (p *process) programs() (*registration.Programs, error) {
	token := ""
	if p.cfg.Runners.RegistrationTokenFile.IsSet() {
		var err error
		if token, err = p.cfg.Runners.RegistrationTokenFile.Read(); err != nil {
			return nil, fmt.Errorf("runners.registration_token_file: %w", err)
		}
	}
	return registration.NewPrograms(p.runners, p.users, token), nil
}

// registryPath returns the path of a project in the container registry.
func (p *process) registryPath(projectID int64) (string, bool) {
	_, found := p.directory.Place(directory.Scope{Kind: directory.Project, ID: projectID})
	return fmt.Sprintf("project-%d", projectID), found
}

// rebuild rebuilds the table of jobs for the API.
func (p *process) rebuild(
	ctx context.Context, check bool, progress func(readmodel.Progress) error,
) (readmodel.Outcome, error) {
	start := p.now()
	out, err := rebuild.New(p.pool, nats.Jobs{JetStream: p.js, Cell: p.cell()}, progress).Run(ctx, check)
	if err != nil {
		return readmodel.Outcome{}, fmt.Errorf("runners: %w", err)
	}
	p.tel.Logger.InfoContext(ctx, "rebuilt the table of jobs", slog.Bool(logkey.Check, check),
		slog.Any(logkey.Differences, out.Differences), slog.Duration(logkey.Duration, time.Since(start)))
	return out, nil
}

// parts returns the parts of the service with their dependencies.
func (p *process) parts() []service.Part {
	afterDatabase := []string{"database"}
	listen := func(name string, changes interface {
		Run(ctx context.Context, ready func()) error
	},
	) service.Part {
		return service.Part{
			Name: name, StartAfter: afterDatabase,
			Run: func(ctx context.Context, self *service.Handle) error { return changes.Run(ctx, self.Ready) },
		}
	}
	parts := []service.Part{
		p.conn.Part(),
		{Name: "database", Run: p.migrate, Check: libpostgres.Check(p.pool)},
		{Name: "streams", StartAfter: []string{"nats"}, Run: p.findStreams},
		{Name: "objects", Run: p.closeObjects, Check: p.objects.Check},
		p.directory.Part(),
		{Name: "changes", StartAfter: afterDatabase, Run: func(ctx context.Context, self *service.Handle) error {
			return libpostgres.Listen(ctx, p.pool, self.Ready, p.jobChanges, p.traceChanges, p.runnerChanges, p.pipelineChanges)
		}},
		{Name: "outbox", StartAfter: []string{"database", "nats"}, Check: p.publisher.Check, Run: func(
			ctx context.Context, self *service.Handle,
		) error {
			self.Ready()
			return p.publisher.Run(ctx)
		}},
		listen("signing_keys", p.keyring),
		{Name: "runners", StartAfter: []string{"changes"}, Check: p.registry.Check, Run: func(
			ctx context.Context, self *service.Handle,
		) error {
			p.registry.Run(ctx, self.Ready)
			return nil
		}},
		{Name: "queue", StartAfter: []string{"changes"}, Run: func(ctx context.Context, self *service.Handle) error {
			p.queue.Run(ctx, self.Ready)
			return nil
		}},
		{Name: "tails", StartAfter: []string{"changes"}, Run: func(
			ctx context.Context, self *service.Handle,
		) error {
			p.tails.Run(ctx, self.Ready)
			return nil
		}},
		{Name: "delays", StartAfter: afterDatabase, Run: func(ctx context.Context, self *service.Handle) error {
			self.Ready()
			return p.scheduler.RunDelayed(ctx)
		}},
		{Name: "admission_deadlines", StartAfter: afterDatabase, Run: func(
			ctx context.Context, self *service.Handle,
		) error {
			self.Ready()
			return p.scheduler.RunAdmission(ctx)
		}},
		listen("overdue", execution.Maintenance{
			Pool: p.pool, Store: p.executions, Logger: p.tel.Logger, Now: p.now, Rules: execution.Rules{
				Confirm: p.cfg.Queue.ConfirmTimeout, Silence: p.cfg.Queue.SilenceTimeout, Cancel: p.cfg.Queue.CancelTimeout,
			},
		}),
		listen("stuck", stuck.Watch{
			Pool: p.pool, Store: p.picks, Runners: p.registry.All, Place: p.places().Place, Logger: p.tel.Logger, Now: p.now,
			Rules: stuck.Rules{Stuck: p.cfg.Queue.StuckTimeout, Unmatched: p.cfg.Queue.MatchTimeout},
		}),
		listen("cleaner", execution.Cleaner{
			Pool: p.pool, Store: postgres.Artifacts{Pool: p.pool}, Objects: p.objects, Logger: p.tel.Logger, Now: p.now,
		}),
		listen("moves", p.driver),
		p.api,
	}
	return slices.Concat(parts, p.admissionParts(), p.mapParts())
}

// admissionParts returns the part that applies the decisions of admission.
func (p *process) admissionParts() []service.Part {
	if p.decisions == nil {
		return nil
	}
	return []service.Part{{
		Name: "decisions", StartAfter: []string{"database", "streams"}, Check: p.decisions.Check, Run: func(
			ctx context.Context, self *service.Handle,
		) error {
			self.Ready()
			return p.decisions.Run(ctx)
		},
	}}
}

// mapParts returns the parts that keep the entry of the cell in the cell map.
func (p *process) mapParts() []service.Part {
	var parts []service.Part
	connection := "nats"
	if p.mapConn != nil {
		other := p.mapConn.Part()
		connection = "map_nats"
		other.Name = connection
		parts = append(parts, other)
	}
	if p.cfg.Cell.URL == "" {
		return parts
	}
	announcer := cellmap.Announcer{
		Moves:  p.announced,
		Writer: cellmap.Writer{JetStream: p.mapJS}, Logger: p.tel.Logger, Changed: p.keyring.Changed,
		Cell: func() cellmap.Cell {
			return p.keyring.Entry(signing.Addresses{URL: p.cfg.Cell.URL, RedirectURL: p.cfg.Cell.RedirectURL})
		},
	}
	return append(parts, service.Part{
		Name: "cell_map", StartAfter: []string{connection, "signing_keys"}, Run: func(
			ctx context.Context, self *service.Handle,
		) error {
			announcer.Run(ctx, self.Ready)
			return nil
		},
	})
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
	if err := libpostgres.ReserveIDs(ctx, p.pool, p.cfg.Cell.Number); err != nil {
		return err
	}
	return p.runnerStore().PublishNew(ctx)
}

// findStreams waits until the service state has created the streams.
func (p *process) findStreams(ctx context.Context, _ *service.Handle) error {
	for _, name := range []string{topology.StreamJobs, topology.StreamRunners, topology.StreamDirectory} {
		if _, err := p.js.Stream(ctx, name); err != nil {
			return fmt.Errorf("open stream %s, which the service state creates: %w", name, err)
		}
	}
	return nil
}

// closeObjects closes the store of artifacts when the service stops.
func (p *process) closeObjects(ctx context.Context, self *service.Handle) error {
	self.Ready()
	<-ctx.Done()
	return p.objects.Close()
}

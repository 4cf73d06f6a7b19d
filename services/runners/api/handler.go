package api

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"connectrpc.com/connect"
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/fault"
	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/schemas/gen/lockstep/runners/v1/runnersv1connect"
	"lockstep.internal/services/runners/postgres"
	"lockstep.internal/services/runners/schedule"
)

// Dependencies of the API, all required.
type Dependencies struct {
	Pool *pgxpool.Pool
	// Scheduler creates and changes pipelines.
	Scheduler Scheduler
	// JobChanges and PipelineChanges wake watches.
	JobChanges      *postgres.JobChanges
	PipelineChanges *postgres.PipelineChanges
	// Access authenticates callers by their tokens. Directory has their roles.
	Access    Access
	Directory Directory
	// Registry has the runners of the cell, and Runners changes them.
	Registry Registry
	Runners  Runners
	// Moves moves organizations to other cells.
	Moves Moves
	// Traces has the output of jobs, and Tail follows it. Archives has their artifacts.
	Traces   Traces
	Tail     Tail
	Archives Archives
	Rebuild  Rebuild
	// MaxStreams limits the open streams of a user.
	MaxStreams int
	Logger     *slog.Logger
	Now        func() time.Time
	// Interceptors run before all others, such as tracing.
	Interceptors []connect.Interceptor
}

// Access authenticates callers; an [access.Verifier].
type Access interface {
	Handler(reject func(http.ResponseWriter, *http.Request, error), next http.Handler) http.Handler
	HandlerFor(
		needed access.Scope, reject func(http.ResponseWriter, *http.Request, error), next http.Handler,
	) http.Handler
	Interceptor() connect.Interceptor
}

// Scheduler creates and changes pipelines; a [schedule.Scheduler].
type Scheduler interface {
	Create(ctx context.Context, r schedule.Request) (schedule.Pipeline, error)
	CancelPipeline(ctx context.Context, id, userID int64) error
	RetryPipeline(ctx context.Context, id int64) error
	CancelJob(ctx context.Context, id, userID int64) error
	RetryJob(ctx context.Context, id int64) (int64, error)
}

// Patterns of [http.ServeMux] under which the handler of [NewHandler] is mounted.
func Patterns() []string {
	return []string{
		"/" + runnersv1connect.JobServiceName + "/",
		"/" + runnersv1connect.MoveServiceName + "/",
		"/" + runnersv1connect.OperationServiceName + "/",
		"/" + runnersv1connect.PipelineServiceName + "/",
		"/" + runnersv1connect.RunnerServiceName + "/",
		tracePattern,
		archivePattern,
	}
}

// NewHandler returns the handler of the API. Its scopes are those of [Scopes], which d.Access must have.
func NewHandler(d Dependencies) http.Handler {
	interceptors := append([]connect.Interceptor{fault.NewInterceptor(d.Logger)}, d.Interceptors...)
	interceptors = append(interceptors, libpostgres.UnavailableInterceptor(), d.Access.Interceptor(),
		limits().Interceptor())
	options := connect.WithHandlerOptions(connect.WithInterceptors(interceptors...), connect.WithReadMaxBytes(maxRequest))
	views := postgres.Views{Pool: d.Pool}
	allowed, open := permissions{d.Directory}, newStreams(d.MaxStreams)
	jobs := &jobService{
		views: views, allowed: allowed, scheduler: d.Scheduler, registry: d.Registry, contacts: d.Runners,
		directory: d.Directory, now: d.Now,
	}
	calls := http.NewServeMux()
	calls.Handle(runnersv1connect.NewPipelineServiceHandler(&pipelineService{
		views: views, allowed: allowed, scheduler: d.Scheduler, directory: d.Directory, now: d.Now,
		jobChanges: d.JobChanges, pipelineChanges: d.PipelineChanges, streams: open,
	}, options))
	calls.Handle(runnersv1connect.NewJobServiceHandler(jobs, options))
	calls.Handle(runnersv1connect.NewRunnerServiceHandler(&runnerService{runners: d.Runners, now: d.Now}, options))
	calls.Handle(runnersv1connect.NewMoveServiceHandler(&moveService{moves: d.Moves}, options))
	calls.Handle(runnersv1connect.NewOperationServiceHandler(&operationService{rebuild: d.Rebuild, now: d.Now}, options))

	mux := http.NewServeMux()
	mux.Handle("/", d.Access.Handler(func(w http.ResponseWriter, r *http.Request, err error) {
		fault.WriteConnect(w, r, d.Logger, err)
	}, calls))
	files := &fileHandler{
		jobs: jobs, traces: d.Traces, tail: d.Tail, archives: d.Archives, streams: open, logger: d.Logger,
	}
	for pattern, serve := range map[string]func(http.ResponseWriter, *http.Request) error{
		tracePattern: files.trace, archivePattern: files.archive,
	} {
		reject := func(w http.ResponseWriter, r *http.Request, err error) { fault.WriteHTTP(w, r, d.Logger, err) }
		mux.Handle(pattern, d.Access.HandlerFor(access.ScopeRead, reject, fault.Handler(d.Logger, unavailable(serve))))
	}
	return mux
}

// unavailable maps errors of a database that is down.
func unavailable(
	serve func(http.ResponseWriter, *http.Request) error,
) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		if err := serve(w, r); err != nil {
			return libpostgres.Unavailable(r.Context(), err)
		}
		return nil
	}
}

package api

import (
	"log/slog"
	"net/http"
	"time"

	"connectrpc.com/connect"
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/fault"
	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/schemas/gen/lockstep/deploys/v1/deploysv1connect"
	"lockstep.internal/services/deploys/postgres"
)

// Dependencies of the API, all required.
type Dependencies struct {
	Pool    *pgxpool.Pool
	Changes *postgres.Changes
	// Access authenticates callers by their tokens. Roles returns the agents that they may read.
	Access  Access
	Roles   access.Roles
	Sinks   Sinks
	Rebuild Rebuild
	// Stream releases clusters and reports whether its reader works. Projects looks up projects.
	Stream   Stream
	Projects Projects
	Logger   *slog.Logger
	Now      func() time.Time
	// Interceptors run before all others, such as tracing.
	Interceptors []connect.Interceptor
}

// Access authenticates callers; an [access.Verifier].
type Access interface {
	Handler(reject func(http.ResponseWriter, *http.Request, error), next http.Handler) http.Handler
	Interceptor() connect.Interceptor
}

// NewHandler returns the handler of all services of the API.
func NewHandler(d Dependencies) http.Handler {
	interceptors := append([]connect.Interceptor{fault.NewInterceptor(d.Logger)}, d.Interceptors...)
	interceptors = append(interceptors, libpostgres.UnavailableInterceptor(), d.Access.Interceptor(),
		limits().Interceptor())
	options := connect.WithHandlerOptions(connect.WithInterceptors(interceptors...), connect.WithReadMaxBytes(maxRequest))
	mux := http.NewServeMux()
	rollouts := &postgres.Rollouts{DB: d.Pool}
	mux.Handle(deploysv1connect.NewRolloutServiceHandler(&rolloutService{
		rollouts: rollouts, roles: d.Roles, changes: d.Changes, stream: d.Stream, now: d.Now,
		stats: make(semaphore, maxStats),
	}, options))
	mux.Handle(deploysv1connect.NewSinkServiceHandler(&sinkService{sinks: d.Sinks, pool: d.Pool}, options))
	mux.Handle(deploysv1connect.NewOperationServiceHandler(&operationService{rebuild: d.Rebuild, now: d.Now}, options))
	mux.Handle(deploysv1connect.NewClusterServiceHandler(&clusterService{
		clusters: &postgres.Clusters{Pool: d.Pool}, stream: d.Stream, projects: d.Projects, logger: d.Logger, now: d.Now,
	}, options))
	reject := func(w http.ResponseWriter, r *http.Request, err error) { fault.WriteConnect(w, r, d.Logger, err) }
	return d.Access.Handler(reject, mux)
}

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
	"lockstep.internal/schemas/gen/lockstep/deploys/v1/deploysv1connect"
	"lockstep.internal/services/deploys/postgres"
)

// Dependencies of the API, all required.
type Dependencies struct {
	Pool    *pgxpool.Pool
	Changes *postgres.Changes
	// Access lets callers in by their tokens, and Roles says what they may read.
	Access  connect.Interceptor
	Roles   access.Roles
	Sinks   Sinks
	Rebuild Rebuild
	// Stream is asked about clusters, and Projects who may have them.
	Stream   Stream
	Projects Projects
	Logger   *slog.Logger
	Now      func() time.Time
	// Interceptors that come before all others, such as tracing.
	Interceptors []connect.Interceptor
}

// Rebuild makes what is derived from the stream anew, and unless it shall only check puts it in
// place. told hears how far the stream is read; its error ends it.
type Rebuild func(ctx context.Context, check bool, told func(sequence, last uint64) error) (Rebuilt, error)

// Rebuilt is what a rebuild found.
type Rebuilt struct {
	Tables      []postgres.RebuiltTable
	Differences []string
	Replaced    bool
}

// NewHandler serves every service of the API.
func NewHandler(d Dependencies) http.Handler {
	interceptors := append([]connect.Interceptor{fault.NewInterceptor(d.Logger)}, d.Interceptors...)
	options := connect.WithHandlerOptions(connect.WithInterceptors(append(interceptors, libpostgres.UnavailableInterceptor(), d.Access, newLimits())...), connect.WithReadMaxBytes(maxRequest))
	mux := http.NewServeMux()
	rollouts := &postgres.Rollouts{DB: d.Pool}
	mux.Handle(deploysv1connect.NewRolloutServiceHandler(&rolloutService{rollouts: rollouts, roles: d.Roles, changes: d.Changes, now: d.Now, stats: make(turns, atOnce)}, options))
	mux.Handle(deploysv1connect.NewSinkServiceHandler(&sinkService{sinks: d.Sinks, pool: d.Pool}, options))
	mux.Handle(deploysv1connect.NewOperationServiceHandler(&operationService{rebuild: d.Rebuild, now: d.Now}, options))
	mux.Handle(deploysv1connect.NewClusterServiceHandler(&clusterService{
		clusters: &postgres.Clusters{Pool: d.Pool}, stream: d.Stream, projects: d.Projects, logger: d.Logger, now: d.Now,
	}, options))
	return mux
}

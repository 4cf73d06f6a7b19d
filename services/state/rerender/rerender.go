// Package rerender renders the manifests of workspaces again after settings of their agent or of the cell have changed,
// and those that an older version of the service has rendered. Each workspace gets a new desired revision. The queue is
// a column of the workspaces, so none is lost when the service stops. A workspace that cannot be rendered does not
// delay the others.
package rerender

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.internal/libs/logkey"
	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/libs/retry"
	"lockstep.internal/services/state/ingest"
	"lockstep.internal/services/state/postgres"
)

const (
	// pollInterval is the time between two reads of the queue if no notification arrives.
	pollInterval = time.Minute
	// chunk bounds the workspaces of one transaction.
	chunk = 100
)

// retryPolicy applies to a workspace that cannot be rendered.
var retryPolicy = retry.Policy{Min: pollInterval, Max: time.Hour}

// Renderer renders queued workspaces. Its exported fields are required. Run is safe for concurrent use.
type Renderer struct {
	Pool         *pgxpool.Pool
	Logger       *slog.Logger
	Ingest       *ingest.Ingest
	IngestStores *postgres.IngestStores
	Now          func() time.Time

	// Only the holder of the lock uses the fields below.

	failures map[uuid.UUID]failure
}

// failure is that of a workspace that cannot be rendered.
type failure struct {
	attempts int
	retryAt  time.Time
}

// Run renders workspaces as they are queued, until ctx ends. It waits while another replica renders. It returns an
// error if the database fails; then it may be called again.
func (r *Renderer) Run(ctx context.Context) error {
	return libpostgres.ExclusiveWork{
		Lock: "rerender", Interval: pollInterval, Channel: postgres.RenderChannel,
		Do: func(ctx context.Context, conn *pgx.Conn) error { return r.All(ctx, conn) },
	}.Run(ctx, r.Pool)
}

// All renders all queued workspaces, except those that failed and wait for their next attempt.
func (r *Renderer) All(ctx context.Context, db libpostgres.Beginner) error {
	began, rendered, limit := r.Now(), 0, chunk
	for {
		ids, err := r.renderSome(ctx, db, limit)
		switch {
		case err != nil && (len(ids) == 0 || ctx.Err() != nil || libpostgres.IsUnavailable(err)):
			return fmt.Errorf("render workspaces: %w", err)
		case len(ids) > 1 && err != nil:
			limit = len(ids) / 2 // to find the one that fails
		case err != nil:
			r.recordFailure(ctx, ids[0], err)
			limit = chunk
		case len(ids) > 0:
			rendered += len(ids)
		default:
			maps.DeleteFunc(r.failures, func(_ uuid.UUID, f failure) bool { return !f.retryAt.After(began) })
			if rendered > 0 {
				r.Logger.InfoContext(ctx, "rendered workspaces again, because settings changed",
					slog.Int(logkey.Count, rendered))
			}
			return nil
		}
	}
}

// renderSome renders up to limit queued workspaces in one transaction. It returns those that it tried to render.
func (r *Renderer) renderSome(ctx context.Context, db libpostgres.Beginner, limit int) (ids []uuid.UUID, err error) {
	var waiting []uuid.UUID
	for id, f := range r.failures {
		if f.retryAt.After(r.Now()) {
			waiting = append(waiting, id)
		}
	}
	err = libpostgres.InTx(ctx, db, func(tx pgx.Tx) error {
		store := r.IngestStores.In(tx)
		if ids, err = store.LockToRender(ctx, limit, waiting); err != nil {
			return err
		}
		return r.Ingest.Render(ctx, store, ids, r.Now())
	})
	return ids, err
}

func (r *Renderer) recordFailure(ctx context.Context, id uuid.UUID, err error) {
	if r.failures == nil {
		r.failures = map[uuid.UUID]failure{}
	}
	attempts := r.failures[id].attempts + 1
	pause := retryPolicy.Delay(attempts)
	r.failures[id] = failure{attempts: attempts, retryAt: r.Now().Add(pause)}
	r.Logger.ErrorContext(ctx, "rendering a workspace again failed; retrying",
		slog.String(logkey.WorkspaceID, id.String()), logkey.Error(err), slog.Duration(logkey.RetryIn, pause))
}

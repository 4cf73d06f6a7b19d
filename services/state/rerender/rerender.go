// Package rerender renders the manifests of workspaces again after settings of their agent or of the cell have changed.
// Each workspace gets a new desired revision. The queue is a table that the transaction of the change fills. So no
// workspace is lost when the service stops.
package rerender

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.internal/libs/logkey"
	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/services/state/ingest"
	"lockstep.internal/services/state/postgres"
)

const (
	// pollInterval is the time between two reads of the queue if no notification arrives.
	pollInterval = time.Minute
	// chunk bounds the workspaces of one transaction.
	chunk = 100
)

// Renderer renders queued workspaces. Its fields are required. It is safe for concurrent use.
type Renderer struct {
	Pool         *pgxpool.Pool
	Logger       *slog.Logger
	Ingest       *ingest.Ingest
	IngestStores *postgres.IngestStores
}

// Run renders workspaces as they are queued, until ctx ends. It waits while another replica renders. It returns an
// error if the database fails; then it may be called again.
func (r *Renderer) Run(ctx context.Context) error {
	held, err := libpostgres.Lock{Name: "rerender"}.Acquire(ctx, r.Pool)
	if err == nil {
		err = errors.Join(r.renderWhileLocked(ctx, held), held.Release(ctx))
	}
	if ctx.Err() != nil {
		return nil //nolint:nilerr // ctx has ended
	}
	return err
}

func (r *Renderer) renderWhileLocked(ctx context.Context, held *libpostgres.HeldLock) error {
	if err := held.Listen(ctx, postgres.RenderChannel); err != nil {
		return err
	}
	for {
		held.ClearNotification()
		if err := r.All(ctx, held.Conn()); err != nil {
			return err
		}
		if err := held.WaitForNotification(ctx, pollInterval); err != nil {
			return err
		}
	}
}

// All renders all queued workspaces.
func (r *Renderer) All(ctx context.Context, db libpostgres.Beginner) error {
	for rendered := 0; ; {
		var ids []uuid.UUID
		err := libpostgres.InTx(ctx, db, func(tx pgx.Tx) (err error) {
			store := r.IngestStores.In(tx)
			if ids, err = store.TakeToRender(ctx, chunk); err != nil {
				return err
			}
			return r.Ingest.Render(ctx, store, ids, time.Now())
		})
		if err != nil {
			return fmt.Errorf("render workspaces: %w", err)
		}
		if rendered += len(ids); len(ids) < chunk {
			if rendered > 0 {
				r.Logger.InfoContext(ctx, "rendered workspaces again, because settings changed",
					slog.Int(logkey.Count, rendered))
			}
			return nil
		}
	}
}

package execution

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/postgres"
	"lockstep.internal/services/runners/artifact"
	"lockstep.internal/services/runners/objects"
)

const (
	defaultCleanInterval = 10 * time.Minute
	// cleanBatch is how many artifacts or objects one transaction handles.
	cleanBatch = 50
	// unusedTime is how long an object is unused before it is deleted. It is longer than an upload may take.
	unusedTime = 24 * time.Hour
)

// Cleaner deletes artifacts that have expired, and content that no artifact has, on one replica at a time. All fields
// are required, unless they have a default.
type Cleaner struct {
	Pool    *pgxpool.Pool
	Store   ArtifactStore
	Objects objects.Store
	Logger  *slog.Logger
	Now     func() time.Time
	// Interval between two passes. Defaults to 10 min.
	Interval time.Duration
}

// Run cleans until ctx is done or the database fails. It calls ready once this replica does so, or another one.
func (c Cleaner) Run(ctx context.Context, ready func()) error {
	var searched time.Time
	clean := func(ctx context.Context, _ *pgx.Conn) error {
		err := c.Once(ctx)
		if now := c.Now(); err == nil && now.Sub(searched) >= unusedTime {
			if err = c.Search(ctx); err == nil {
				searched = now
			}
		}
		if err != nil && ctx.Err() == nil {
			c.Logger.WarnContext(ctx, "deleting artifacts failed; trying again", logkey.Error(err))
		}
		return ctx.Err()
	}
	return postgres.ExclusiveWork{
		Lock: "artifacts", Interval: cmp.Or(c.Interval, defaultCleanInterval), Ready: ready, Do: clean,
	}.Run(ctx, c.Pool)
}

// Once removes the artifacts that have expired now, and deletes the objects that are unused for a day.
func (c Cleaner) Once(ctx context.Context) error {
	expired, expireErr := repeat(func() (int, error) { return c.Store.Expire(ctx, c.Now(), cleanBatch) })
	deleted, collectErr := repeat(func() (int, error) {
		return c.Store.Collect(ctx, c.Now().Add(-unusedTime), cleanBatch, c.Objects.Delete)
	})
	if expired > 0 {
		c.Logger.InfoContext(ctx, "removed expired artifacts", slog.Int(logkey.Count, expired))
	}
	if deleted > 0 {
		c.Logger.InfoContext(ctx, "deleted unused objects", slog.Int(logkey.Count, deleted))
	}
	return errors.Join(expireErr, collectErr)
}

// repeat calls a batch until it handles fewer than it may, and returns how many it handled in all.
func repeat(batch func() (int, error)) (int, error) {
	for all := 0; ; {
		n, err := batch()
		all += n
		if err != nil || n < cleanBatch {
			return all, err
		}
	}
}

// Search deletes objects of which the database knows nothing, as after its restore, and what interrupted uploads have
// left. It lists the whole store.
func (c Cleaner) Search(ctx context.Context) error {
	done, err := artifact.Collect(ctx, c.Objects, c.Now().Add(-unusedTime), c.Store.Named)
	if done.Objects+done.Parts > 0 {
		c.Logger.WarnContext(ctx, "deleted objects that the database does not know",
			slog.Int(logkey.Count, done.Objects+done.Parts))
	}
	if err != nil {
		return fmt.Errorf("search the store of objects: %w", err)
	}
	return nil
}

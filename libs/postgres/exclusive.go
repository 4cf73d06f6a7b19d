package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ExclusiveWork is work that one replica of a service repeats while it holds a lock. All fields are required, unless
// they have a default.
type ExclusiveWork struct {
	// Lock is the name of the lock within the schema.
	Lock string
	// Interval is the time between two turns without a notification.
	Interval time.Duration
	// Channel has notifications that begin the next turn at once. Optional.
	Channel string
	// Ready is called once this replica holds the lock, or another one. Optional.
	Ready func()
	// Do is one turn. While the connection works, the lock is held. An error ends Run.
	Do func(ctx context.Context, conn *pgx.Conn) error
}

// Run works until ctx is done, and then returns nil. It returns an error if the database or the work fails; then it may
// be called again.
func (w ExclusiveWork) Run(ctx context.Context, pool *pgxpool.Pool) error {
	held, err := Lock{Name: w.Lock, Waiting: w.Ready}.Acquire(ctx, pool)
	if err == nil {
		err = errors.Join(w.repeat(ctx, held), held.Release(ctx))
	}
	if ctx.Err() != nil {
		return nil //nolint:nilerr // it was asked to end
	}
	return err
}

func (w ExclusiveWork) repeat(ctx context.Context, held *HeldLock) error {
	if w.Channel != "" {
		if err := held.Listen(ctx, w.Channel); err != nil {
			return err
		}
	}
	if w.Ready != nil {
		w.Ready()
	}
	for {
		held.ClearNotification()
		if err := w.Do(ctx, held.Conn()); err != nil {
			return err
		}
		if err := held.WaitForNotification(ctx, w.Interval); err != nil {
			return err
		}
	}
}

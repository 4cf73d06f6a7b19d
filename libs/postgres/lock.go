package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.internal/libs/internal/delay"
)

// Lock is a lock that replicas of a service share through the database.
type Lock struct {
	// Name of the lock within the schema.
	Name string

	// Interval is how often a waiting replica asks, and so how long a lock lies free after its holder's death was noticed.
	// Defaults to 500 ms.
	Interval time.Duration
}

// Held is a lock that this process holds, and the connection that holds it. It belongs to one goroutine.
type Held struct{ conn *pgx.Conn }

// Acquire waits until it holds the lock, on a connection of its own beside the pool. It returns an error when the database fails or ctx
// is done. The caller releases.
func (l Lock) Acquire(ctx context.Context, pool *pgxpool.Pool) (*Held, error) {
	interval := l.Interval
	if interval == 0 {
		interval = 500 * time.Millisecond
	}
	conn, err := pgx.ConnectConfig(ctx, pool.Config().ConnConfig.Copy())
	if err != nil {
		return nil, fmt.Errorf("connect for lock %s: %w", l.Name, err)
	}
	held := &Held{conn: conn}
	for {
		var got bool
		// Asked again and again rather than waited for in one statement, whose snapshot would keep VACUUM from removing dead rows.
		err := conn.QueryRow(ctx, "SELECT pg_try_advisory_lock(hashtextextended(current_schema() || '/' || $1::text, 0))", l.Name).Scan(&got)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("ask for lock %s: %w", l.Name, err), held.Release())
		}
		if got {
			return held, nil
		}
		if err := delay.Sleep(ctx, interval); err != nil {
			return nil, errors.Join(fmt.Errorf("wait for lock %s: %w", l.Name, err), held.Release())
		}
	}
}

// Conn is the connection that holds the lock: while it works, the lock is held.
func (h *Held) Conn() *pgx.Conn { return h.conn }

// Release ends the connection, and with it the lock.
func (h *Held) Release() error {
	ctx, cancel := context.WithTimeout(context.Background(), checkTimeout)
	defer cancel()
	if err := h.conn.Close(ctx); err != nil {
		return fmt.Errorf("close the connection of a lock: %w", err)
	}
	return nil
}

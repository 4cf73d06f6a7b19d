package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
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

// HeldLock is a lock that this process holds, and the connection that holds it. It belongs to one goroutine.
type HeldLock struct {
	conn     *pgx.Conn
	notified bool // a notification came since ClearNotified
}

// Acquire waits until it holds the lock, on a connection of its own beside the pool. It returns an error when the database fails or ctx
// is done. The caller releases.
func (l Lock) Acquire(ctx context.Context, pool *pgxpool.Pool) (*HeldLock, error) {
	interval := l.Interval
	if interval == 0 {
		interval = 500 * time.Millisecond
	}
	held, err := l.connect(ctx, pool)
	if err != nil {
		return nil, err
	}
	for {
		got, err := l.try(ctx, held.conn)
		if err != nil {
			return nil, errors.Join(err, held.Release(ctx))
		}
		if got {
			return held, nil
		}
		if err := delay.Sleep(ctx, interval); err != nil {
			return nil, errors.Join(fmt.Errorf("wait for lock %s: %w", l.Name, err), held.Release(ctx))
		}
	}
}

// Try is Acquire that does not wait: nil when another session holds the lock.
func (l Lock) Try(ctx context.Context, pool *pgxpool.Pool) (*HeldLock, error) {
	held, err := l.connect(ctx, pool)
	if err != nil {
		return nil, err
	}
	got, err := l.try(ctx, held.conn)
	if err != nil || !got {
		return nil, errors.Join(err, held.Release(ctx))
	}
	return held, nil
}

func (l Lock) connect(ctx context.Context, pool *pgxpool.Pool) (*HeldLock, error) {
	held := &HeldLock{}
	config := pool.Config().ConnConfig
	config.OnNotification = func(*pgconn.PgConn, *pgconn.Notification) { held.notified = true }
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("connect for lock %s: %w", l.Name, err)
	}
	held.conn = conn
	return held, nil
}

func (l Lock) try(ctx context.Context, conn *pgx.Conn) (bool, error) {
	var got bool
	// Asked again and again rather than waited for in one statement, whose snapshot would keep VACUUM from removing dead rows.
	err := conn.QueryRow(ctx, "SELECT pg_try_advisory_lock(hashtextextended(current_schema() || '/' || $1::text, 0))", l.Name).Scan(&got)
	if err != nil {
		return false, fmt.Errorf("ask for lock %s: %w", l.Name, err)
	}
	return got, nil
}

// Conn is the connection that holds the lock: while it works, the lock is held.
func (h *HeldLock) Conn() *pgx.Conn { return h.conn }

// Listen makes the connection receive notifications of the channel.
func (h *HeldLock) Listen(ctx context.Context, channel string) error {
	if _, err := h.conn.Exec(ctx, "LISTEN "+pgx.Identifier{channel}.Sanitize()); err != nil {
		return fmt.Errorf("listen on channel %s: %w", channel, err)
	}
	return nil
}

// ClearNotification forgets notifications that came so far: call it before looking at what they are about.
func (h *HeldLock) ClearNotification() { h.notified = false }

// WaitForNotification waits until a notification has come since ClearNotified, something can be received from wake, or the time given is over; which of them is not told, since
// notifications are hints. It returns an error when the connection is lost or ctx is done.
func (h *HeldLock) WaitForNotification(ctx context.Context, atMost time.Duration, wake <-chan struct{}) error {
	if h.notified {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, atMost)
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-wake:
			cancel()
		case <-bounded.Done():
		}
	})
	defer watch.Wait()
	defer cancel()
	err := h.conn.PgConn().WaitForNotification(bounded)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("wait for a notification: %w", ctx.Err())
	case bounded.Err() != nil && !h.conn.IsClosed():
		return nil
	default:
		return fmt.Errorf("wait for a notification: %w", err)
	}
}

// Release ends the connection, and with it the lock; also when ctx is done, which is when locks are given up.
func (h *HeldLock) Release(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), checkTimeout)
	defer cancel()
	if err := h.conn.Close(ctx); err != nil {
		return fmt.Errorf("close the connection of a lock: %w", err)
	}
	return nil
}

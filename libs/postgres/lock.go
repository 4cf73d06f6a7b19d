package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.internal/libs/retry"
)

// Lock is an exclusive advisory lock: one replica of a service holds it at a time.
type Lock struct {
	// Name of the lock within the schema.
	Name string
	// Interval is the time between two attempts of a waiting replica. Defaults to 500 ms.
	Interval time.Duration
	// Waiting is called after each attempt that found another session with the lock: the database works. Optional.
	Waiting func()
}

const releaseTimeout = 5 * time.Second

// HeldLock is a lock that this process holds, with the connection that holds it. It must not be
// used by several goroutines at once.
type HeldLock struct {
	conn     *pgx.Conn
	notified bool // a notification arrived after ClearNotification
}

// Acquire waits until it holds the lock, on a connection of its own outside the pool. It returns an
// error when the database fails or ctx ends. The caller releases the lock.
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
		acquired, err := l.tryOn(ctx, held.conn)
		if err != nil {
			return nil, errors.Join(err, held.close(ctx))
		}
		if acquired {
			return held, nil
		}
		if l.Waiting != nil {
			l.Waiting()
		}
		if err := retry.Sleep(ctx, interval); err != nil {
			return nil, errors.Join(fmt.Errorf("wait for lock %s: %w", l.Name, err), held.close(ctx))
		}
	}
}

// Try is Acquire without waiting. It returns nil when another session holds the lock.
func (l Lock) Try(ctx context.Context, pool *pgxpool.Pool) (*HeldLock, error) {
	held, err := l.connect(ctx, pool)
	if err != nil {
		return nil, err
	}
	acquired, err := l.tryOn(ctx, held.conn)
	if err != nil || !acquired {
		return nil, errors.Join(err, held.close(ctx))
	}
	return held, nil
}

func (l Lock) connect(ctx context.Context, pool *pgxpool.Pool) (*HeldLock, error) {
	held := &HeldLock{}
	conn, err := connectAlone(ctx, pool, func(*pgconn.PgConn, *pgconn.Notification) { held.notified = true })
	if err != nil {
		return nil, fmt.Errorf("connect for lock %s: %w", l.Name, err)
	}
	held.conn = conn
	return held, nil
}

func (l Lock) tryOn(ctx context.Context, conn *pgx.Conn) (bool, error) {
	var acquired bool
	// Polls instead of waiting in one statement: its snapshot would keep VACUUM from removing dead
	// rows.
	err := conn.QueryRow(ctx, `
		SELECT pg_try_advisory_lock(hashtextextended(current_schema() || '/' || $1::text, 0))`, l.Name).Scan(&acquired)
	if err != nil {
		return false, fmt.Errorf("acquire lock %s: %w", l.Name, err)
	}
	return acquired, nil
}

// Conn returns the connection that holds the lock. While it works, the lock is held.
func (h *HeldLock) Conn() *pgx.Conn { return h.conn }

// Listen subscribes the connection to a notification channel.
func (h *HeldLock) Listen(ctx context.Context, channel string) error {
	if _, err := h.conn.Exec(ctx, "LISTEN "+pgx.Identifier{channel}.Sanitize()); err != nil {
		return fmt.Errorf("listen on channel %s: %w", channel, err)
	}
	return nil
}

// ClearNotification forgets earlier notifications. Call it before reading the rows that they are
// about.
func (h *HeldLock) ClearNotification() { h.notified = false }

// WaitForNotification waits for a notification since ClearNotification, at most for the timeout. It
// returns nil in both cases, because notifications are hints. It returns an error when the
// connection is lost or ctx ends.
func (h *HeldLock) WaitForNotification(ctx context.Context, timeout time.Duration) error {
	if h.notified {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, timeout)
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

// Release rolls back an open transaction, gives up the lock and closes the connection. When it
// returns nil, the server has released the lock. It works after ctx has ended, waits at most 5 s
// for the server, and closes the connection in any case.
func (h *HeldLock) Release(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	if h.conn.IsClosed() {
		return h.awaitCleanup(ctx)
	}
	return errors.Join(h.unlock(ctx), h.close(ctx))
}

// unlock waits for the answer of the server. The end of the session releases the lock as well, but
// at an unknown time after the connection is closed.
func (h *HeldLock) unlock(ctx context.Context) error {
	conn := h.conn.PgConn()
	statement := "SELECT pg_advisory_unlock_all()"
	if conn.TxStatus() != 'I' {
		statement = "ROLLBACK; " + statement
	}
	if _, err := conn.Exec(ctx, statement).ReadAll(); err != nil {
		return fmt.Errorf("release a lock: %w", err)
	}
	return nil
}

// awaitCleanup waits until pgx has ended the session of a closed connection. When ctx ends during a
// statement, pgx closes the connection at once and ends the session in the background.
func (h *HeldLock) awaitCleanup(ctx context.Context) error {
	select {
	case <-h.conn.PgConn().CleanupDone():
		return nil
	case <-ctx.Done():
		return fmt.Errorf("end the session of a lock: %w", ctx.Err())
	}
}

func (h *HeldLock) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), checkTimeout)
	defer cancel()
	if err := h.conn.Close(ctx); err != nil {
		return fmt.Errorf("close the connection of a lock: %w", err)
	}
	return nil
}

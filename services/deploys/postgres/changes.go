package postgres

import (
	"context"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Changes tells which rollouts changed, from the notifications of every replica's transactions. It tells ids, not rows: who wants to know reads, so that a burst of
// changes is one read and no notification can bring what is old.
type Changes struct {
	pool *pgxpool.Pool

	mu          sync.Mutex
	subscribers map[*Subscription]struct{}
}

// NewChanges makes a Changes that listens while Run runs.
func NewChanges(pool *pgxpool.Pool) *Changes {
	return &Changes{pool: pool, subscribers: map[*Subscription]struct{}{}}
}

// Run listens until ctx is done or the connection is lost; it may then be called again. ready is called once it listens.
func (c *Changes) Run(ctx context.Context, ready func()) error {
	conn, err := pgx.ConnectConfig(ctx, c.pool.Config().ConnConfig.Copy())
	if err != nil {
		return fmt.Errorf("listen to changes of rollouts: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // it is over
	if _, err := conn.Exec(ctx, `listen `+Channel); err != nil {
		return fmt.Errorf("listen to changes of rollouts: %w", err)
	}
	// What changed while nobody listened is not known: everything may have.
	c.each(func(s *Subscription) { s.all = true })
	ready()
	for {
		n, err := conn.WaitForNotification(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("listen to changes of rollouts: %w", err)
		}
		c.each(func(s *Subscription) { s.ids[n.Payload] = struct{}{} })
	}
}

func (c *Changes) each(note func(*Subscription)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for s := range c.subscribers {
		note(s)
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
}

// Subscription collects what changed since it was asked last.
type Subscription struct {
	changes *Changes
	wake    chan struct{}
	ids     map[string]struct{} // guarded by changes.mu
	all     bool                // guarded by changes.mu
}

// Subscribe begins to collect. The caller closes the subscription.
func (c *Changes) Subscribe() *Subscription {
	s := &Subscription{changes: c, wake: make(chan struct{}, 1), ids: map[string]struct{}{}}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.subscribers[s] = struct{}{}
	return s
}

// Close ends the subscription.
func (s *Subscription) Close() {
	s.changes.mu.Lock()
	defer s.changes.mu.Unlock()
	delete(s.changes.subscribers, s)
}

// Wake receives when something changed.
func (s *Subscription) Wake() <-chan struct{} { return s.wake }

// Take returns what changed since the last time; all says that anything may have.
func (s *Subscription) Take() (ids []string, all bool) {
	s.changes.mu.Lock()
	defer s.changes.mu.Unlock()
	for id := range s.ids {
		ids = append(ids, id)
	}
	all, s.all = s.all, false
	clear(s.ids)
	return ids, all
}

package postgres

import (
	"context"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ChangeListener tells which rows changed, from the notifications of every replica's transactions. It tells ids, not rows: who wants to know reads, so that a burst of
// changes is one read and no notification can bring what is old.
type ChangeListener[ID comparable] struct {
	pool    *pgxpool.Pool
	channel string
	parse   func(payload string) (ID, error)

	mu          sync.Mutex
	subscribers map[*Subscription[ID]]struct{}
}

// NewChangeListener makes a Changes that listens on a channel while Run runs. parse makes the id of a notification's payload; what it refuses is passed over.
func NewChangeListener[ID comparable](pool *pgxpool.Pool, channel string, parse func(payload string) (ID, error)) *ChangeListener[ID] {
	return &ChangeListener[ID]{pool: pool, channel: channel, parse: parse, subscribers: map[*Subscription[ID]]struct{}{}}
}

// Run listens until ctx is done or the connection is lost; it may then be called again. ready is called once it listens.
func (c *ChangeListener[ID]) Run(ctx context.Context, ready func()) error {
	conn, err := pgx.ConnectConfig(ctx, c.pool.Config().ConnConfig.Copy())
	if err != nil {
		return fmt.Errorf("listen on channel %s: %w", c.channel, err)
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // it is over
	if _, err := conn.Exec(ctx, `listen `+pgx.Identifier{c.channel}.Sanitize()); err != nil {
		return fmt.Errorf("listen on channel %s: %w", c.channel, err)
	}
	// What changed while nobody listened is not known: everything may have.
	c.each(func(s *Subscription[ID]) { s.all = true })
	ready()
	for {
		n, err := conn.WaitForNotification(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("listen on channel %s: %w", c.channel, err)
		}
		if id, err := c.parse(n.Payload); err == nil {
			c.each(func(s *Subscription[ID]) { s.ids[id] = struct{}{} })
		}
	}
}

func (c *ChangeListener[ID]) each(note func(*Subscription[ID])) {
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
type Subscription[ID comparable] struct {
	changes *ChangeListener[ID]
	wake    chan struct{}
	ids     map[ID]struct{} // guarded by changes.mu
	all     bool            // guarded by changes.mu
}

// Subscribe begins to collect. The caller closes the subscription.
func (c *ChangeListener[ID]) Subscribe() *Subscription[ID] {
	s := &Subscription[ID]{changes: c, wake: make(chan struct{}, 1), ids: map[ID]struct{}{}}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.subscribers[s] = struct{}{}
	return s
}

// Close ends the subscription.
func (s *Subscription[ID]) Close() {
	s.changes.mu.Lock()
	defer s.changes.mu.Unlock()
	delete(s.changes.subscribers, s)
}

// Changed receives when something changed.
func (s *Subscription[ID]) Changed() <-chan struct{} { return s.wake }

// Take returns what changed since the last time; all says that anything may have.
func (s *Subscription[ID]) Take() (ids []ID, all bool) {
	s.changes.mu.Lock()
	defer s.changes.mu.Unlock()
	for id := range s.ids {
		ids = append(ids, id)
	}
	all, s.all = s.all, false
	clear(s.ids)
	return ids, all
}

package postgres

import (
	"context"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ChangeListener reports which rows changed, from the notifications of every replica's
// transactions. It reports ids only, and the subscriber reads the rows: a burst of changes is one
// read, and no notification carries old data.
type ChangeListener[ID comparable] struct {
	pool    *pgxpool.Pool
	channel string
	parse   func(payload string) (ID, error)

	mu            sync.Mutex
	subscriptions map[*Subscription[ID]]struct{}
}

// NewChangeListener returns a listener on a notification channel. parse converts a notification's
// payload into an id; the listener ignores payloads that parse rejects.
func NewChangeListener[ID comparable](
	pool *pgxpool.Pool, channel string, parse func(payload string) (ID, error),
) *ChangeListener[ID] {
	return &ChangeListener[ID]{
		pool: pool, channel: channel, parse: parse, subscriptions: map[*Subscription[ID]]struct{}{},
	}
}

// Run listens until ctx ends or the connection is lost; it may then be called again. It calls ready
// once it listens.
func (c *ChangeListener[ID]) Run(ctx context.Context, ready func()) error {
	conn, err := connectAlone(ctx, c.pool, nil)
	if err != nil {
		return fmt.Errorf("listen on channel %s: %w", c.channel, err)
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // the connection is not used again
	if _, err := conn.Exec(ctx, `listen `+pgx.Identifier{c.channel}.Sanitize()); err != nil {
		return fmt.Errorf("listen on channel %s: %w", c.channel, err)
	}
	// Changes from before are unknown, so every row may have changed.
	c.notify(func(s *Subscription[ID]) { s.all = true })
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
			c.notify(func(s *Subscription[ID]) { s.ids[id] = struct{}{} })
		}
	}
}

func (c *ChangeListener[ID]) notify(record func(*Subscription[ID])) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for s := range c.subscriptions {
		record(s)
		select {
		case s.changed <- struct{}{}:
		default:
		}
	}
}

// Subscription collects changes until the next Take.
type Subscription[ID comparable] struct {
	listener *ChangeListener[ID]
	changed  chan struct{}
	ids      map[ID]struct{} // guarded by listener.mu
	all      bool            // guarded by listener.mu
}

// Subscribe starts to collect changes. The caller closes the subscription.
func (c *ChangeListener[ID]) Subscribe() *Subscription[ID] {
	s := &Subscription[ID]{listener: c, changed: make(chan struct{}, 1), ids: map[ID]struct{}{}}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.subscriptions[s] = struct{}{}
	return s
}

// Close ends the subscription.
func (s *Subscription[ID]) Close() {
	s.listener.mu.Lock()
	defer s.listener.mu.Unlock()
	delete(s.listener.subscriptions, s)
}

// Changed receives a value when something changed.
func (s *Subscription[ID]) Changed() <-chan struct{} { return s.changed }

// Take returns the changes since the previous call. all means that any row may have changed.
func (s *Subscription[ID]) Take() (ids []ID, all bool) {
	s.listener.mu.Lock()
	defer s.listener.mu.Unlock()
	for id := range s.ids {
		ids = append(ids, id)
	}
	all, s.all = s.all, false
	clear(s.ids)
	return ids, all
}

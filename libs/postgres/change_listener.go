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

// Run is [Listen] for this listener alone.
func (c *ChangeListener[ID]) Run(ctx context.Context, ready func()) error {
	return Listen(ctx, c.pool, ready, c)
}

// Listener is a [ChangeListener] of any type.
type Listener interface {
	on() (channel string)
	// received records a notification.
	received(payload string)
	// missed records that every row may have changed.
	missed()
}

// Listen listens for all listeners with one connection, until ctx ends or the connection is lost; it may then be called
// again. It calls ready once it listens. A commit with a notification wakes every connection that listens, on whatever
// channel: a program that needs several channels listens with one.
func Listen(ctx context.Context, pool *pgxpool.Pool, ready func(), listeners ...Listener) error {
	conn, err := connectAlone(ctx, pool, nil)
	if err != nil {
		return fmt.Errorf("listen to changes: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // the connection is not used again
	byChannel := make(map[string]Listener, len(listeners))
	for _, l := range listeners {
		byChannel[l.on()] = l
		if _, err := conn.Exec(ctx, `listen `+pgx.Identifier{l.on()}.Sanitize()); err != nil {
			return fmt.Errorf("listen on channel %s: %w", l.on(), err)
		}
	}
	// Changes from before are unknown, so every row may have changed.
	for _, l := range listeners {
		l.missed()
	}
	ready()
	for {
		n, err := conn.WaitForNotification(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("listen to changes: %w", err)
		}
		byChannel[n.Channel].received(n.Payload)
	}
}

func (c *ChangeListener[ID]) on() string { return c.channel }

func (c *ChangeListener[ID]) received(payload string) {
	if id, err := c.parse(payload); err == nil {
		c.notify(func(s *Subscription[ID]) { s.ids[id] = struct{}{} })
	}
}

func (c *ChangeListener[ID]) missed() { c.notify(func(s *Subscription[ID]) { s.all = true }) }

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

package cursor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Consumer takes a stream into the database. Its methods may be called from any goroutine.
type Consumer[T any] struct {
	cfg   Config[T]
	state state
	hooks hooks
}

// hooks are points at which tests hold or end a consumer.
type hooks struct {
	committed func() error  // between a commit and whatever follows it
	waiting   func()        // before waiting for the lock
	idle      time.Duration // how long a replay waits for a message before it asks whether any is left
}

// state is what Check reports.
type state struct {
	mu      sync.Mutex
	trouble error
	since   time.Time
}

func (s *state) set(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.trouble == nil {
		s.since = time.Now()
	}
	s.trouble = err
}

func (s *state) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trouble = nil
}

// New makes a consumer; it does nothing until Run. The error says all that is wrong with the configuration.
func New[T any](cfg Config[T]) (*Consumer[T], error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Consumer[T]{
		cfg:   cfg.withDefaults(),
		hooks: hooks{committed: func() error { return nil }, waiting: func() {}, idle: idleWait},
	}, nil
}

// Run reads until ctx is done, finishes the transaction under way and returns nil. While another replica reads it waits. Failures of
// the database, of NATS and of the handler are logged and retried for ever.
func (c *Consumer[T]) Run(ctx context.Context) error {
	pause := c.cfg.Retry.Backoff()
	for {
		worked, err := c.lead(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // asked to end
		}
		if worked {
			pause.Reset()
		}
		c.cfg.Metrics.failures.WithLabelValues(c.cfg.Name, c.cfg.Stream).Inc()
		c.state.set(err)
		c.cfg.Logger.WarnContext(ctx, "the consumer starts again", "consumer", c.cfg.Name, "stream", c.cfg.Stream, "error", err)
		if err := pause.Wait(ctx); err != nil {
			return nil //nolint:nilerr // asked to end
		}
	}
}

// lead reads while it holds the lock. It says whether anything was committed, and returns when the database fails, when the cursor is not where it was left,
// or when ctx is done.
func (c *Consumer[T]) lead(ctx context.Context) (bool, error) {
	c.hooks.waiting()
	held, err := c.cfg.lock().Acquire(ctx, c.cfg.Pool)
	if err != nil {
		return false, err
	}
	active := c.cfg.Metrics.active.WithLabelValues(c.cfg.Name, c.cfg.Stream)
	active.Set(1)
	defer active.Set(0)
	c.cfg.Logger.DebugContext(ctx, "this replica reads the stream", "consumer", c.cfg.Name, "stream", c.cfg.Stream)
	s := newSession(c, held.Conn())
	err = errors.Join(s.run(ctx), held.Release(ctx))
	return s.worked, err
}

// Check is a health check: nil while messages are handled, or there are none, or another replica reads; the reason when something has failed for StaleAfter
// or longer.
func (c *Consumer[T]) Check(context.Context) error {
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	if c.state.trouble == nil {
		return nil
	}
	lasts := time.Since(c.state.since)
	if lasts < c.cfg.StaleAfter {
		return nil
	}
	return fmt.Errorf("consumer %s of %s has failed for %s: %w", c.cfg.Name, c.cfg.Stream, lasts.Round(time.Second), c.state.trouble)
}

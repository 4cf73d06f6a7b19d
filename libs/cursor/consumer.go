package cursor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/retry"
)

// Consumer consumes a stream into the database. It is safe for concurrent use.
type Consumer[T any] struct {
	cfg   Config[T]
	state failureState
	hooks hooks
}

// hooks are points at which tests pause or end a consumer.
type hooks struct {
	committed func() error                               // after a commit
	waiting   func()                                     // before waiting for the lock
	idle      time.Duration                              // time without a message after which a replay checks for the end
	sleep     func(context.Context, time.Duration) error // before a message alone is tried again
	now       func() time.Time
}

// failureState is the current failure, for Check.
type failureState struct {
	mu    sync.Mutex
	err   error
	since time.Time
	log   retry.FailureLog
}

// set returns the level of the failure's log entry.
func (s *failureState) set(err error) slog.Level {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.since = time.Now()
	}
	s.err = err
	return s.log.Level()
}

func (s *failureState) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = nil
	s.log.Reset()
}

// New returns a consumer; Run starts it. The error lists all errors of the configuration.
func New[T any](cfg Config[T]) (*Consumer[T], error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Consumer[T]{
		cfg: cfg.withDefaults(),
		hooks: hooks{
			committed: func() error { return nil }, waiting: func() {}, idle: idleWait, sleep: retry.Sleep, now: time.Now,
		},
	}, nil
}

// Run reads until ctx ends, then finishes the current transaction and returns nil. While another replica holds
// the lock, Run waits. It logs and retries failures of the database, of NATS and of the handler forever.
func (c *Consumer[T]) Run(ctx context.Context) error {
	backoff := c.cfg.Retry.Backoff()
	for {
		committed, err := c.readWhileLocked(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // ctx has ended
		}
		if committed {
			backoff.Reset()
		}
		c.cfg.Metrics.failures.WithLabelValues(c.cfg.Name, c.cfg.Stream).Inc()
		pause := backoff.Next()
		c.logger().LogAttrs(ctx, c.state.set(err), "consumer failed; retrying",
			slog.Duration(logkey.RetryIn, pause), logkey.Error(err))
		if retry.Sleep(ctx, pause) != nil {
			return nil //nolint:nilerr // ctx has ended
		}
	}
}

func (c *Consumer[T]) logger() *slog.Logger {
	return c.cfg.Logger.With(slog.String(logkey.Consumer, c.cfg.Name), slog.String(logkey.Stream, c.cfg.Stream))
}

// readWhileLocked waits for the lock and reads until the database fails, another reader has moved
// the cursor, or ctx ends. It reports whether it committed anything.
func (c *Consumer[T]) readWhileLocked(ctx context.Context) (bool, error) {
	c.hooks.waiting()
	lock := c.cfg.lock()
	lock.Waiting = c.state.clear
	held, err := lock.Acquire(ctx, c.cfg.Pool)
	if err != nil {
		return false, err
	}
	active := c.cfg.Metrics.active.WithLabelValues(c.cfg.Name, c.cfg.Stream)
	active.Set(1)
	defer active.Set(0)
	c.logger().DebugContext(ctx, "consumer acquired the lock")
	s := newSession(c, held.Conn())
	err = errors.Join(s.run(ctx), held.Release(ctx))
	return s.committed, err
}

// Check is a health check. It fails when a failure has lasted for StaleAfter. A replica that waits
// for the lock is healthy.
func (c *Consumer[T]) Check(context.Context) error {
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	if c.state.err == nil {
		return nil
	}
	failingFor := time.Since(c.state.since)
	if failingFor < c.cfg.StaleAfter {
		return nil
	}
	return fmt.Errorf(
		"consumer %s of %s has been failing for %s: %w", c.cfg.Name, c.cfg.Stream, failingFor.Round(time.Second), c.state.err,
	)
}

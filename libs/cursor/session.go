package cursor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/postgres"
	"lockstep.internal/libs/retry"
)

// drainTimeout limits the current transaction after ctx is done.
const drainTimeout = 5 * time.Second

// serverRetry is short: for seconds after a server has failed, its streams have no leader.
var serverRetry = retry.Policy{Min: 50 * time.Millisecond, Max: 500 * time.Millisecond}

// session reads while this replica holds the lock. Transactions run in one goroutine on the connection that holds
// the lock. A second goroutine prefetches messages.
type session[T any] struct {
	cfg    Config[T]
	hooks  hooks
	state  *failureState
	conn   *pgx.Conn
	logger *slog.Logger

	committed     bool
	cursor        cursorRow
	serverBackoff *retry.Backoff
	noPauseUntil  time.Time // see constraintInterval
	count         counters
}

// counters are the metrics of this consumer.
type counters struct {
	handled, deadLetters, failures, restarts prometheus.Counter
	lag                                      prometheus.Gauge
	seconds                                  prometheus.Observer
}

func newSession[T any](c *Consumer[T], conn *pgx.Conn) *session[T] {
	m, name, stream := c.cfg.Metrics, c.cfg.Name, c.cfg.Stream
	return &session[T]{
		cfg: c.cfg, hooks: c.hooks, state: &c.state, conn: conn, logger: c.logger(), serverBackoff: serverRetry.Backoff(),
		count: counters{
			handled:     m.handled.WithLabelValues(name, stream),
			deadLetters: m.deadLetters.WithLabelValues(name, stream),
			failures:    m.failures.WithLabelValues(name, stream),
			restarts:    m.restarts.WithLabelValues(name, stream),
			lag:         m.lag.WithLabelValues(name, stream),
			seconds:     m.seconds.WithLabelValues(name, stream),
		},
	}
}

// serverError marks a failure of NATS, which the session retries. Any other error ends the session.
type serverError struct{ error }

func (e serverError) Unwrap() error { return e.error }

func (s *session[T]) run(ctx context.Context) error {
	var err error
	if s.cursor, err = s.cfg.key().load(ctx, s.conn); err != nil {
		return err
	}
	for {
		err := s.readUntilFailure(ctx)
		var failure serverError
		if ctx.Err() != nil || !errors.As(err, &failure) {
			return err
		}
		if err := s.waitForServer(ctx, failure); err != nil {
			return err
		}
	}
}

// readUntilFailure reads the stream from the cursor until something fails or the connection changes. The stream is
// checked after every reconnect, because a restored server disconnects its clients.
func (s *session[T]) readUntilFailure(ctx context.Context) error {
	status := s.cfg.JetStream.Conn().StatusChanged()
	defer s.cfg.JetStream.Conn().RemoveStatusListener(status)
	if err := s.checkStream(ctx); err != nil {
		return err
	}
	batches := make(chan *batch[T])
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer close(batches)
		return s.read(groupCtx, batches, status)
	})
	group.Go(func() error {
		for b := range batches {
			if err := s.handleBatch(groupCtx, b); err != nil {
				return err
			}
		}
		return nil
	})
	return group.Wait() //nolint:wrapcheck // both wrap
}

// read fills the channel until something fails or the connection changes.
func (s *session[T]) read(ctx context.Context, batches chan<- *batch[T], status <-chan nats.Status) error {
	ctx, release := untilStatusChange(ctx, status)
	defer release()
	single := 0
	for after := s.cursor.last.sequence; ; {
		r, err := openReader(ctx, s.cfg, s.cfg.Name, after, single, batches)
		if err == nil {
			s.state.clear()
			err = r.run(ctx)
		}
		if !errors.Is(err, errResponseEnded) {
			return serverError{err}
		}
		after, single = r.lastSequence, singleRequests
	}
}

// untilStatusChange returns a context that ends with the next status change of the connection. The
// caller releases it.
func untilStatusChange(ctx context.Context, status <-chan nats.Status) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case now := <-status:
			cancel(fmt.Errorf("the connection is %s", now))
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil); <-watched }
}

// handleBatch commits a batch without the messages that can never be handled. Those it publishes to DEAD.
func (s *session[T]) handleBatch(ctx context.Context, b *batch[T]) error {
	for i := range b.malformed {
		if err := s.deadLetter(ctx, &b.malformed[i].message, fmt.Errorf("malformed: %w", b.malformed[i].err)); err != nil {
			return err
		}
	}
	return b.handle(ctx, s)
}

// constraintRetry bounds the pauses before a message that violates a constraint is tried again: what it needs may
// be stored meanwhile, for example after a restore of an older database.
var constraintRetry = retry.Policy{Min: time.Second, Max: 2 * time.Second}

// constraintInterval bounds the delay of a stream with many such messages. After a message still fails after its
// pauses, violated constraints cause no pause for this long.
const constraintInterval = time.Minute

// pause waits before the next attempt at a message that violated a constraint. After other data errors it does not
// wait.
func (s *session[T]) pause(ctx context.Context, m *Message[T], err error, failures int) error {
	if !s.pausesAfter(err) {
		return nil
	}
	pause := constraintRetry.Delay(failures)
	s.recordFailure(ctx, fmt.Errorf("handle message %d: %w", m.Sequence, err), pause)
	if err := s.hooks.sleep(ctx, pause); err != nil {
		return fmt.Errorf("retry message %d: %w", m.Sequence, err)
	}
	return nil
}

func (s *session[T]) pausesAfter(err error) bool {
	_, isData := errors.AsType[dataError](err)
	return isData && postgres.IsConstraintViolation(err) && !s.hooks.now().Before(s.noPauseUntil)
}

// reject publishes the message to DEAD.
func (s *session[T]) reject(ctx context.Context, m *Message[T], reason error) error {
	if s.pausesAfter(reason) {
		s.noPauseUntil = s.hooks.now().Add(constraintInterval)
	}
	return s.deadLetter(ctx, m, reason)
}

// commit commits a batch and retries until that succeeds. It returns errors about the messages, and those that
// end the session.
func (s *session[T]) commit(ctx context.Context, b *batch[T]) error {
	to := s.cursor
	to.last = markOf(b.last.Subject, b.last.Header, b.last.Data, b.last.Sequence, b.last.Stored)
	backoff := s.cfg.Retry.Backoff()
	for {
		err := s.commitTo(ctx, b, to)
		if err == nil {
			s.recordCommit(b, to)
			s.cfg.Committed(ctx, to.last.sequence, b.messages)
			return s.hooks.committed()
		}
		_, isData := errors.AsType[dataError](err)
		if isData || len(deadLetters(err, b)) > 0 ||
			ctx.Err() != nil || errors.Is(err, errSuperseded) || s.conn.IsClosed() {
			return err
		}
		pause := backoff.Next()
		s.recordFailure(ctx, fmt.Errorf("handle messages up to %d: %w", to.last.sequence, err), pause)
		if err := retry.Sleep(ctx, pause); err != nil {
			return fmt.Errorf("retry a batch: %w", err)
		}
	}
}

func (s *session[T]) recordCommit(b *batch[T], to cursorRow) {
	s.cursor = to
	s.committed = true
	s.serverBackoff.Reset()
	s.state.clear()
	s.count.handled.Add(float64(len(b.messages)))
	s.count.lag.Set(float64(b.lag))
}

// commitTo moves the cursor and handles the batch. The cursor moves first, so a superseded reader
// does nothing else.
func (s *session[T]) commitTo(ctx context.Context, b *batch[T], to cursorRow) error {
	ctx, cancel := withDrainTimeout(ctx)
	defer cancel()
	start := time.Now()
	defer func() { s.count.seconds.Observe(time.Since(start).Seconds()) }()
	moved := false
	err := postgres.InTx(ctx, s.conn, func(tx pgx.Tx) error {
		if err := s.cfg.key().move(ctx, tx, s.cursor, to); err != nil {
			return err
		}
		moved = true
		if len(b.messages) == 0 {
			return nil
		}
		if err := s.cfg.Handle(ctx, tx, b.messages); err != nil {
			return fmt.Errorf("handler: %w", err)
		}
		return nil
	})
	if !moved {
		return err
	}
	return asDataError(err)
}

// withDrainTimeout returns a context that ends drainTimeout after ctx, so that a transaction can
// finish.
func withDrainTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	drainCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		_ = retry.Sleep(drainCtx, drainTimeout)
		cancel()
	})
	return drainCtx, func() {
		stop()
		cancel()
	}
}

// recordFailure records a failure that is retried after the pause.
func (s *session[T]) recordFailure(ctx context.Context, err error, pause time.Duration) {
	s.count.failures.Inc()
	s.logger.LogAttrs(ctx, s.state.set(err), "consumer failed; retrying",
		slog.Duration(logkey.RetryIn, pause), logkey.Error(err))
}

// waitForServer pauses after a failure of NATS. The pause ends when the connection is restored.
func (s *session[T]) waitForServer(ctx context.Context, cause error) error {
	pause := s.serverBackoff.Next()
	s.recordFailure(ctx, cause, pause)
	if err := sleepUntilConnected(ctx, s.cfg.JetStream.Conn(), pause); err != nil {
		return err
	}
	// Check the database session. If it was terminated, another replica may hold the lock.
	if err := s.conn.Ping(ctx); err != nil {
		return fmt.Errorf("check the lock: %w", err)
	}
	return nil
}

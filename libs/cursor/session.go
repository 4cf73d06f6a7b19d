package cursor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"lockstep.internal/libs/postgres"
	"lockstep.internal/libs/retry"
)

// drainTimeout bounds the transaction under way when Run was asked to end.
const drainTimeout = 5 * time.Second

// session is the time in which this replica holds the lock. Transactions run in one goroutine on the connection that holds the lock; a second
// goroutine reads ahead.
type session[T any] struct {
	cfg   Config[T]
	hooks hooks
	state *state
	conn  *pgx.Conn

	worked   bool
	position position
	outage   *retry.Backoff
	count    counters
}

// counters are the metrics of this consumer.
type counters struct {
	handled, dead, failures, restarts prometheus.Counter
	lag                               prometheus.Gauge
	seconds                           prometheus.Observer
}

func newSession[T any](c *Consumer[T], conn *pgx.Conn) *session[T] {
	m, name, stream := c.cfg.Metrics, c.cfg.Name, c.cfg.Stream
	return &session[T]{
		cfg: c.cfg, hooks: c.hooks, state: &c.state, conn: conn, outage: c.cfg.Retry.Backoff(),
		count: counters{
			handled:  m.handled.WithLabelValues(name, stream),
			dead:     m.dead.WithLabelValues(name, stream),
			failures: m.failures.WithLabelValues(name, stream),
			restarts: m.restarts.WithLabelValues(name, stream),
			lag:      m.lag.WithLabelValues(name, stream),
			seconds:  m.seconds.WithLabelValues(name, stream),
		},
	}
}

// serverError marks a failure of NATS, after which the session goes on; any other ends it.
type serverError struct{ error }

func (e serverError) Unwrap() error { return e.error }

func (s *session[T]) run(ctx context.Context) error {
	var err error
	if s.position, err = s.cfg.key().load(ctx, s.conn); err != nil {
		return err
	}
	for {
		err := s.follow(ctx)
		var outage serverError
		if ctx.Err() != nil || !errors.As(err, &outage) {
			return err
		}
		if err := s.awaitServer(ctx, outage); err != nil {
			return err
		}
	}
}

// follow reads the stream from the cursor on until something fails. It ends with each change of the connection, so that the stream is checked
// again after each: a restored server is one that was away.
func (s *session[T]) follow(ctx context.Context) error {
	status := s.cfg.JetStream.Conn().StatusChanged()
	defer s.cfg.JetStream.Conn().RemoveStatusListener(status)
	stream, err := s.check(ctx)
	if err != nil {
		return err
	}
	batches := make(chan *batch[T])
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer close(batches)
		return s.read(groupCtx, stream, batches, status)
	})
	group.Go(func() error {
		for b := range batches {
			if err := s.take(groupCtx, b); err != nil {
				return err
			}
		}
		return nil
	})
	return group.Wait() //nolint:wrapcheck // both say what failed
}

// read fills the channel until something fails or the connection changes.
func (s *session[T]) read(ctx context.Context, stream jetstream.Stream, batches chan<- *batch[T], status <-chan nats.Status) error {
	ctx, release := whileUnchanged(ctx, status)
	defer release()
	r, err := openReader(ctx, s.cfg, stream, s.position.last.sequence, batches)
	if err == nil {
		s.state.clear()
		err = r.run(ctx)
	}
	return serverError{err}
}

// whileUnchanged gives a context that ends with the first change of the connection. The caller releases it.
func whileUnchanged(ctx context.Context, status <-chan nats.Status) (context.Context, func()) {
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

// take commits a batch, however often it has to be tried.
func (s *session[T]) take(ctx context.Context, b *batch[T]) error {
	for i := range b.malformed {
		if err := s.bury(ctx, &b.malformed[i].message, fmt.Errorf("malformed: %w", b.malformed[i].err)); err != nil {
			return err
		}
	}
	to := s.position
	to.last = markOf(b.last.Subject, b.last.Header, b.last.Data, b.last.Sequence, b.last.Stored)
	pause := s.cfg.Retry.Backoff()
	for {
		err := s.commit(ctx, b, to)
		bad := poisons(err, b)
		switch {
		case err == nil:
			s.taken(b, to)
			return s.hooks.committed()
		case ctx.Err() != nil, errors.Is(err, errSuperseded), s.conn.IsClosed():
			return err
		case len(bad) > 0:
			for _, p := range bad {
				if err := s.bury(ctx, b.remove(p.Sequence), p.Err); err != nil {
					return err
				}
			}
			continue
		}
		s.trouble(ctx, fmt.Errorf("messages up to %d cannot be handled: %w", to.last.sequence, err))
		if err := pause.Wait(ctx); err != nil {
			return fmt.Errorf("repeat a batch: %w", err)
		}
	}
}

func (s *session[T]) taken(b *batch[T], to position) {
	s.position = to
	s.worked = true
	s.outage.Reset()
	s.state.clear()
	s.count.handled.Add(float64(len(b.messages)))
	s.count.lag.Set(float64(b.lag))
}

// commit handles the batch and moves the cursor. The cursor moves first: a reader that was superseded is told before it does anything.
func (s *session[T]) commit(ctx context.Context, b *batch[T], to position) error {
	ctx, cancel := finishing(ctx)
	defer cancel()
	began := time.Now()
	defer func() { s.count.seconds.Observe(time.Since(began).Seconds()) }()
	return postgres.InTx(ctx, s.conn, func(tx pgx.Tx) error {
		if err := s.cfg.key().move(ctx, tx, s.position, to); err != nil {
			return err
		}
		if len(b.messages) == 0 {
			return nil
		}
		if err := s.cfg.Handle(ctx, tx, b.messages); err != nil {
			return fmt.Errorf("handler: %w", err)
		}
		return nil
	})
}

// finishing gives a context that lasts a little longer than ctx, so that what is under way can end well.
func finishing(ctx context.Context) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		_ = retry.Sleep(longer, drainTimeout)
		cancel()
	})
	return longer, func() {
		stop()
		cancel()
	}
}

func (b *batch[T]) find(sequence uint64) int {
	for i := range b.messages {
		if b.messages[i].Sequence == sequence {
			return i
		}
	}
	return -1
}

func (b *batch[T]) has(sequence uint64) bool { return b.find(sequence) >= 0 }

// remove takes a message that it has out of the batch.
func (b *batch[T]) remove(sequence uint64) *Message[T] {
	i := b.find(sequence)
	removed := b.messages[i]
	b.messages = append(b.messages[:i], b.messages[i+1:]...)
	return &removed
}

// trouble takes note of a failure that is retried.
func (s *session[T]) trouble(ctx context.Context, err error) {
	s.state.set(err)
	s.count.failures.Inc()
	s.cfg.Logger.WarnContext(ctx, "a consumer waits", "consumer", s.cfg.Name, "stream", s.cfg.Stream, "error", err)
}

// awaitServer pauses after a failure of NATS; the pause ends when the connection is back.
func (s *session[T]) awaitServer(ctx context.Context, cause error) error {
	s.trouble(ctx, cause)
	if err := connected(ctx, s.cfg.JetStream.Conn(), s.outage.Next()); err != nil {
		return err
	}
	// Whoever was waiting for the lock would have got it, had the database ended this session meanwhile.
	if err := s.conn.Ping(ctx); err != nil {
		return fmt.Errorf("look after the lock: %w", err)
	}
	return nil
}

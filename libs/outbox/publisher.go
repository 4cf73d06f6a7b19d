package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/retry"
)

// Publisher publishes the messages of the outbox to JetStream and deletes them after the acknowledgement. It is
// safe for concurrent use.
type Publisher struct {
	cfg   Config
	hooks hooks
}

// hooks are points at which tests pause or end a publisher.
type hooks struct {
	publish      func(ctx context.Context, row row) // before a row is sent
	acknowledged func() error                       // between acknowledgement and removal
	waiting      func()                             // before waiting for new rows
}

// New returns a publisher that does nothing until Run. The error lists all errors of the
// configuration.
func New(cfg Config) (*Publisher, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Publisher{
		cfg: cfg.withDefaults(),
		hooks: hooks{
			publish:      func(context.Context, row) {},
			acknowledged: func() error { return nil },
			waiting:      func() {},
		},
	}, nil
}

// Run publishes until ctx ends. Then it removes the acknowledged rows and returns nil; the other rows stay in the
// outbox. While another replica holds the lock, Run waits. It logs and retries failures of the database and of NATS
// forever. Its subscription for acknowledgements ends with the connection: CleanupPublisher of the client leaks a
// goroutine when it is called right after the first publish.
func (p *Publisher) Run(ctx context.Context) error {
	js, err := jetstream.New(p.cfg.Conn,
		jetstream.WithPublishAsyncTimeout(p.cfg.AckTimeout),
		jetstream.WithPublishAsyncMaxPending(4*p.cfg.Batch+maxFailing),
		jetstream.WithDefaultTimeout(min(lookupTimeout, p.cfg.AckTimeout)))
	if err != nil {
		return fmt.Errorf("open JetStream: %w", err)
	}
	backoff := p.cfg.Retry.Backoff()
	for ctx.Err() == nil {
		published, err := p.publishWhileLocked(ctx, js)
		if ctx.Err() != nil {
			break
		}
		if published {
			backoff.Reset()
		}
		p.cfg.Metrics.failures.Inc()
		pause := backoff.Next()
		p.cfg.Logger.WarnContext(ctx, "outbox publisher failed, retrying",
			logkey.Error(err), slog.Duration(logkey.RetryIn, pause))
		_ = retry.Sleep(ctx, pause) // it returns an error only when ctx ends
	}
	return nil //nolint:nilerr // it was asked to end
}

// publishWhileLocked waits for the lock and publishes until the database fails or ctx ends. It
// reports whether it published anything.
func (p *Publisher) publishWhileLocked(ctx context.Context, js jetstream.JetStream) (bool, error) {
	held, err := p.cfg.lock().Acquire(ctx, p.cfg.Pool)
	if err != nil {
		return false, err
	}
	p.cfg.Metrics.active.Set(1)
	defer p.cfg.Metrics.active.Set(0)
	p.cfg.Logger.DebugContext(ctx, "outbox publisher acquired the lock")
	s := newSession(p, js, held)
	err = errors.Join(s.run(ctx), held.Release(ctx))
	return s.published, err
}

// Check is a health check. It fails when the oldest message is older than StaleAfter.
func (p *Publisher) Check(ctx context.Context) error {
	const maxCount = 10_000
	var waiting int
	var seconds float64
	err := p.cfg.Pool.QueryRow(ctx, `
		SELECT count(*), coalesce(extract(epoch FROM clock_timestamp() - min(created_at)), 0)::float8
		FROM (SELECT created_at FROM outbox ORDER BY id LIMIT $1) AS oldest`, maxCount).Scan(&waiting, &seconds)
	if err != nil {
		return fmt.Errorf("read the outbox: %w", err)
	}
	age := time.Duration(seconds * float64(time.Second))
	if age < p.cfg.StaleAfter {
		return nil
	}
	more := ""
	if waiting == maxCount {
		more = " or more"
	}
	reason := "NATS is connected"
	if !p.cfg.Conn.IsConnected() {
		reason = "NATS is not connected"
	}
	return fmt.Errorf("outbox: %d%s unpublished messages, the oldest for %s; %s",
		waiting, more, age.Round(time.Second), reason)
}

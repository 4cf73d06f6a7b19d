package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/internal/delay"
)

// Publisher moves messages from the outbox to JetStream. Its methods may be called from any goroutine.
type Publisher struct {
	cfg    Config
	hooks  hooks
	offers offers
}

// hooks are points at which tests hold or end a publisher.
type hooks struct {
	publish      func(ctx context.Context, row row) // before a row is sent
	acknowledged func() error                       // between acknowledgement and removal
	waiting      func()                             // before waiting for new rows
}

// New makes a publisher; it does nothing until Run. The error says all that is wrong with the configuration.
func New(cfg Config) (*Publisher, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Publisher{
		cfg:    cfg.withDefaults(),
		offers: newOffers(),
		hooks: hooks{
			publish:      func(context.Context, row) {},
			acknowledged: func() error { return nil },
			waiting:      func() {},
		},
	}, nil
}

// Run publishes until ctx is done, then finishes what is under way and returns nil. While another replica publishes it waits.
// Failures of the database and of NATS are logged and retried for ever.
func (p *Publisher) Run(ctx context.Context) error {
	js, err := jetstream.New(p.cfg.Conn,
		jetstream.WithPublishAsyncTimeout(p.cfg.AckTimeout),
		jetstream.WithPublishAsyncMaxPending(4*p.cfg.Batch+maxBlocked),
		jetstream.WithDefaultTimeout(p.cfg.AckTimeout))
	if err != nil {
		return fmt.Errorf("open JetStream: %w", err)
	}
	defer js.CleanupPublisher()

	pause := delay.New(p.cfg.retry())
	for {
		worked, err := p.lead(ctx, js)
		if ctx.Err() != nil {
			return nil
		}
		if worked {
			pause.Reset()
		}
		p.cfg.Metrics.failures.Inc()
		p.cfg.Logger.WarnContext(ctx, "the outbox's publisher starts again", "error", err)
		if pause.Wait(ctx) != nil {
			return nil
		}
	}
}

// lead publishes while it holds the lock. It says whether anything was published, and returns when the database fails or ctx is done.
func (p *Publisher) lead(ctx context.Context, js jetstream.JetStream) (bool, error) {
	held, err := p.cfg.lock().Acquire(ctx, p.cfg.Pool)
	if err != nil {
		return false, err
	}
	p.cfg.Metrics.active.Set(1)
	defer p.cfg.Metrics.active.Set(0)
	p.cfg.Logger.DebugContext(ctx, "this replica publishes the outbox")
	p.offers.open()
	defer p.offers.close()
	s := newSession(p, js, held)
	err = errors.Join(s.run(ctx), held.Release(ctx))
	return s.worked, err
}

// Check is a health check: nil while the oldest waiting message is younger than StaleAfter, else a reason with its age and the
// number of those that wait.
func (p *Publisher) Check(ctx context.Context) error {
	const countTo = 10_000
	var waiting int
	var seconds float64
	err := p.cfg.Pool.QueryRow(ctx, `
		SELECT count(*), coalesce(extract(epoch FROM clock_timestamp() - min(created_at)), 0)::float8
		FROM (SELECT created_at FROM outbox ORDER BY id LIMIT $1) AS oldest`, countTo).Scan(&waiting, &seconds)
	if err != nil {
		return fmt.Errorf("outbox cannot be read: %w", err)
	}
	age := time.Duration(seconds * float64(time.Second))
	if age < p.cfg.StaleAfter {
		return nil
	}
	more := ""
	if waiting == countTo {
		more = " or more"
	}
	reason := "NATS is connected"
	if !p.cfg.Conn.IsConnected() {
		reason = "NATS is not connected"
	}
	return fmt.Errorf("outbox: %d%s messages wait, the oldest for %s; %s", waiting, more, age.Round(time.Second), reason)
}

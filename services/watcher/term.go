package watcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	"k8s.io/utils/clock"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/watcher/kube"
	"lockstep.internal/services/watcher/nats"
)

const (
	minDelay = 100 * time.Millisecond
	maxDelay = 30 * time.Second
	// hearing is how long a term waits for the agent's configuration before it begins without.
	hearing = 5 * time.Second
	// catchingUp is how long a full resync waits for a watch that lags behind its listing.
	catchingUp = 2 * time.Second
)

// errRewound ends a term: everything it knows is of a history that the cluster no longer has.
var errRewound = errors.New("versions in the cluster went back: it was restored from a backup; beginning anew")

// term is one period in which this process reports. It begins knowing nothing. What is reported are its scopes, each by itself; they share
// all that is here.
type term struct {
	// Static after construction.
	scopes    []*scope
	cluster   *kube.Client
	publisher *nats.Publisher
	control   *nats.Control
	reporter  Reporter // of what is of no scope
	publish   Publish
	ticks     time.Duration
	clock     clock.WithTicker
	logger    *slog.Logger
	tracer    trace.Tracer
	metrics   *metrics
	finish    context.Context //nolint:containedctx // what is in flight when the term ends may take this long

	abandon context.CancelCauseFunc // ends the term
	window  chan struct{}           // one element for each message in flight
	running sync.WaitGroup

	revision int // of the configuration that holds, 0 before any; owned by control
}

// run reports until ctx is done. The error says why it ended earlier.
func (t *term) run(ctx context.Context) error {
	for _, sc := range t.scopes {
		if err := sc.run(ctx); err != nil {
			t.abandon(fmt.Errorf("watch the cluster: %w", err))
		}
	}
	t.running.Go(func() { t.control.Run(ctx, t) })
	t.running.Go(func() { t.tick(ctx) })
	t.running.Go(func() {
		var sending sync.WaitGroup
		for _, sc := range t.scopes {
			sending.Go(func() { sc.send(ctx) })
		}
		sending.Wait()
		t.drain()
	})
	t.running.Wait()
	return context.Cause(ctx) //nolint:wrapcheck // what abandoned it says what happened
}

// Configure implements [nats.Directives]. The first configuration holds for the resyncs that a term begins with; each that
// comes later is answered by one of each scope.
func (t *term) Configure(ctx context.Context, cfg events.AgentConfig) <-chan struct{} {
	if cfg.ConfigRevision <= t.revision {
		return nil
	}
	t.revision = cfg.ConfigRevision
	interval := time.Duration(cfg.FullResyncIntervalMs) * time.Millisecond
	t.logger.InfoContext(ctx, "the agent's configuration holds", slog.Int("config_revision", cfg.ConfigRevision), slog.Duration("full_resync_interval", interval))
	answers := make([]<-chan struct{}, 0, len(t.scopes))
	for _, sc := range t.scopes {
		// It has had its effect once it holds; the resync is asked for again by the next leader if this one ends before.
		if ended := sc.configure(interval); ended != nil {
			answers = append(answers, ended)
		}
	}
	return t.all(ctx, answers)
}

// Resync implements [nats.Directives]. Every scope answers.
func (t *term) Resync(ctx context.Context, request events.ResyncRequested) <-chan struct{} {
	t.logger.InfoContext(ctx, "a full resync is asked for", slog.String("nonce", request.Nonce), slog.String("cause", string(request.Cause)))
	answers := make([]<-chan struct{}, 0, len(t.scopes))
	for _, sc := range t.scopes {
		answers = append(answers, sc.ask(events.ResyncCauseRequested, request.Nonce))
	}
	return t.all(ctx, answers)
}

// all is closed when each of the channels is, nil when there are none.
func (t *term) all(ctx context.Context, channels []<-chan struct{}) <-chan struct{} {
	switch len(channels) {
	case 0:
		return nil
	case 1:
		return channels[0]
	}
	closed := make(chan struct{})
	t.running.Go(func() {
		for _, c := range channels {
			select {
			case <-c:
			case <-ctx.Done():
				return
			}
		}
		close(closed)
	})
	return closed
}

// tick tells the time at once and then at each interval. A tick that cannot be sent is not sent later: the next one says more.
func (t *term) tick(ctx context.Context) {
	ticker := t.clock.NewTicker(t.ticks)
	defer ticker.Stop()
	for {
		if fact, err := t.reporter.Tick(t.clock.Now()); err != nil {
			t.logger.ErrorContext(ctx, "cannot tell the time", slog.String("error", err.Error()))
		} else if err := t.publishOnce(ctx, fact); err != nil && ctx.Err() == nil {
			t.logger.DebugContext(ctx, "cannot tell the time", slog.String("error", err.Error()))
		}
		select {
		case <-ticker.C():
		case <-ctx.Done():
			return
		}
	}
}

// pause waits as long as the n-th retry shall: twice as long each time, up to half a minute, jittered.
func (t *term) pause(ctx context.Context, n int) {
	timer := t.clock.NewTimer(backOff(n))
	defer timer.Stop()
	select {
	case <-timer.C():
	case <-ctx.Done():
	}
}

func backOff(n int) time.Duration {
	delay := maxDelay
	if n < 16 {
		delay = min(minDelay<<max(n-1, 0), maxDelay)
	}
	return delay/2 + rand.N(delay/2) //nolint:gosec // spreads retries, guards nothing
}

// size is how many objects are known.
func (t *term) size() int {
	size := 0
	for _, sc := range t.scopes {
		size += sc.size()
	}
	return size
}

// backlog is how many objects are owed, and for how long the oldest is.
func (t *term) backlog() (int, time.Duration) {
	owed, age := 0, time.Duration(0)
	for _, sc := range t.scopes {
		n, oldest := sc.backlog()
		if owed += n; n > 0 {
			age = max(age, t.clock.Since(oldest))
		}
	}
	return owed, age
}

// err says what keeps the term from knowing the cluster.
func (t *term) err() error {
	troubles := make([]error, 0, len(t.scopes))
	for _, sc := range t.scopes {
		troubles = append(troubles, sc.err())
	}
	return errors.Join(troubles...)
}

func signal(to chan struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}

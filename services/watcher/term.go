package watcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
)

// errRewound ends a term: everything it knows is of a history that the cluster no longer has.
var errRewound = errors.New("versions in the cluster went back: it was restored from a backup; beginning anew")

// term is one period in which this process reports. It begins knowing nothing.
type term struct {
	// Static after construction.
	cluster   *kube.Client
	publisher *nats.Publisher
	control   *nats.Control
	reporter  Reporter
	selector  string
	publish   Publish
	ticks     time.Duration
	clock     clock.WithTicker
	logger    *slog.Logger
	tracer    trace.Tracer
	metrics   *metrics
	finish    context.Context //nolint:containedctx // what is in flight when the term ends may take this long

	abandon context.CancelCauseFunc // ends the term
	window  chan struct{}           // one element for each message in flight
	wake    chan struct{}           // something may be sent
	settled chan struct{}           // something was acknowledged
	replan  chan struct{}           // the plan changed
	watch   atomic.Pointer[kube.Watch]
	synced  atomic.Bool

	mu       sync.Mutex
	ledger   *Ledger
	plan     *Plan
	revision int // of the configuration that holds, 0 before any
}

// run reports until ctx is done. The error says why it ended earlier.
func (t *term) run(ctx context.Context) error {
	watch, err := t.cluster.Watch(ctx, t.selector, t)
	if err != nil {
		return fmt.Errorf("watch the cluster: %w", err)
	}
	t.watch.Store(watch)
	var running sync.WaitGroup
	running.Go(watch.Wait)
	running.Go(func() { t.control.Run(ctx, t) })
	running.Go(func() { t.tick(ctx) })
	running.Go(func() { t.send(ctx) })
	running.Go(func() { t.resyncs(ctx, watch) })
	running.Wait()
	return context.Cause(ctx) //nolint:wrapcheck // what abandoned it says what happened
}

// Seen implements [kube.Handler].
func (t *term) Seen(kind kube.Kind, object metav1.Object, initial bool) {
	s, ok := t.sighting(kind, object, events.VerbUpserted)
	if !ok {
		return
	}
	t.mu.Lock()
	if initial {
		t.ledger.Baseline(s)
	} else {
		t.ledger.Observe(s)
	}
	t.mu.Unlock()
	signal(t.wake)
}

// Gone implements [kube.Handler].
func (t *term) Gone(kind kube.Kind, object metav1.Object, missed bool) {
	s, ok := t.sighting(kind, object, events.VerbDeleted)
	if !ok {
		return
	}
	t.mu.Lock()
	if missed {
		t.ledger.Vanished(s)
	} else {
		t.ledger.Observe(s)
	}
	t.mu.Unlock()
	signal(t.wake)
}

// Rewound implements [kube.Handler].
func (t *term) Rewound(kube.Kind) { t.abandon(errRewound) }

// sighting is not ok for what is not reported: a pod or ReplicaSet of no Deployment, which the agent's label alone does not make ours. One
// that was some Deployment's before is then missing from the next full resync.
func (t *term) sighting(kind kube.Kind, object metav1.Object, verb events.Verb) (Sighting, bool) {
	if owningDeployment(kind, object) == "" {
		return Sighting{}, false
	}
	s := Sighting{Key: KeyOf(kind, object), Version: object.GetResourceVersion(), Verb: verb, Object: object, SeenAt: t.clock.Now()}
	if !isVersion(s.Version) {
		t.metrics.malformed.Inc()
		t.logger.Error("an object without a version that can be compared is left out", slog.Any("object", s.Key), slog.String("version", s.Version))
		return Sighting{}, false
	}
	return s, true
}

// Configure implements [nats.Directives]. The first configuration holds for the resync that a term begins with; each that
// comes later is answered by one.
func (t *term) Configure(ctx context.Context, cfg events.AgentConfig) <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if cfg.ConfigRevision <= t.revision {
		return nil
	}
	t.revision = cfg.ConfigRevision
	interval := time.Duration(cfg.FullResyncIntervalMs) * time.Millisecond
	t.logger.InfoContext(ctx, "the agent's configuration holds", slog.Int("config_revision", cfg.ConfigRevision), slog.Duration("full_resync_interval", interval))
	t.plan.SetInterval(interval)
	defer signal(t.replan)
	if !t.plan.Begun() {
		return nil
	}
	// It has had its effect once it holds; the resync is asked for again by the next leader if this one ends before.
	return t.plan.Ask(events.ResyncCauseConfigChanged, "")
}

// Resync implements [nats.Directives].
func (t *term) Resync(ctx context.Context, request events.ResyncRequested) <-chan struct{} {
	t.logger.InfoContext(ctx, "a full resync is asked for", slog.String("nonce", request.Nonce), slog.String("cause", string(request.Cause)))
	t.mu.Lock()
	defer t.mu.Unlock()
	defer signal(t.replan)
	return t.plan.Ask(events.ResyncCauseRequested, request.Nonce)
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

func (t *term) size() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ledger.Size()
}

// backlog is how many objects are owed, and for how long the oldest is.
func (t *term) backlog() (int, time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	owed, oldest := t.ledger.Backlog()
	if owed == 0 {
		return 0, 0
	}
	return owed, max(t.clock.Since(oldest), 0)
}

// err says what keeps the term from knowing the cluster.
func (t *term) err() error {
	watch := t.watch.Load()
	if watch == nil {
		return errors.New("beginning to watch the cluster")
	}
	if err := watch.Err(); err != nil {
		return err
	}
	if !t.synced.Load() {
		return errors.New("reading the cluster for the first time")
	}
	return nil
}

func signal(to chan struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}

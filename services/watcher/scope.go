package watcher

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/watcher/kube"
)

// scope is what is reported by itself, with full resyncs of its own: the objects of workspaces, or workloads whose rollouts are followed. What one of them waits
// for holds up no other.
type scope struct {
	*term

	// Static after construction.
	watched  kube.Scope
	reporter Reporter

	wake    chan struct{} // something may be sent
	settled chan struct{} // something was acknowledged
	replan  chan struct{} // the plan changed
	watch   atomic.Pointer[kube.Watch]
	synced  atomic.Bool

	mu     sync.Mutex
	filter Filter
	ledger *Ledger
	plan   *Plan
}

// workloadBounds let an outage of NATS pass without a loss: a rollout makes some ten versions of its Deployment for each replica.
func workloadBounds() Bounds { return Bounds{PerObject: 256, Total: 100_000} }

// workspaces is the scope of an agent's workspaces: what bears its label, always in the latest version.
func (t *term) workspaces(agent int64, plan *Plan) *scope {
	watched := kube.Workspaces(LabelAgent + "=" + strconv.FormatInt(agent, 10))
	return t.scope(watched, t.reporter, NewLedger(), owned{}, plan)
}

// workloads is the scope of workloads: every version of what is selected.
func (t *term) workloads(selection Selection, annotations []string, plan *Plan) *scope {
	reporter := t.reporter
	reporter.Scope, reporter.Selection = ScopeWorkloads, selection.Digest()
	ledger := NewHistoricLedger(workloadBounds())
	return t.scope(selection.scope(annotations), reporter, ledger, NewGate(ledger.Alive), plan)
}

func (t *term) scope(watched kube.Scope, reporter Reporter, ledger *Ledger, filter Filter, plan *Plan) *scope {
	return &scope{
		term: t, watched: watched, reporter: reporter, ledger: ledger, filter: filter, plan: plan,
		wake: make(chan struct{}, 1), settled: make(chan struct{}, 1), replan: make(chan struct{}, 1),
	}
}

// run begins to watch and to resync, until ctx is done, and returns.
func (sc *scope) run(ctx context.Context) error {
	watch, err := sc.cluster.Watch(ctx, sc.watched, sc)
	if err != nil {
		return err
	}
	sc.watch.Store(watch)
	sc.running.Go(watch.Wait)
	sc.running.Go(func() { sc.resyncs(ctx, watch) })
	return nil
}

// Seen implements [kube.Handler].
func (sc *scope) Seen(kind kube.Kind, object metav1.Object, look kube.Look) {
	occasion := Changed
	switch {
	case look == kube.Initially:
		occasion = Initial
	case look == kube.Again && sc.reporter.Scope == ScopeWorkloads: // where every version counts
		occasion = Found
	}
	sc.enter(kind, object, events.VerbUpserted, occasion)
}

// Gone implements [kube.Handler].
func (sc *scope) Gone(kind kube.Kind, object metav1.Object, missed bool) {
	occasion := Changed
	if missed {
		occasion = Missed
	}
	sc.enter(kind, object, events.VerbDeleted, occasion)
}

// Rewound implements [kube.Handler].
func (sc *scope) Rewound(kube.Kind) { sc.abandon(errRewound) }

func (sc *scope) enter(kind kube.Kind, object metav1.Object, verb events.Verb, occasion Occasion) {
	s, ok := sc.sighting(kind, object, verb, occasion)
	if !ok {
		return
	}
	sc.mu.Lock()
	for _, admitted := range sc.filter.Admit(s) {
		sc.ledger.Enter(admitted)
	}
	sc.mu.Unlock()
	signal(sc.wake)
}

// sighting is not ok for a version that cannot be compared.
func (sc *scope) sighting(kind kube.Kind, object metav1.Object, verb events.Verb, occasion Occasion) (Sighting, bool) {
	s := Sighting{
		Key: KeyOf(kind, object), Version: object.GetResourceVersion(), Verb: verb, Object: object, SeenAt: sc.clock.Now(), Occasion: occasion,
	}
	if !isVersion(s.Version) {
		sc.metrics.malformed.Inc()
		sc.logger.Error("an object without a version that can be compared is left out", slog.Any("object", s.Key), slog.String("version", s.Version))
		return Sighting{}, false
	}
	return s, true
}

// configure sets the time between full resyncs. It asks for one where one has begun before.
func (sc *scope) configure(interval time.Duration) <-chan struct{} {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	defer signal(sc.replan)
	sc.plan.SetInterval(interval)
	if !sc.plan.Begun() {
		return nil
	}
	return sc.plan.Ask(events.ResyncCauseConfigChanged, "")
}

// ask asks for a full resync. The channel is closed when it is sent.
func (sc *scope) ask(cause events.ResyncCause, nonce string) <-chan struct{} {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	defer signal(sc.replan)
	return sc.plan.Ask(cause, nonce)
}

// size is how many objects are known.
func (sc *scope) size() int {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	return sc.ledger.Size()
}

// backlog is how many objects are owed, and since when the oldest is.
func (sc *scope) backlog() (int, time.Time) {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	return sc.ledger.Backlog()
}

// err says what keeps the scope from knowing the cluster.
func (sc *scope) err() error {
	watch := sc.watch.Load()
	if watch == nil {
		return errors.New("beginning to watch the cluster")
	}
	if err := watch.Err(); err != nil {
		return err
	}
	if !sc.synced.Load() {
		return errors.New("reading the cluster for the first time")
	}
	return nil
}

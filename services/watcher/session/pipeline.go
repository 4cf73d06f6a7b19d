package session

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/watcher/delivery"
	"lockstep.internal/services/watcher/filter"
	"lockstep.internal/services/watcher/inflight"
	"lockstep.internal/services/watcher/kube"
	"lockstep.internal/services/watcher/object"
	"lockstep.internal/services/watcher/report"
	"lockstep.internal/services/watcher/resync"
)

// pipeline reports one scope: the objects of workspaces, or tracked workloads.
type pipeline struct {
	*Session

	// Static after construction.
	scope    kube.Scope
	reporter report.Reporter
	// pageMembers limits the members of full resyncs in one message, maxUnread the messages of members that the state
	// service has not processed.
	pageMembers int
	maxUnread   uint64

	wake     chan struct{} // a version may be published
	settled  chan struct{} // a delivery was acknowledged or failed
	replan   chan struct{} // the plan changed
	observed chan struct{} // inflight changed
	watch    atomic.Pointer[kube.Watch]
	synced   atomic.Bool

	pages int // published messages of several members; only publish uses it

	mu       sync.Mutex
	filter   filter.Filter
	queue    *delivery.Queue
	plan     *resync.Plan
	inflight *inflight.Tracker // of tracked workloads; nil for workspaces, whose pods are watched
}

// workloadBounds hold the versions of an outage of NATS: a rollout makes about ten versions of its Deployment for
// each replica, so 256 are enough for 25 replicas.
func workloadBounds() delivery.Bounds { return delivery.Bounds{PerName: 256, Total: 100_000} }

// workspaces makes the pipeline of the agent's workspaces. It publishes the latest version of each
// object.
func (s *Session) workspaces() *pipeline {
	scope := kube.Workspaces(object.LabelAgent + "=" + strconv.FormatInt(s.Reporter.Agent, 10))
	p := s.pipeline(scope, s.Reporter, delivery.New(delivery.Bounds{}), filter.Workspaces{})
	p.pageMembers, p.maxUnread = pageMembers, maxUnreadPages
	return p
}

// workloads makes the pipeline of tracked workloads. It publishes every version of each object in an event of its own:
// readers read and replay the history of a single workload.
func (s *Session) workloads(w Workloads) *pipeline {
	scope := kube.Workloads(kube.WorkloadOptions{
		Namespaces: w.Selection.Namespaces(), Selects: w.Selection.Selects, Annotations: w.Annotations,
	})
	reporter := s.Reporter
	reporter.Scope, reporter.Selection = report.ScopeWorkloads, w.Selection.Digest()
	queue := delivery.New(workloadBounds())
	p := s.pipeline(scope, reporter, queue, filter.NewWorkloads(queue.Exists))
	p.inflight = inflight.NewTracker()
	p.pageMembers, p.maxUnread = 1, maxUnread
	return p
}

func (s *Session) pipeline(
	scope kube.Scope,
	reporter report.Reporter,
	queue *delivery.Queue,
	f filter.Filter,
) *pipeline {
	return &pipeline{
		Session: s, scope: scope, reporter: reporter, queue: queue, filter: f, plan: resync.NewPlan(s.Cause, s.Interval),
		wake: make(chan struct{}, 1), settled: make(chan struct{}, 1), replan: make(chan struct{}, 1),
		observed: make(chan struct{}, 1),
	}
}

// start starts the watch and the resyncs, until ctx is done.
func (p *pipeline) start(ctx context.Context) error {
	watch, err := p.Cluster.Watch(ctx, p.scope, p)
	if err != nil {
		return err
	}
	p.watch.Store(watch)
	p.running.Go(watch.Wait)
	p.running.Go(func() { p.runResyncs(ctx, watch) })
	if p.inflight != nil {
		p.running.Go(func() { p.explain(ctx) })
	}
	return nil
}

// Upserted implements [kube.Handler].
func (p *pipeline) Upserted(kind object.Kind, o object.Object, origin object.Origin) {
	if origin == object.Found && p.reporter.Scope != report.ScopeWorkloads {
		origin = object.Changed // for workspaces, missed versions are not marked: only the latest counts
	}
	p.add(kind, o, events.VerbUpserted, origin)
}

// Deleted implements [kube.Handler].
func (p *pipeline) Deleted(kind object.Kind, o object.Object, missed bool) {
	origin := object.Changed
	if missed {
		origin = object.Missed
	}
	p.add(kind, o, events.VerbDeleted, origin)
}

// VersionDecreased implements [kube.Handler].
func (p *pipeline) VersionDecreased(object.Kind) { p.Cancel(ErrVersionsDecreased) }

func (p *pipeline) add(kind object.Kind, o object.Object, verb events.Verb, origin object.Origin) {
	v := object.Version{
		Kind: kind, Object: o, ResourceVersion: o.GetResourceVersion(), Verb: verb,
		ObservedAt: p.Clock.Now(), Origin: origin,
	}
	if !object.Comparable(v.ResourceVersion) {
		p.Metrics.malformed.Inc()
		p.Logger.Error("omitted an object without a comparable resourceVersion", append(keyAttrs(v.Key()),
			slog.String(logkey.ResourceVersion, v.ResourceVersion))...)
		return
	}
	p.mu.Lock()
	for _, passed := range p.filter.Filter(v) {
		p.queue.Add(passed)
		if p.inflight != nil {
			p.inflight.Observe(passed)
		}
	}
	p.mu.Unlock()
	signal(p.wake)
	signal(p.observed)
}

func keyAttrs(key object.Key) []any {
	return []any{
		slog.String(logkey.Kind, string(key.Kind)),
		slog.String(logkey.Namespace, key.Namespace),
		slog.String(logkey.Name, key.Name),
	}
}

// configure sets the interval of full resyncs. After the first resync has started, it requests another.
func (p *pipeline) configure(interval time.Duration) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer signal(p.replan)
	p.plan.SetInterval(interval)
	if !p.plan.Started() {
		return nil
	}
	return p.plan.Request(events.ResyncCauseConfigChanged, "")
}

// request requests a full resync. The channel is closed when it has ended.
func (p *pipeline) request(cause events.ResyncCause, nonce string) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer signal(p.replan)
	return p.plan.Request(cause, nonce)
}

func (p *pipeline) objects() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.queue.Len()
}

func (p *pipeline) pending() (int, time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.queue.Pending()
}

// err returns why the observed state is not up to date, or nil.
func (p *pipeline) err() error {
	watch := p.watch.Load()
	if watch == nil {
		return errors.New("the watch is starting")
	}
	if err := watch.Err(); err != nil {
		return err
	}
	if !p.synced.Load() {
		return errors.New("the first list of the cluster has not ended")
	}
	return nil
}

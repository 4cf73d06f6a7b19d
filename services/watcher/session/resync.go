package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/services/watcher/kube"
	"lockstep.internal/services/watcher/object"
	"lockstep.internal/services/watcher/resync"
)

// runResyncs runs full resyncs one after the other as planned, until ctx is done.
func (p *pipeline) runResyncs(ctx context.Context, watch *kube.Watch) {
	// The queue must know the initial objects before the first list, or listed objects would look new.
	if watch.WaitForSync(ctx) != nil {
		return
	}
	p.synced.Store(true)
	p.awaitConfig(ctx)
	for ctx.Err() == nil {
		id, err := uuid.NewV7()
		if err != nil {
			p.Cancel(fmt.Errorf("make a resync's id: %w", err))
			return
		}
		p.mu.Lock()
		next, wait, ok := p.plan.Start(p.Clock.Now(), id.String())
		p.mu.Unlock()
		if !ok {
			p.awaitPlan(ctx, wait)
			continue
		}
		if err := p.resync(ctx, next); err != nil {
			if ctx.Err() == nil {
				p.Cancel(err)
			}
			return
		}
		p.mu.Lock()
		p.plan.End()
		p.mu.Unlock()
	}
}

// awaitConfig waits for the agent's configuration, at most [Options.ConfigTimeout].
func (s *Session) awaitConfig(ctx context.Context) {
	timeout := time.NewTimer(s.ConfigTimeout)
	defer timeout.Stop()
	select {
	case <-s.Control.CaughtUp():
	case <-timeout.C:
		s.Logger.WarnContext(ctx, "received no configuration; using the defaults",
			slog.Duration(logkey.Duration, s.ConfigTimeout))
	case <-ctx.Done():
	}
}

func (p *pipeline) awaitPlan(ctx context.Context, wait time.Duration) {
	timer := p.Clock.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C():
	case <-p.replan:
	case <-ctx.Done():
	}
}

// resync publishes one full resync and retries until it has ended. It returns an error if ctx is
// done or resource versions decreased.
func (p *pipeline) resync(ctx context.Context, r resync.Resync) error {
	started := p.Clock.Now()
	ctx, span := p.Tracer.Start(ctx, "full resync", trace.WithAttributes(
		attribute.String("lockstep.resync_id", r.ID), attribute.String("lockstep.resync_cause", string(r.Cause)),
		attribute.String("lockstep.resync_scope", p.reporter.Scope)))
	defer span.End()

	if err := p.begin(ctx, &r); err != nil {
		return err
	}
	signal(p.wake)
	span.SetAttributes(attribute.Int("lockstep.resync_count", r.Count))
	if err := p.awaitMembers(ctx); err != nil {
		return err
	}
	message, err := p.reporter.ResyncEnded(r, p.Clock.Now())
	if err != nil {
		return err
	}
	if err := p.publishUntilStored(ctx, message); err != nil {
		return err
	}
	p.Metrics.resyncs.WithLabelValues(string(r.Cause), p.reporter.Scope).Inc()
	p.Metrics.duration.Observe(p.Clock.Since(started).Seconds())
	p.Logger.InfoContext(ctx, "published a full resync",
		slog.String(logkey.ResyncID, r.ID), slog.String(logkey.Cause, string(r.Cause)), slog.String(logkey.Nonce, r.Nonce),
		slog.Int(logkey.Count, r.Count), slog.Duration(logkey.Duration, p.Clock.Since(started)))
	return nil
}

// begin lists the members, publishes the begin event and makes the queue publish the members.
func (p *pipeline) begin(ctx context.Context, r *resync.Resync) error {
	lists, began, err := p.list(ctx)
	if err != nil {
		return err
	}
	p.mu.Lock()
	unselected := p.filter.FilterLists(lists)
	p.mu.Unlock()
	p.catchUp(ctx, lists)
	p.mu.Lock()
	for _, v := range unselected {
		p.queue.Add(v)
	}
	p.queue.Pause()
	r.Known = p.queue.KnownVersions()
	p.mu.Unlock()
	r.Versions = make(map[object.Kind]string, len(lists))
	for _, list := range lists {
		r.Versions[list.Kind] = list.ResourceVersion
		r.Count += len(list.Objects)
	}
	message, err := p.reporter.ResyncBegun(*r, began)
	if err != nil {
		return err
	}
	if err := p.publishUntilStored(ctx, message); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue.StartResync(r.ID, lists, p.Clock.Now())
	return nil
}

// catchUp waits until the watch has reported the listed versions, at most [catchUpTimeout].
func (p *pipeline) catchUp(ctx context.Context, lists []object.List) {
	timeout := p.Clock.NewTimer(catchUpTimeout)
	defer timeout.Stop()
	poll := time.NewTicker(catchUpPoll)
	defer poll.Stop()
	for {
		p.mu.Lock()
		behind := p.queue.Behind(lists)
		p.mu.Unlock()
		if behind == 0 {
			return
		}
		select {
		case <-poll.C:
		case <-timeout.C():
			p.Logger.WarnContext(ctx, "the watch lags behind a full resync; versions may be lost",
				slog.Int(logkey.Count, behind))
			return
		case <-ctx.Done():
			return
		}
	}
}

// list lists every kind of the scope. The lists contain every object that was created before began
// and not deleted since. A failed attempt does not hold up changes.
func (p *pipeline) list(ctx context.Context) (lists []object.List, began time.Time, err error) {
	for n := 1; ; n++ {
		p.mu.Lock()
		p.queue.BeginList()
		p.mu.Unlock()
		began = p.Clock.Now()
		lists, err = p.listOnce(ctx)
		if err == nil || errors.Is(err, ErrVersionsDecreased) {
			return lists, began, err
		}
		if ctx.Err() != nil {
			return nil, began, fmt.Errorf("full resync: %w", context.Cause(ctx))
		}
		p.mu.Lock()
		p.queue.EndList()
		p.mu.Unlock()
		signal(p.wake)
		p.Logger.WarnContext(ctx, "list for a full resync failed; retrying",
			slog.Int(logkey.Attempt, n), logkey.Error(err))
		p.sleep(ctx, n)
	}
}

// listOnce lists all kinds, one after the other: a change that the watch reports meanwhile waits for the processor, and
// would wait longer for several lists.
func (p *pipeline) listOnce(ctx context.Context) ([]object.List, error) {
	var lists []object.List
	for _, kind := range p.scope.Kinds() {
		list, err := p.listKind(ctx, kind)
		if err != nil {
			return nil, err
		}
		lists = append(lists, list)
	}
	return lists, nil
}

func (p *pipeline) listKind(ctx context.Context, kind object.Kind) (object.List, error) {
	p.mu.Lock()
	known := p.queue.Highest(kind)
	p.mu.Unlock()
	list, err := p.Cluster.List(ctx, p.scope, kind, p.held)
	if err != nil {
		return list, err
	}
	if !object.Comparable(list.ResourceVersion) {
		return list, fmt.Errorf("list %ss: the version of the list, %q, cannot be compared", kind, list.ResourceVersion)
	}
	// A list is never older than a version known before it, unless the cluster was restored.
	if known != "" && object.Higher(known, list.ResourceVersion) != list.ResourceVersion {
		return list, fmt.Errorf("%w (%ss: listed at %s, known at %s)",
			ErrVersionsDecreased, kind, list.ResourceVersion, known)
	}
	list.ListedAt = p.Clock.Now()
	list.Objects = slices.DeleteFunc(list.Objects, func(o object.Object) bool {
		return !object.Comparable(o.GetResourceVersion())
	})
	return list, nil
}

// held returns the object if the queue holds it in this version.
func (p *pipeline) held(key object.Key, resourceVersion string) object.Object {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.queue.Held(key, resourceVersion)
}

func (p *pipeline) awaitMembers(ctx context.Context) error {
	for {
		p.mu.Lock()
		outstanding := p.queue.Outstanding()
		p.mu.Unlock()
		if outstanding == 0 {
			return nil
		}
		select {
		case <-p.settled:
		case <-ctx.Done():
			return fmt.Errorf("full resync: %w", context.Cause(ctx))
		}
	}
}

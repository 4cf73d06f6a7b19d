package watcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/watcher/kube"
)

// resyncs runs full resyncs, one at a time, as the plan wants them.
func (sc *scope) resyncs(ctx context.Context, watch *kube.Watch) {
	// Baselines must be known before the first listing, or what it finds would look new.
	if watch.Synced(ctx) != nil {
		return
	}
	sc.synced.Store(true)
	sc.hear(ctx)
	for ctx.Err() == nil {
		id, err := uuid.NewV7()
		if err != nil {
			sc.abandon(fmt.Errorf("make a resync's id: %w", err))
			return
		}
		sc.mu.Lock()
		resync, wait, ok := sc.plan.Begin(sc.clock.Now(), id.String())
		sc.mu.Unlock()
		if !ok {
			sc.awaitPlan(ctx, wait)
			continue
		}
		if err := sc.resync(ctx, resync); err != nil {
			if ctx.Err() == nil {
				sc.abandon(err)
			}
			return
		}
		sc.mu.Lock()
		sc.plan.End()
		sc.mu.Unlock()
	}
}

// hear waits for the agent's configuration, but not for ever: the cluster is to be told of even where nobody configures the agent.
func (t *term) hear(ctx context.Context) {
	patience := time.NewTimer(hearing)
	defer patience.Stop()
	select {
	case <-t.control.Heard():
	case <-patience.C:
		t.logger.WarnContext(ctx, "the agent's configuration is not heard, beginning with the defaults")
	case <-ctx.Done():
	}
}

func (sc *scope) awaitPlan(ctx context.Context, wait time.Duration) {
	timer := sc.clock.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C():
	case <-sc.replan:
	case <-ctx.Done():
	}
}

// resync sends one full resync: its begin, a member for each object that the cluster has at the listed versions, its end once all are
// acknowledged. It is tried for ever; an error is the context's, or that the cluster went back.
func (sc *scope) resync(ctx context.Context, resync Resync) error {
	began := sc.clock.Now()
	ctx, span := sc.tracer.Start(ctx, "full resync", trace.WithAttributes(
		attribute.String("lockstep.resync_id", resync.ID), attribute.String("lockstep.resync_cause", string(resync.Cause)),
		attribute.String("lockstep.resync_scope", sc.reporter.Scope)))
	defer span.End()

	// Nothing is sent until the begin is stored, see Ledger.Pause.
	defer sc.resume()
	if err := sc.begin(ctx, &resync); err != nil {
		return err
	}
	span.SetAttributes(attribute.Int("lockstep.resync_count", resync.Count))
	sc.resume()
	if err := sc.awaitMembers(ctx); err != nil {
		return err
	}
	fact, err := sc.reporter.Ended(resync, sc.clock.Now())
	if err != nil {
		return err
	}
	if err := sc.publishUntilStored(ctx, fact); err != nil {
		return err
	}
	sc.metrics.resyncs.WithLabelValues(string(resync.Cause), sc.reporter.Scope).Inc()
	sc.metrics.duration.Observe(sc.clock.Since(began).Seconds())
	sc.logger.InfoContext(ctx, "full resync sent", slog.String("resync_id", resync.ID), slog.String("cause", string(resync.Cause)),
		slog.String("nonce", resync.Nonce), slog.Int("count", resync.Count), slog.Duration("took", sc.clock.Since(began)))
	return nil
}

// begin lists the members, tells so, and has the ledger owe them.
func (sc *scope) begin(ctx context.Context, resync *Resync) error {
	listings, err := sc.list(ctx)
	if err != nil {
		return err
	}
	sc.mu.Lock()
	others := sc.filter.Sift(listings)
	sc.mu.Unlock()
	sc.catchUp(ctx, listings)
	sc.mu.Lock()
	for _, other := range others {
		sc.ledger.Enter(other)
	}
	sc.mu.Unlock()
	resync.Versions = make(map[kube.Kind]string, len(listings))
	for _, listed := range listings {
		resync.Versions[listed.Kind] = listed.Version
		resync.Count += len(listed.Members)
	}
	fact, err := sc.reporter.Begun(*resync, sc.clock.Now())
	if err != nil {
		return err
	}
	if err := sc.publishUntilStored(ctx, fact); err != nil {
		return err
	}
	sc.mu.Lock()
	defer sc.mu.Unlock()
	sc.ledger.Join(resync.ID, listings, sc.clock.Now())
	return nil
}

// catchUp waits until the watch has told of what led to the listings, but not for ever: it may have lost its place.
func (sc *scope) catchUp(ctx context.Context, listings []Listed) {
	patience := time.NewTimer(catchingUp)
	defer patience.Stop()
	look := time.NewTicker(catchingUp / 200)
	defer look.Stop()
	for {
		sc.mu.Lock()
		lag := sc.ledger.Lag(listings)
		sc.mu.Unlock()
		if lag == 0 {
			return
		}
		select {
		case <-look.C:
		case <-patience.C:
			sc.logger.WarnContext(ctx, "the watch lags behind a full resync, versions in between may be lost", slog.Int("objects", lag))
			return
		case <-ctx.Done():
			return
		}
	}
}

func (sc *scope) resume() {
	sc.mu.Lock()
	sc.ledger.Resume()
	sc.mu.Unlock()
	signal(sc.wake)
}

// list reads every kind of the scope and returns with the ledger paused. While Kubernetes refuses, what changes is sent on.
func (sc *scope) list(ctx context.Context) ([]Listed, error) {
	for n := 1; ; n++ {
		sc.mu.Lock()
		sc.ledger.Pause()
		sc.mu.Unlock()
		listings, err := sc.listOnce(ctx)
		if err == nil || errors.Is(err, errRewound) {
			return listings, err
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("full resync: %w", context.Cause(ctx))
		}
		sc.resume()
		sc.logger.WarnContext(ctx, "the cluster cannot be listed for a full resync, trying on", slog.String("error", err.Error()))
		sc.pause(ctx, n)
	}
}

func (sc *scope) listOnce(ctx context.Context) ([]Listed, error) {
	kinds := sc.watched.Kinds()
	listings := make([]Listed, 0, len(kinds))
	for _, kind := range kinds {
		sc.mu.Lock()
		known := sc.ledger.Highest(kind)
		sc.mu.Unlock()
		listing, err := sc.cluster.List(ctx, sc.watched, kind, func(o metav1.Object) metav1.Object { return sc.held(kind, o) })
		if err != nil {
			return nil, err
		}
		if !isVersion(listing.Version) {
			return nil, fmt.Errorf("list %ss: the list's version %q cannot be compared", kind, listing.Version)
		}
		// The listing is of a moment after everything known then.
		if known != "" && later(known, listing.Version) != listing.Version {
			return nil, fmt.Errorf("%w (%ss: listed at %s, known at %s)", errRewound, kind, listing.Version, known)
		}
		listed := Listed{Kind: kind, Version: listing.Version, Members: make([]Sighting, 0, len(listing.Objects))}
		for _, o := range listing.Objects {
			if s, ok := sc.sighting(kind, o, events.VerbUpserted, Changed); ok {
				listed.Members = append(listed.Members, s)
			}
		}
		listings = append(listings, listed)
	}
	return listings, nil
}

// held is the object as the ledger has it, where that is the same version.
func (sc *scope) held(kind kube.Kind, o metav1.Object) metav1.Object {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	if known := sc.ledger.Held(KeyOf(kind, o), o.GetResourceVersion()); known != nil {
		return known
	}
	return o
}

func (sc *scope) awaitMembers(ctx context.Context) error {
	for {
		sc.mu.Lock()
		outstanding := sc.ledger.Outstanding()
		sc.mu.Unlock()
		if outstanding == 0 {
			return nil
		}
		select {
		case <-sc.settled:
		case <-ctx.Done():
			return fmt.Errorf("full resync: %w", context.Cause(ctx))
		}
	}
}

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
func (t *term) resyncs(ctx context.Context, watch *kube.Watch) {
	// Baselines must be known before the first listing, or what it finds would look new.
	if watch.Synced(ctx) != nil {
		return
	}
	t.synced.Store(true)
	t.hear(ctx)
	for ctx.Err() == nil {
		id, err := uuid.NewV7()
		if err != nil {
			t.abandon(fmt.Errorf("make a resync's id: %w", err))
			return
		}
		t.mu.Lock()
		resync, wait, ok := t.plan.Begin(t.clock.Now(), id.String())
		t.mu.Unlock()
		if !ok {
			t.awaitPlan(ctx, wait)
			continue
		}
		if err := t.resync(ctx, resync); err != nil {
			if ctx.Err() == nil {
				t.abandon(err)
			}
			return
		}
		t.mu.Lock()
		t.plan.End()
		t.mu.Unlock()
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

func (t *term) awaitPlan(ctx context.Context, wait time.Duration) {
	timer := t.clock.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C():
	case <-t.replan:
	case <-ctx.Done():
	}
}

// resync sends one full resync: its begin, a member for each object that the cluster has at the listed versions, its end once all are
// acknowledged. It is tried for ever; an error is the context's, or that the cluster went back.
func (t *term) resync(ctx context.Context, resync Resync) error {
	began := t.clock.Now()
	ctx, span := t.tracer.Start(ctx, "full resync", trace.WithAttributes(
		attribute.String("lockstep.resync_id", resync.ID), attribute.String("lockstep.resync_cause", string(resync.Cause))))
	defer span.End()

	// Nothing is sent until the begin is stored, see Ledger.Pause.
	defer t.resume()
	if err := t.begin(ctx, &resync); err != nil {
		return err
	}
	span.SetAttributes(attribute.Int("lockstep.resync_count", resync.Count))
	t.resume()
	if err := t.awaitMembers(ctx); err != nil {
		return err
	}
	fact, err := t.reporter.Ended(resync, t.clock.Now())
	if err != nil {
		return err
	}
	if err := t.publishUntilStored(ctx, fact); err != nil {
		return err
	}
	t.metrics.resyncs.WithLabelValues(string(resync.Cause)).Inc()
	t.metrics.duration.Observe(t.clock.Since(began).Seconds())
	t.logger.InfoContext(ctx, "full resync sent", slog.String("resync_id", resync.ID), slog.String("cause", string(resync.Cause)),
		slog.String("nonce", resync.Nonce), slog.Int("count", resync.Count), slog.Duration("took", t.clock.Since(began)))
	return nil
}

// begin lists the members, tells so, and has the ledger owe them.
func (t *term) begin(ctx context.Context, resync *Resync) error {
	listings, err := t.list(ctx)
	if err != nil {
		return err
	}
	resync.Versions = make(map[kube.Kind]string, len(listings))
	for _, listed := range listings {
		resync.Versions[listed.Kind] = listed.Version
		resync.Count += len(listed.Members)
	}
	fact, err := t.reporter.Begun(*resync, t.clock.Now())
	if err != nil {
		return err
	}
	if err := t.publishUntilStored(ctx, fact); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ledger.Join(resync.ID, listings, t.clock.Now())
	return nil
}

func (t *term) resume() {
	t.mu.Lock()
	t.ledger.Resume()
	t.mu.Unlock()
	signal(t.wake)
}

// list reads every kind and returns with the ledger paused. While Kubernetes refuses, what changes is sent on.
func (t *term) list(ctx context.Context) ([]Listed, error) {
	for n := 1; ; n++ {
		t.mu.Lock()
		t.ledger.Pause()
		t.mu.Unlock()
		listings, err := t.listOnce(ctx)
		if err == nil || errors.Is(err, errRewound) {
			return listings, err
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("full resync: %w", context.Cause(ctx))
		}
		t.resume()
		t.logger.WarnContext(ctx, "the cluster cannot be listed for a full resync, trying on", slog.String("error", err.Error()))
		t.pause(ctx, n)
	}
}

func (t *term) listOnce(ctx context.Context) ([]Listed, error) {
	listings := make([]Listed, 0, len(kube.Kinds()))
	for _, kind := range kube.Kinds() {
		t.mu.Lock()
		known := t.ledger.Highest(kind)
		t.mu.Unlock()
		listing, err := t.cluster.List(ctx, kind, t.selector, func(o metav1.Object) metav1.Object { return t.held(kind, o) })
		if err != nil {
			return nil, err //nolint:wrapcheck // says which kind
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
			if s, ok := t.sighting(kind, o, events.VerbUpserted); ok {
				listed.Members = append(listed.Members, s)
			}
		}
		listings = append(listings, listed)
	}
	return listings, nil
}

// held is the object as the ledger has it, where that is the same version.
func (t *term) held(kind kube.Kind, o metav1.Object) metav1.Object {
	t.mu.Lock()
	defer t.mu.Unlock()
	if known := t.ledger.Held(KeyOf(kind, o), o.GetResourceVersion()); known != nil {
		return known
	}
	return o
}

func (t *term) awaitMembers(ctx context.Context) error {
	for {
		t.mu.Lock()
		outstanding := t.ledger.Outstanding()
		t.mu.Unlock()
		if outstanding == 0 {
			return nil
		}
		select {
		case <-t.settled:
		case <-ctx.Done():
			return fmt.Errorf("full resync: %w", context.Cause(ctx))
		}
	}
}

package publish

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"

	"github.com/google/uuid"

	"lockstep.internal/services/deploys/metrics"
)

// reconcileBatch is the number of workloads that one query returns.
const reconcileBatch = 100

// StoredFacts is the port of the [Reconciler] to the stored facts.
type StoredFacts interface {
	Facts

	// PublishedUpTo returns the id and position of the stored fact with the highest position up to the given one; false
	// if there is none.
	PublishedUpTo(ctx context.Context, position int64) (id string, at int64, found bool, err error)
	// ForgetPositions sets the positions above the given one to unknown.
	ForgetPositions(ctx context.Context, above int64) error
	// Unlocated returns workloads with facts of unknown position, at most limit, and the lowest such sequence of each.
	Unlocated(ctx context.Context, limit int) (map[uuid.UUID]int64, error)
	// SetPositions stores positions of facts by id.
	SetPositions(ctx context.Context, positions map[string]int64) error
}

// Reconciler makes the stream DEPLOYS agree with the stored facts: it republishes what a restored stream lacks, and
// finds unknown positions after a rebuild. It may run beside the publisher and other replicas. All fields but Metrics
// are required.
type Reconciler struct {
	Stream  Stream
	Facts   StoredFacts
	Logger  *slog.Logger
	Metrics *metrics.Metrics
}

// RepublishAll republishes every fact that the stream lacks and returns their number.
func (r *Reconciler) RepublishAll(ctx context.Context) (int, error) {
	if err := r.forgetLostPositions(ctx); err != nil {
		return 0, err
	}
	total := 0
	for {
		workloads, err := r.Facts.Unlocated(ctx, reconcileBatch)
		if err != nil || len(workloads) == 0 {
			return total, err
		}
		ids := slices.SortedFunc(maps.Keys(workloads), func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) })
		for _, id := range ids {
			count, err := r.reconcile(ctx, id, workloads[id])
			for attempt := 0; errors.Is(err, ErrConflict) && attempt < maxConflicts; attempt++ {
				count, err = r.reconcile(ctx, id, workloads[id]) // the publisher or another replica was faster
			}
			if total += count; err != nil {
				return total, err
			}
		}
	}
}

// forgetLostPositions compares the stream with the database. If the stream was restored from an older copy, it finds
// the newest fact that both have, and forgets the positions after it.
func (r *Reconciler) forgetLostPositions(ctx context.Context) error {
	id, position, found, err := r.Facts.PublishedUpTo(ctx, math.MaxInt64)
	if err != nil || !found {
		return err
	}
	first, err := r.Stream.FirstPosition(ctx)
	if err != nil {
		return err
	}
	if position < first {
		return nil // the stream dropped all of them by its limits
	}
	same, err := r.onStream(ctx, id, position)
	if err != nil || same {
		return err
	}
	// Binary search: up to low both agree, at high they differ.
	low, high := max(first-1, 0), position
	for low+1 < high {
		middle := (low + high) / 2
		id, position, found, err = r.Facts.PublishedUpTo(ctx, middle)
		if err != nil {
			return err
		}
		if !found || position <= low {
			low = middle // no fact in between
			continue
		}
		if same, err = r.onStream(ctx, id, position); err != nil {
			return err
		}
		if same {
			low = middle
		} else {
			high = position
		}
	}
	r.Logger.WarnContext(ctx, "the stream was restored from an older copy; facts after the position are republished",
		slog.Int64("sequence", low))
	return r.Facts.ForgetPositions(ctx, low)
}

func (r *Reconciler) onStream(ctx context.Context, id string, position int64) (bool, error) {
	m, err := r.Stream.At(ctx, position)
	return err == nil && m.ID == id, err
}

// reconcile finds the facts of a workload from a sequence number on, and republishes those that the stream lacks.
func (r *Reconciler) reconcile(ctx context.Context, workload uuid.UUID, from int64) (int, error) {
	facts, err := r.Facts.Between(ctx, workload, from-1, math.MaxInt64, 0)
	if err != nil || len(facts) == 0 {
		return 0, err
	}
	positions := make(map[string]int64, len(facts))
	for i := range facts {
		positions[facts[i].ID()] = Dropped // unless it is found or republished
	}
	published, err := r.Stream.After(ctx, facts[0].Workload, 0)
	if err != nil {
		return 0, err
	}
	var newest Published
	for _, newest = range published {
		if _, stored := positions[newest.ID]; stored {
			positions[newest.ID] = newest.Position
		}
	}
	_, republished, err := republish(ctx, r.Stream, r.Facts, workload, newest, math.MaxInt64)
	if err != nil {
		return 0, fmt.Errorf("reconcile workload %s: %w", workload, err)
	}
	maps.Copy(positions, republished)
	r.Metrics.Republished(len(republished))
	return len(republished), r.Facts.SetPositions(ctx, positions)
}

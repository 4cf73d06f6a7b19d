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

	"lockstep.internal/libs/logkey"
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
	// ClearPositions sets the positions above the given one to unknown.
	ClearPositions(ctx context.Context, above int64) error
	// WithoutPosition returns up to limit workloads that have facts of unknown position, with the lowest such sequence
	// number.
	WithoutPosition(ctx context.Context, limit int) (map[uuid.UUID]int64, error)
	// SetPositions stores positions of facts by id.
	SetPositions(ctx context.Context, positions map[string]int64) error
}

// Reconciler compares the stream DEPLOYS with the stored facts. It republishes the facts that a restored stream lacks,
// and finds the positions of facts after a rebuild. It may run concurrently with the publisher and with other replicas.
// All fields but Metrics are required.
type Reconciler struct {
	Stream  Stream
	Facts   StoredFacts
	Logger  *slog.Logger
	Metrics *metrics.Metrics
}

// RepublishAll republishes every fact that the stream lacks and returns their number.
func (r *Reconciler) RepublishAll(ctx context.Context) (int, error) {
	if err := r.clearLostPositions(ctx); err != nil {
		return 0, err
	}
	total := 0
	for {
		workloads, err := r.Facts.WithoutPosition(ctx, reconcileBatch)
		if err != nil || len(workloads) == 0 {
			return total, err
		}
		ids := slices.SortedFunc(maps.Keys(workloads), func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) })
		for _, id := range ids {
			count, err := r.reconcile(ctx, id, workloads[id])
			for attempt := 0; errors.Is(err, ErrConflict) && attempt < maxConflicts; attempt++ {
				count, err = r.reconcile(ctx, id, workloads[id]) // the publisher or another replica has published meanwhile
			}
			if total += count; err != nil {
				return total, err
			}
		}
	}
}

// clearLostPositions detects that the stream was restored from an older copy. It then finds the newest fact that both
// the stream and the database have, and clears the positions of later facts in the database.
func (r *Reconciler) clearLostPositions(ctx context.Context) error {
	id, position, found, err := r.Facts.PublishedUpTo(ctx, math.MaxInt64)
	if err != nil || !found {
		return err
	}
	first, err := r.Stream.FirstPosition(ctx)
	if err != nil {
		return err
	}
	if position < first {
		return nil // the stream has dropped all facts by its limits
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
	r.Logger.WarnContext(ctx, "the stream was restored from an older copy; republishing facts after this position",
		slog.Int64(logkey.Sequence, low))
	return r.Facts.ClearPositions(ctx, low)
}

func (r *Reconciler) onStream(ctx context.Context, id string, position int64) (bool, error) {
	m, err := r.Stream.At(ctx, position)
	return err == nil && m.ID == id, err
}

// reconcile stores the positions of the facts of a workload from a sequence number on. It republishes those that the
// stream lacks.
func (r *Reconciler) reconcile(ctx context.Context, workload uuid.UUID, from int64) (int, error) {
	facts, err := r.Facts.Between(ctx, workload, from-1, math.MaxInt64, 0)
	if err != nil || len(facts) == 0 {
		return 0, err
	}
	positions := make(map[string]int64, len(facts))
	for i := range facts {
		positions[facts[i].ID()] = Dropped // unless the stream has it or it is republished
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

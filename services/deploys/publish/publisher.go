package publish

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"

	"github.com/google/uuid"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/services/deploys/metrics"
)

// maxInFlight is the maximum number of facts that wait for their acknowledgement.
const maxInFlight = 256

// Publisher publishes queues of facts. All fields but Metrics are required.
type Publisher struct {
	Stream  Stream
	Logger  *slog.Logger
	Metrics *metrics.Metrics
}

// inFlight is a fact that waits for its acknowledgement.
type inFlight struct {
	queue *Queue
	ack   Ack
}

// Publish publishes all queues and returns the positions of older facts that it republished, by id. It has at most one
// fact per queue in flight. After an error, some facts may be published; publishing them again has no effect.
func (p *Publisher) Publish(ctx context.Context, facts Facts, queues []*Queue) (map[string]int64, error) {
	republished := map[string]int64{}
	var waiting []inFlight // in the order in which they were sent
	for next := 0; next < len(queues) || len(waiting) > 0; {
		var q *Queue
		if next < len(queues) && len(waiting) < maxInFlight {
			q = queues[next]
			next++
		} else {
			q = waiting[0].queue
			older, err := p.await(ctx, facts, waiting[0])
			if err != nil {
				return nil, err
			}
			maps.Copy(republished, older)
			waiting = waiting[1:]
		}
		f := q.Next()
		if f == nil {
			continue
		}
		ack, err := p.Stream.Publish(f, q.Position)
		if err != nil {
			return nil, fmt.Errorf("publish fact %s: %w", f.ID(), err)
		}
		waiting = append(waiting, inFlight{queue: q, ack: ack})
	}
	return republished, nil
}

// await waits for the acknowledgement of a fact. After a conflict, it reconciles the queue.
func (p *Publisher) await(ctx context.Context, facts Facts, sent inFlight) (map[string]int64, error) {
	position, err := sent.ack(ctx)
	if err == nil {
		sent.queue.Accept(position)
		return nil, nil //nolint:nilnil // no fact was republished
	}
	id := sent.queue.Next().ID()
	if !errors.Is(err, ErrConflict) {
		return nil, fmt.Errorf("publish fact %s: %w", id, err)
	}
	p.Metrics.Conflict()
	if err := sent.queue.Conflict(); err != nil {
		return nil, fmt.Errorf("publish fact %s: %w", id, err)
	}
	return p.reconcile(ctx, facts, sent.queue)
}

// reconcile skips the queued facts that the stream has, and republishes the earlier facts that the stream lacks.
func (p *Publisher) reconcile(ctx context.Context, facts Facts, q *Queue) (map[string]int64, error) {
	w := q.Next().Workload
	later, err := p.Stream.After(ctx, w, q.Position)
	if err != nil {
		return nil, err
	}
	q.Merge(later)
	f := q.Next()
	if f == nil {
		return nil, nil //nolint:nilnil // no fact was republished
	}
	var newest Published
	if len(later) > 0 {
		newest = later[len(later)-1]
	} else if newest, err = p.Stream.Newest(ctx, w); err != nil {
		return nil, err
	}
	workload := []any{
		slog.String(logkey.ClusterUID, w.ClusterUID), slog.String(logkey.Namespace, w.Namespace),
		slog.String(logkey.Kind, w.Kind),
		slog.String(logkey.Name, w.Name),
	}
	if q.ContinueAfter(&newest) {
		p.Logger.WarnContext(ctx, "the stream has facts that the database lacks, because the database was restored or is new",
			append(workload, slog.Int(logkey.Sequence, newest.Sequence))...)
		p.Metrics.Divergence()
	}
	position, republished, err := republish(ctx, p.Stream, facts, q.WorkloadID(), newest, int64(f.Sequence))
	if err != nil {
		return nil, err
	}
	if len(republished) > 0 {
		p.Logger.WarnContext(ctx, "republished facts, because the stream was restored from an older copy",
			append(workload, slog.Int(logkey.Count, len(republished)))...)
		p.Metrics.Republished(len(republished))
	}
	q.Position = position
	return republished, nil
}

// republish publishes the stored facts of a workload that follow its newest message on the stream, up to a sequence
// number. It returns the position of the newest message and the positions of the republished facts. It skips facts that
// the stream dropped by its limits.
func republish(
	ctx context.Context, stream Stream, facts Facts, workload uuid.UUID, newest Published, below int64,
) (int64, map[string]int64, error) {
	missing, err := facts.Between(ctx, workload, int64(newest.Sequence), below, stream.MaxAge())
	if err != nil {
		return 0, nil, err
	}
	first, err := stream.FirstPosition(ctx)
	if err != nil {
		return 0, nil, err
	}
	position, republished := newest.Position, map[string]int64{}
	for i := range missing {
		f := &missing[i]
		dropped := newest.Position == 0 && f.Position > 0 && f.Position < first
		if f.Position == Dropped || dropped {
			continue
		}
		ack, err := stream.Publish(f, position)
		if err == nil {
			position, err = ack(ctx)
		}
		if err != nil {
			return 0, nil, fmt.Errorf("republish fact %s: %w", f.ID(), err)
		}
		republished[f.ID()] = position
	}
	return position, republished, nil
}

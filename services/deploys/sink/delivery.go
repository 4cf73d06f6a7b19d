package sink

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/retry"
)

// errPanicked wraps a panic of a sink.
var errPanicked = errors.New("the sink panicked")

// result is the outcome of an attempt for one fact.
type result struct {
	fact    *queued
	outcome string // "" means: retry
	err     error
}

// deliverNext makes one attempt to deliver the first facts of a queue. The end of ctx ends the wait for the
// destination's rate limit; the end of deliveryCtx ends the attempt.
func (w *worker) deliverNext(ctx, deliveryCtx context.Context, q *queue) {
	results, err := w.attempt(ctx, deliveryCtx, q)
	var finished []*queued
	if err == nil {
		finished, err = w.finish(deliveryCtx, results)
	}
	if err == nil {
		if at := slices.IndexFunc(results, func(r result) bool { return r.outcome == "" }); at >= 0 {
			err = results[at].err
		}
	}
	stopped := ctx.Err() != nil
	w.mu.Lock()
	w.remove(q, finished)
	switch {
	case err == nil:
		q.succeeded()
		w.succeededAt = time.Now()
		w.delivering.set(nil)
	case !stopped:
		q.failed(err, time.Now(), w.cfg.Retry)
		w.delivering.set(err)
	}
	exhausted := err != nil && !stopped && len(q.facts) > 0 && w.exhausted(q)
	w.mu.Unlock()
	if err != nil && !stopped {
		w.set.metrics.failures.WithLabelValues(w.name).Inc()
		w.logger.WarnContext(ctx, "delivery failed", slog.String(logkey.Thread, q.thread),
			slog.Int(logkey.Attempt, q.attempt), logkey.Error(err))
	}
	if exhausted {
		w.giveUp(deliveryCtx, q)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	q.busy = false
	w.busy--
	if len(q.facts) == 0 {
		delete(w.queues, q.thread)
	}
	w.wakeDispatcher()
}

// remove removes finished facts from their queue.
func (w *worker) remove(q *queue, finished []*queued) {
	for _, f := range finished {
		delete(w.pending, f.position)
	}
	q.facts = slices.DeleteFunc(q.facts, func(f *queued) bool { return slices.Contains(finished, f) })
	w.set.metrics.pending.WithLabelValues(w.name).Set(float64(len(w.pending)))
}

// attempt delivers the first facts of a queue. It returns an error if the database or the limiter
// fails.
func (w *worker) attempt(ctx, deliveryCtx context.Context, q *queue) ([]result, error) {
	if limited, ok := w.sink.(RateLimited); ok {
		if err := limited.AwaitLimit(ctx); err != nil {
			return nil, err
		}
	}
	w.mu.Lock()
	head := q.head(w.traits)
	attempt := q.attempt + 1
	w.mu.Unlock()
	keys := make([]string, 0, len(head))
	for _, f := range head {
		keys = append(keys, f.key)
	}
	finished, err := w.store.finished(deliveryCtx, w.name, keys)
	if err != nil {
		return nil, err
	}
	var results []result
	var deliveries []Delivery
	var facts []*queued
	for _, f := range head {
		switch {
		case f.decodeErr != nil:
			results = append(results, result{fact: f, outcome: outcomeDead, err: f.decodeErr})
		case finished[f.key] && !f.requested:
			results = append(results, result{fact: f, outcome: outcomeKnown})
		default:
			facts = append(facts, f)
			deliveries = append(deliveries, Delivery{
				Key: f.key, Thread: q.thread, Fact: f.fact, Event: f.event, Threads: threads{w.store, w.name},
				Attempt: attempt, Requested: f.requested,
			})
		}
	}
	if len(deliveries) == 0 {
		return results, nil
	}
	start := time.Now()
	results = append(results, w.deliver(deliveryCtx, facts, deliveries)...)
	w.set.metrics.seconds.WithLabelValues(w.name).Observe(time.Since(start).Seconds())
	return results, nil
}

// deliver calls the sink once. A [Batcher] gets all facts as a batch. Another sink gets one delivery: the last fact,
// with the others in Earlier.
func (w *worker) deliver(ctx context.Context, facts []*queued, deliveries []Delivery) []result {
	results := make([]result, 0, len(facts))
	if batcher, ok := w.sink.(Batcher); ok && w.traits.Batch > 1 {
		for i, err := range deliverBatch(ctx, batcher, deliveries) {
			results = append(results, newResult(facts[i], err))
		}
		return results
	}
	last := len(deliveries) - 1
	d := deliveries[last]
	for _, earlier := range deliveries[:last] {
		d.Earlier = append(d.Earlier, earlier.Fact)
		d.Requested = d.Requested || earlier.Requested
	}
	latest := newResult(facts[last], deliverOne(ctx, w.sink, d))
	for _, f := range facts[:last] {
		combined := result{fact: f, outcome: outcomeCombined}
		if latest.outcome == "" {
			combined = result{fact: f, err: latest.err}
		}
		results = append(results, combined)
	}
	return append(results, latest)
}

func newResult(f *queued, err error) result {
	switch {
	case err == nil:
		return result{fact: f, outcome: outcomeDelivered}
	case retry.IsPermanent(err):
		return result{fact: f, outcome: outcomeDead, err: err}
	default:
		return result{fact: f, err: err}
	}
}

// deliverOne delivers one fact. It returns a panic of the sink as an error.
func deliverOne(ctx context.Context, s Sink, d Delivery) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", errPanicked, r)
		}
	}()
	return s.Deliver(ctx, d)
}

// deliverBatch delivers a batch. It returns one error for each delivery. It returns a panic of the sink as the error of
// all.
func deliverBatch(ctx context.Context, b Batcher, batch []Delivery) (failures []error) {
	defer func() {
		if r := recover(); r != nil {
			failures = slices.Repeat([]error{fmt.Errorf("%w: %v", errPanicked, r)}, len(batch))
		}
	}()
	failures = b.DeliverBatch(ctx, batch)
	if len(failures) != len(batch) {
		err := fmt.Errorf("the sink returned %d results for %d facts", len(failures), len(batch))
		return slices.Repeat([]error{err}, len(batch))
	}
	return failures
}

// finish records and acknowledges the facts that need no retry, and dead-letters those that failed permanently. It
// returns the acknowledged facts.
func (w *worker) finish(ctx context.Context, results []result) ([]*queued, error) {
	var finished []*queued
	var record []delivery
	var failure error
	for _, r := range results {
		if r.outcome == "" {
			continue
		}
		if r.outcome == outcomeDead {
			if err := w.deadLetter(ctx, r.fact, r.err); err != nil {
				failure = err
				continue
			}
		}
		finished = append(finished, r.fact)
		if r.outcome != outcomeKnown && r.fact.key != "" {
			record = append(record, delivery{key: r.fact.key, sequence: r.fact.position.sequence, outcome: r.outcome})
		}
		w.set.metrics.facts.WithLabelValues(w.name, r.outcome).Inc()
	}
	if err := w.store.record(ctx, w.name, record); err != nil {
		return nil, err
	}
	for _, f := range finished {
		w.acknowledge(ctx, f)
	}
	return finished, failure
}

func (w *worker) acknowledge(ctx context.Context, f *queued) {
	w.mu.Lock()
	msg := f.msg
	w.mu.Unlock()
	// If the ack is lost, the server redelivers the fact. The record of its delivery shows that it is finished.
	if err := msg.Ack(); err != nil {
		w.logger.DebugContext(ctx, "failed to acknowledge a fact", slog.Uint64(logkey.Sequence, f.position.sequence),
			logkey.Error(err))
	}
}

// minFailures is the minimum number of consecutive failures of a thread before its first fact is dead-lettered early.
// That many attempts take about two minutes.
const minFailures = 8

// exhausted reports whether the first fact of a queue must be dead-lettered: after Retry.GiveUp, or earlier if the
// queue fills the worker's memory while other threads succeed. It is not dead-lettered early while the destination asks
// for a delay.
func (w *worker) exhausted(q *queue) bool {
	if time.Since(q.triedAt) >= w.cfg.Retry.GiveUp {
		return true
	}
	if _, delayed := asRetryAfter(q.lastError); delayed || q.failures < minFailures || !w.succeededAt.After(q.failingAt) {
		return false
	}
	return len(q.facts) >= max(w.cfg.MaxPending/4, 2) || len(w.pending) >= w.cfg.MaxPending*9/10
}

// giveUp dead-letters the first fact of a queue. For a sink with Traits.Latest, it finishes all waiting facts, because
// they are one delivery.
func (w *worker) giveUp(ctx context.Context, q *queue) {
	w.mu.Lock()
	head := q.head(w.traits)
	reason := fmt.Errorf("given up after %d attempts in %s: %w",
		q.attempt, time.Since(q.triedAt).Round(time.Second), q.lastError)
	w.mu.Unlock()
	if !w.traits.Latest {
		head = head[:1]
	}
	results := make([]result, 0, len(head))
	for i, f := range head {
		r := result{fact: f, outcome: outcomeDead, err: reason}
		if i < len(head)-1 {
			r = result{fact: f, outcome: outcomeCombined}
		}
		results = append(results, r)
	}
	finished, err := w.finish(ctx, results)
	if err != nil {
		w.logger.WarnContext(ctx, "failed to dead-letter a fact; retrying", slog.String(logkey.Thread, q.thread),
			logkey.Error(err))
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.remove(q, finished)
	q.advanced()
}

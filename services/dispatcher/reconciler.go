package dispatcher

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/telemetry"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/dispatcher/desired"
	"lockstep.internal/services/dispatcher/failure"
	"lockstep.internal/services/dispatcher/kube"
	"lockstep.internal/services/dispatcher/queue"
)

// cluster is where workspaces are brought about.
type cluster interface {
	Apply(ctx context.Context, w desired.Workspace, secrets kube.Secrets) (kube.Applied, error)
	Repair(ctx context.Context, w desired.Workspace, secrets kube.Secrets) (kube.Applied, error)
	Terminate(ctx context.Context, w desired.Workspace) (remaining []desired.Reference, err error)
}

// publisher tells results.
type publisher interface {
	Publish(workspace string, result event.Event)
}

// job is what is desired of one workspace, and what has been told of it.
type job struct {
	workspace desired.Workspace
	trace     trace.SpanContext

	// Touched by the one worker that has the task.
	packed    []byte              // the workspace while it is settled, which takes less room
	settled   bool                // the last word told of it is that it is applied
	round     int                 // how often it was repaired
	remaining []desired.Reference // as told last
	told      int                 // how often it was told what remains
}

// reconciler brings about what is desired, workspace by workspace, for one leadership.
type reconciler struct {
	cell      topology.Cell
	policy    desired.Policy
	queue     *queue.Queue[*job]
	clock     queue.Clock
	cluster   cluster
	secrets   kube.Secrets
	publisher publisher
	origin    origin
	retry     queue.Backoff // after a failure
	poll      queue.Backoff // while something is being deleted
	workers   int
	timeout   time.Duration // of one attempt
	slowAfter time.Duration // an attempt this long gives its worker back
	logger    *slog.Logger
	tracer    trace.Tracer
	metrics   *metrics
}

// take reads a message and queues it. What cannot be told of, for want of a workspace or a revision, is logged and counted.
func (r *reconciler) take(ctx context.Context, subject string, header nats.Header, data []byte) {
	w, err := desired.Decode(r.cell, r.policy.Agent, subject, header, data)
	var refusal *failure.Failure
	if err != nil && (!errors.As(err, &refusal) || w.Revision < 1) {
		r.metrics.dropped.Inc()
		r.logger.ErrorContext(ctx, "dropped a desired state that cannot be read", slog.String("subject", subject), slog.String("error", err.Error()))
		return
	}
	if refusal == nil {
		refusal = r.policy.Check(w)
	}
	span := trace.SpanContextFromContext(telemetry.Extract(ctx, header))
	if refusal != nil {
		r.refuse(trace.ContextWithRemoteSpanContext(ctx, span), w, refusal)
		return
	}
	if w.Target == events.DesiredTargetTerminated {
		w.Objects = r.policy.Stubs(w)
	}
	r.queue.Put(w.ID, w.Revision, &job{workspace: w, trace: span})
}

// refuse tells what is not to be worked on. Its revision counts for nothing: of an event that cannot be trusted it may be any number, and must not keep out
// those that come after it.
func (r *reconciler) refuse(ctx context.Context, w desired.Workspace, refusal *failure.Failure) {
	r.queue.Void(w.ID, w.Revision)
	r.metrics.failed.WithLabelValues(string(refusal.Reason)).Inc()
	r.logger.WarnContext(ctx, "refused", slog.String("workspace", w.ID), slog.Int64("desired_revision", w.Revision),
		slog.String("reason", string(refusal.Reason)), slog.String("message", refusal.Message))
	result, err := r.origin.failed(ctx, occasion{workspace: w.ID, revision: w.Revision, count: 1, at: r.clock.Now()}, refusal, 0)
	if err != nil {
		r.logger.ErrorContext(ctx, "cannot tell a failure", slog.String("error", err.Error()))
		return
	}
	r.publisher.Publish(w.ID, result)
}

// repair has everything that is settled gone through once more.
func (r *reconciler) repair(ctx context.Context, cause string) {
	r.logger.InfoContext(ctx, "everything is gone through once more", slog.String("cause", cause))
	r.metrics.repairs.Inc()
	r.queue.Repair()
}

// run works until ctx is done, then lets what is under way finish as long as work allows.
func (r *reconciler) run(ctx, work context.Context) {
	slots := make(chan struct{}, r.workers)
	spare := make(chan struct{}, spareWorkers*r.workers)
	var group sync.WaitGroup
	defer group.Wait()
	for {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		task, err := r.queue.Take(ctx)
		if err != nil {
			return
		}
		group.Go(func() {
			place := newPlace(slots, spare, r.slowAfter)
			defer place.leave()
			r.work(work, task)
		})
	}
}

func (r *reconciler) work(ctx context.Context, task queue.Task[*job]) {
	job := task.Item
	ctx, span := r.tracer.Start(trace.ContextWithRemoteSpanContext(ctx, job.trace), "bring about workspace",
		trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(
			attribute.String("lockstep.workspace", task.Key), attribute.Int64("lockstep.desired_revision", task.Version),
			attribute.String("lockstep.target", string(job.workspace.Target)), attribute.Int("lockstep.attempt", task.Attempt)))
	defer span.End()
	attempt, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	var err error
	if task.Repair && task.Attempt == 1 {
		job.round++
	}
	if job.workspace.Target == events.DesiredTargetTerminated {
		err = r.terminate(ctx, attempt, task)
	} else {
		err = r.apply(ctx, attempt, task)
	}
	if err == nil {
		return
	}
	if ctx.Err() != nil {
		r.queue.Retry(task, r.retry.Min) // the process or the leadership ends: the failure is not the workspace's
		return
	}
	span.SetStatus(codes.Error, err.Error())
	r.fail(ctx, task, failure.Explain(err, desired.Reference{}))
}

func (r *reconciler) apply(ctx, attempt context.Context, task queue.Task[*job]) error {
	job := task.Item
	if err := job.unpack(); err != nil {
		return err
	}
	started := r.clock.Now()
	apply := r.cluster.Apply
	if task.Repair {
		apply = r.cluster.Repair
	}
	applied, err := apply(attempt, job.workspace, r.secrets)
	if err != nil {
		return err
	}
	now := r.clock.Now()
	took := now.Sub(started)
	if !job.settled || len(applied.Repaired) > 0 || len(applied.Pruned) > 0 {
		result, err := r.origin.applied(ctx, r.occasion(task, now), applied, took)
		if err != nil {
			return err
		}
		r.publisher.Publish(task.Key, result)
		r.metrics.repaired.Add(float64(len(applied.Repaired)))
		r.logger.InfoContext(ctx, "applied", r.attributes(task, slog.Duration("took", took), slog.Int("pruned", len(applied.Pruned)), slog.Int("repaired", len(applied.Repaired)))...)
	}
	if !task.Repair {
		r.metrics.applied.Inc()
		r.metrics.duration.Observe(took.Seconds())
		if task.Attempt == 1 {
			r.metrics.latency.Observe(now.Sub(task.Since).Seconds())
		}
	}
	job.settled = true
	if err := job.pack(); err != nil {
		return err
	}
	r.queue.Settle(task, job)
	return nil
}

// pack keeps the workspace small until it is repaired.
func (j *job) pack() error {
	packed, err := desired.Pack(j.workspace)
	if err != nil {
		return err
	}
	j.packed, j.workspace.Objects, j.workspace.Secrets = packed, nil, nil
	return nil
}

// unpack undoes pack.
func (j *job) unpack() error {
	if j.packed == nil {
		return nil
	}
	workspace, err := desired.Unpack(j.packed)
	if err != nil {
		return err
	}
	j.workspace, j.packed = workspace, nil
	return nil
}

func (r *reconciler) terminate(ctx, attempt context.Context, task queue.Task[*job]) error {
	job := task.Item
	remaining, err := r.cluster.Terminate(attempt, job.workspace)
	if err != nil {
		job.remaining = nil // what is told next clears the failure
		return err
	}
	about := r.occasion(task, r.clock.Now())
	if len(remaining) == 0 {
		result, err := r.origin.terminated(ctx, about)
		if err != nil {
			return err
		}
		r.publisher.Publish(task.Key, result)
		r.queue.Done(task)
		r.metrics.terminated.Inc()
		r.metrics.ended(task.Key)
		r.logger.InfoContext(ctx, "terminated", r.attributes(task)...)
		return nil
	}
	r.metrics.terminates(task.Key)
	if !slices.Equal(remaining, job.remaining) {
		job.told++
		about.count = job.told
		result, err := r.origin.terminating(ctx, about, remaining)
		if err != nil {
			return err
		}
		r.publisher.Publish(task.Key, result)
		job.remaining = remaining
		r.logger.InfoContext(ctx, "terminating", r.attributes(task, slog.Int("remaining", len(remaining)))...)
	}
	r.queue.Wait(task, r.poll.Delay(task.Waits+1, rand.Float64())) //nolint:gosec // jitter is no secret
	return nil
}

// quietAttempts is from which attempt on a repair tells a failure that usually passes: after half a minute or so.
const quietAttempts = 6

// fail tells a failure and sees to its retry, in this order: the next attempt's result must come after it.
func (r *reconciler) fail(ctx context.Context, task queue.Task[*job], f *failure.Failure) {
	var delay time.Duration
	if !f.Final {
		delay = r.retry.Delay(task.Attempt, rand.Float64()) //nolint:gosec // jitter is no secret
	}
	if task.Repair && task.Item.settled && f.Reason.Passes() && task.Attempt < quietAttempts {
		// Nobody asked for anything, and as far as known all is well.
		r.logger.InfoContext(ctx, "cannot look at a workspace, trying on", r.attributes(task, slog.String("reason", string(f.Reason)), slog.String("message", f.Message))...)
		r.queue.Retry(task, delay)
		return
	}
	task.Item.settled = false
	r.metrics.failed.WithLabelValues(string(f.Reason)).Inc()
	r.logger.WarnContext(ctx, "failed", r.attributes(task, slog.String("reason", string(f.Reason)), slog.String("message", f.Message),
		slog.Any("cause", f.Unwrap()), slog.Duration("retry_after", delay))...)
	result, err := r.origin.failed(ctx, r.occasion(task, r.clock.Now()), f, delay)
	if err != nil {
		r.logger.ErrorContext(ctx, "cannot tell a failure", slog.String("error", err.Error()))
	} else {
		r.publisher.Publish(task.Key, result)
	}
	if f.Final {
		r.queue.Done(task)
		return
	}
	r.queue.Retry(task, delay)
}

func (r *reconciler) occasion(task queue.Task[*job], at time.Time) occasion {
	return occasion{workspace: task.Key, revision: task.Version, count: task.Attempt, round: task.Item.round, at: at}
}

func (r *reconciler) attributes(task queue.Task[*job], more ...any) []any {
	return append([]any{
		slog.String("workspace", task.Key), slog.Int64("desired_revision", task.Version),
		slog.String("target", string(task.Item.workspace.Target)), slog.Int("attempt", task.Attempt),
	}, more...)
}

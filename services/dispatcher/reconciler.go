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
	Terminate(ctx context.Context, w desired.Workspace) (remaining []desired.Reference, err error)
}

// publisher tells results.
type publisher interface {
	Publish(workspace string, result event.Event)
}

// job is what is desired of one workspace, and what has been told of it.
type job struct {
	workspace desired.Workspace
	refusal   *failure.Failure // it is not to be worked on
	trace     trace.SpanContext

	// Touched by the one worker that has the task.
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
	if refusal != nil {
		w.Objects = nil
	}
	r.queue.Put(w.ID, w.Revision, &job{
		workspace: w, refusal: refusal, trace: trace.SpanContextFromContext(telemetry.Extract(ctx, header)),
	})
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
	switch {
	case job.refusal != nil:
		err = job.refusal
	case job.workspace.Target == events.DesiredTargetTerminated:
		err = r.terminate(ctx, attempt, task)
	default:
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
	started := r.clock.Now()
	applied, err := r.cluster.Apply(attempt, task.Item.workspace, r.secrets)
	if err != nil {
		return err
	}
	now := r.clock.Now()
	took := now.Sub(started)
	result, err := r.origin.applied(ctx, r.occasion(task, now), applied, took)
	if err != nil {
		return err
	}
	r.publisher.Publish(task.Key, result)
	r.queue.Done(task)
	r.metrics.applied.Inc()
	r.metrics.duration.Observe(took.Seconds())
	if task.Attempt == 1 {
		r.metrics.latency.Observe(now.Sub(task.Since).Seconds())
	}
	r.logger.InfoContext(ctx, "applied", r.attributes(task, slog.Duration("took", took), slog.Int("pruned", len(applied.Pruned)))...)
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

// fail tells a failure and sees to its retry, in this order: the next attempt's result must come after it.
func (r *reconciler) fail(ctx context.Context, task queue.Task[*job], f *failure.Failure) {
	var delay time.Duration
	if !f.Final {
		delay = r.retry.Delay(task.Attempt, rand.Float64()) //nolint:gosec // jitter is no secret
	}
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
	return occasion{workspace: task.Key, revision: task.Version, count: task.Attempt, at: at}
}

func (r *reconciler) attributes(task queue.Task[*job], more ...any) []any {
	return append([]any{
		slog.String("workspace", task.Key), slog.Int64("desired_revision", task.Version),
		slog.String("target", string(task.Item.workspace.Target)), slog.Int("attempt", task.Attempt),
	}, more...)
}

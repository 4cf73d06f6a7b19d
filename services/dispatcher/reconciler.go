package dispatcher

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/retry"
	"lockstep.internal/libs/telemetry"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/dispatcher/desired"
	"lockstep.internal/services/dispatcher/failure"
	"lockstep.internal/services/dispatcher/kube"
	"lockstep.internal/services/dispatcher/queue"
)

// cluster applies workspaces.
type cluster interface {
	Apply(ctx context.Context, w desired.Workspace, secrets kube.Secrets) (kube.Applied, error)
	Repair(ctx context.Context, w desired.Workspace, secrets kube.Secrets) (kube.Applied, error)
	Terminate(ctx context.Context, w desired.Workspace) (remaining []desired.Reference, err error)
}

// publisher publishes results.
type publisher interface {
	Publish(workspace string, result event.Event)
}

// job is the desired state of one workspace and what was reported about it.
type job struct {
	workspace desired.Workspace
	trace     trace.SpanContext

	// Used by the one worker that has the task.
	packed    []byte              // the compressed workspace while it is settled
	settled   bool                // the last published result is applied
	repairs   int                 // number of repairs
	remaining []desired.Reference // of the last published terminating result
	reports   int                 // number of published terminating results
}

// reconciler applies desired states and publishes the results, for one leader session.
type reconciler struct {
	cell      topology.Cell
	policy    desired.Policy
	queue     *queue.Queue[*job]
	cluster   cluster
	secrets   kube.Secrets
	publisher publisher
	results   results
	retry     retry.Policy // after a failure
	poll      retry.Policy // while objects are being deleted
	workers   int
	timeout   time.Duration // of one attempt
	slowAfter time.Duration // an attempt this long frees its worker
	logger    *slog.Logger
	tracer    trace.Tracer
	metrics   *metrics
}

// receive decodes a message and queues it. It logs and counts a message without a readable
// workspace or revision.
func (r *reconciler) receive(ctx context.Context, subject string, header nats.Header, data []byte) {
	w, err := desired.Decode(r.cell, r.policy.Agent, subject, header, data)
	var refusal *failure.Failure
	if err != nil && (!errors.As(err, &refusal) || w.Revision < 1) {
		r.metrics.dropped.Inc()
		r.logger.ErrorContext(ctx, "dropped an invalid desired state",
			slog.String(logkey.Subject, subject), logkey.Error(err))
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

// refuse reports a desired state that is not applied. The queue does not store its revision: in an
// event that cannot be trusted it may be any number, and must not keep out later events.
func (r *reconciler) refuse(ctx context.Context, w desired.Workspace, refusal *failure.Failure) {
	r.queue.Void(w.ID, w.Revision)
	r.metrics.failed.WithLabelValues(string(refusal.Reason)).Inc()
	r.logger.WarnContext(ctx, "refused a desired state", slog.String(logkey.WorkspaceID, w.ID),
		slog.Int64(logkey.Revision, w.Revision), slog.String(logkey.Reason, string(refusal.Reason)),
		slog.String("message", refusal.Message))
	about := attempt{workspace: w.ID, revision: w.Revision, count: 1, at: time.Now()}
	result, err := r.results.failed(ctx, about, refusal, 0)
	if err != nil {
		r.logger.ErrorContext(ctx, "failure not reported", logkey.Error(err))
		return
	}
	r.publisher.Publish(w.ID, result)
}

// repair queues every settled workspace for a repair.
func (r *reconciler) repair(ctx context.Context, cause string) {
	r.logger.InfoContext(ctx, "started a repair of all workspaces", slog.String(logkey.Reason, cause))
	r.metrics.repairs.Inc()
	r.queue.Repair()
}

// run processes tasks until ctx ends, then lets running tasks finish until drain ends.
func (r *reconciler) run(ctx, drain context.Context) {
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
			slot := newWorkerSlot(slots, spare, r.slowAfter)
			defer slot.release()
			r.process(drain, task)
		})
	}
}

func (r *reconciler) process(ctx context.Context, task queue.Task[*job]) {
	job := task.Item
	ctx, span := r.tracer.Start(trace.ContextWithRemoteSpanContext(ctx, job.trace), "apply desired state",
		trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(
			attribute.String("lockstep.workspace", task.Key),
			attribute.Int64("lockstep.desired_revision", task.Version),
			attribute.String("lockstep.target", string(job.workspace.Target)),
			attribute.Int("lockstep.attempt", task.Attempt)))
	defer span.End()
	attemptCtx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	var err error
	if task.Repair && task.Attempt == 1 {
		job.repairs++
	}
	if job.workspace.Target == events.DesiredTargetTerminated {
		err = r.terminate(ctx, attemptCtx, task)
	} else {
		err = r.apply(ctx, attemptCtx, task)
	}
	if err == nil {
		return
	}
	if ctx.Err() != nil {
		r.queue.Retry(task, r.retry.Min) // the session ends: this is not a failure of the workspace
		return
	}
	span.SetStatus(codes.Error, err.Error())
	r.fail(ctx, task, failure.Explain(err, desired.Reference{}))
}

func (r *reconciler) apply(ctx, attemptCtx context.Context, task queue.Task[*job]) error {
	job := task.Item
	if err := job.unpack(); err != nil {
		return err
	}
	start := time.Now()
	apply := r.cluster.Apply
	if task.Repair {
		apply = r.cluster.Repair
	}
	applied, err := apply(attemptCtx, job.workspace, r.secrets)
	if err != nil {
		return err
	}
	now := time.Now()
	duration := now.Sub(start)
	if !job.settled || len(applied.Repaired) > 0 || len(applied.Pruned) > 0 {
		result, err := r.results.applied(ctx, r.attempt(task, now), applied, duration)
		if err != nil {
			return err
		}
		r.publisher.Publish(task.Key, result)
		r.metrics.repaired.Add(float64(len(applied.Repaired)))
		r.logger.InfoContext(ctx, "applied the desired state", r.attributes(task, slog.Duration(logkey.Duration, duration),
			slog.Int("pruned", len(applied.Pruned)), slog.Int("repaired", len(applied.Repaired)))...)
	}
	if !task.Repair {
		r.metrics.applied.Inc()
		r.metrics.duration.Observe(duration.Seconds())
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

// pack compresses the workspace until its next repair.
func (j *job) pack() error {
	packed, err := desired.Pack(j.workspace)
	if err != nil {
		return err
	}
	j.packed, j.workspace.Objects, j.workspace.Secrets = packed, nil, nil
	return nil
}

// unpack reverses pack.
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

func (r *reconciler) terminate(ctx, attemptCtx context.Context, task queue.Task[*job]) error {
	job := task.Item
	remaining, err := r.cluster.Terminate(attemptCtx, job.workspace)
	if err != nil {
		job.remaining = nil // the next result replaces the failure
		return err
	}
	about := r.attempt(task, time.Now())
	if len(remaining) == 0 {
		result, err := r.results.terminated(ctx, about)
		if err != nil {
			return err
		}
		r.publisher.Publish(task.Key, result)
		r.queue.Done(task)
		r.metrics.terminated.Inc()
		r.metrics.terminationEnded(task.Key)
		r.logger.InfoContext(ctx, "terminated the workspace", r.attributes(task)...)
		return nil
	}
	r.metrics.terminationStarted(task.Key)
	if !slices.Equal(remaining, job.remaining) {
		job.reports++
		about.count = job.reports
		result, err := r.results.terminating(ctx, about, remaining)
		if err != nil {
			return err
		}
		r.publisher.Publish(task.Key, result)
		job.remaining = remaining
		r.logger.InfoContext(ctx, "terminating the workspace", r.attributes(task, slog.Int("remaining", len(remaining)))...)
	}
	r.queue.Wait(task, r.poll.Delay(task.Waits+1))
	return nil
}

// quietAttempts is the attempt from which on a repair reports a temporary failure, after about half
// a minute.
const quietAttempts = 6

// fail reports a failure, then queues the retry, whose result must come later.
func (r *reconciler) fail(ctx context.Context, task queue.Task[*job], f *failure.Failure) {
	var delay time.Duration
	if !f.Final {
		delay = r.retry.Delay(task.Attempt)
	}
	if task.Repair && task.Item.settled && f.Reason.Passes() && task.Attempt < quietAttempts {
		// The workspace is applied as far as known, so users need not learn of it.
		r.logger.InfoContext(ctx, "repair failed, retrying", r.attributes(task,
			slog.String(logkey.Reason, string(f.Reason)), slog.String("message", f.Message),
			slog.Duration(logkey.RetryIn, delay))...)
		r.queue.Retry(task, delay)
		return
	}
	task.Item.settled = false
	r.metrics.failed.WithLabelValues(string(f.Reason)).Inc()
	r.logger.WarnContext(ctx, "desired state not applied", r.attributes(task,
		slog.String(logkey.Reason, string(f.Reason)), slog.String("message", f.Message),
		slog.Duration(logkey.RetryIn, delay), logkey.Error(f.Unwrap()))...)
	result, err := r.results.failed(ctx, r.attempt(task, time.Now()), f, delay)
	if err != nil {
		r.logger.ErrorContext(ctx, "failure not reported", logkey.Error(err))
	} else {
		r.publisher.Publish(task.Key, result)
	}
	if f.Final {
		r.queue.Done(task)
		return
	}
	r.queue.Retry(task, delay)
}

func (r *reconciler) attempt(task queue.Task[*job], at time.Time) attempt {
	return attempt{
		workspace: task.Key, revision: task.Version, count: task.Attempt, repair: task.Item.repairs, at: at,
	}
}

func (r *reconciler) attributes(task queue.Task[*job], more ...any) []any {
	return append([]any{
		slog.String(logkey.WorkspaceID, task.Key), slog.Int64(logkey.Revision, task.Version),
		slog.String("target", string(task.Item.workspace.Target)), slog.Int(logkey.Attempt, task.Attempt),
	}, more...)
}

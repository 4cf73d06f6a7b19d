package reconcile

import (
	"context"
	"log/slog"
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
	"lockstep.internal/services/dispatcher/metrics"
	"lockstep.internal/services/dispatcher/queue"
	"lockstep.internal/services/dispatcher/repair"
	"lockstep.internal/services/dispatcher/worker"
)

// Cluster applies workspaces. [kube.Cluster] implements it.
type Cluster interface {
	Apply(ctx context.Context, w desired.Workspace, secrets kube.SecretSource) (kube.Applied, error)
	Repair(ctx context.Context, w desired.Workspace, secrets kube.SecretSource) (kube.Applied, error)
	Terminate(ctx context.Context, w desired.Workspace) (kube.Remaining, error)
}

// Publisher publishes results.
type Publisher interface {
	Publish(workspace string, result event.Event)
}

// Reconciler applies desired states and publishes the results while this process leads. All fields are required.
type Reconciler struct {
	Cell      topology.Cell
	Policy    desired.Policy
	Queue     *queue.Queue[*Item]
	Cluster   Cluster
	Secrets   kube.SecretSource
	Publisher Publisher
	Results   Results
	// Retry is the back-off after a failure, Poll the one while objects are being deleted.
	Retry, Poll retry.Policy
	// Workers is the number of concurrent attempts. An attempt that takes longer than SlowAfter moves to a spare slot
	// and frees its worker.
	Workers   int
	SlowAfter time.Duration
	// Timeout of one attempt.
	Timeout time.Duration
	Logger  *slog.Logger
	Tracer  trace.Tracer
	Metrics *metrics.Metrics
}

// Receive decodes a message, checks it and queues it. It publishes the failure of a desired state that must not be
// applied. It logs and counts a message without a readable workspace and revision.
func (r *Reconciler) Receive(ctx context.Context, subject string, header nats.Header, data []byte) {
	w, rejection, err := DecodeAndCheck(r.Cell, r.Policy, subject, header, data)
	if err != nil {
		r.Metrics.Dropped.Inc()
		r.Logger.ErrorContext(ctx, "dropped an invalid desired state",
			slog.String(logkey.Subject, subject), logkey.Error(err))
		return
	}
	span := trace.SpanContextFromContext(telemetry.Extract(ctx, header))
	if rejection != nil {
		r.reject(trace.ContextWithRemoteSpanContext(ctx, span), w, rejection)
		return
	}
	r.Queue.Put(w.ID, w.Revision, &Item{workspace: w, trace: span})
}

// reject publishes the failure of a desired state that must not be applied. The queue does not store its revision: the
// event is not trusted, and a high revision must not block later events.
func (r *Reconciler) reject(ctx context.Context, w desired.Workspace, rejection *failure.Failure) {
	r.Queue.DropBelow(w.ID, w.Revision)
	r.Metrics.Failed.WithLabelValues(string(rejection.Reason)).Inc()
	r.Logger.WarnContext(ctx, "rejected a desired state", slog.String(logkey.WorkspaceID, w.ID),
		slog.Int64(logkey.Revision, w.Revision), slog.String(logkey.Reason, string(rejection.Reason)),
		slog.String(logkey.Message, rejection.Message))
	a := Attempt{Workspace: w.ID, Revision: w.Revision, Count: 1, At: time.Now()}
	result, err := r.Results.Failed(ctx, a, rejection, 0)
	if err != nil {
		r.Logger.ErrorContext(ctx, "failed to encode a result", logkey.Error(err))
		return
	}
	r.Publisher.Publish(w.ID, result)
}

// Repair queues every applied workspace for a repair.
func (r *Reconciler) Repair(ctx context.Context, cause string) {
	r.Logger.InfoContext(ctx, "started a repair of all workspaces", slog.String(logkey.Reason, cause))
	r.Metrics.Repairs.Inc()
	r.Queue.Repair()
}

// Run processes tasks until ctx ends. Then it lets running tasks finish until drain ends.
func (r *Reconciler) Run(ctx, drain context.Context) {
	pool := worker.NewPool(r.Workers, r.SlowAfter)
	var group sync.WaitGroup
	defer group.Wait()
	for pool.Acquire(ctx) == nil {
		task, err := r.Queue.Take(ctx)
		if err != nil {
			return
		}
		group.Go(func() { pool.Run(func() { r.process(drain, task) }) })
	}
}

// process makes one attempt of a task.
func (r *Reconciler) process(ctx context.Context, task queue.Task[*Item]) {
	item := task.Item
	ctx, span := r.Tracer.Start(trace.ContextWithRemoteSpanContext(ctx, item.trace), "apply desired state",
		trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(
			attribute.String("lockstep.workspace", task.Key),
			attribute.Int64("lockstep.desired_revision", task.Version),
			attribute.String("lockstep.target", string(item.workspace.Target)),
			attribute.Int("lockstep.attempt", task.Attempt)))
	defer span.End()
	attemptCtx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	var err error
	if task.Repair && task.Attempt == 1 {
		item.repairs++
	}
	if item.workspace.Target == events.DesiredTargetTerminated {
		err = r.terminate(ctx, attemptCtx, task)
	} else {
		err = r.apply(ctx, attemptCtx, task)
	}
	if err == nil {
		return
	}
	if ctx.Err() != nil {
		r.Queue.Retry(task, r.Retry.Min) // leadership ended: the workspace did not fail
		return
	}
	span.SetStatus(codes.Error, err.Error())
	r.fail(ctx, task, failure.Explain(err, desired.Reference{}))
}

// apply applies or repairs the workspace. It publishes the result unless nothing changed since the last one.
func (r *Reconciler) apply(ctx, attemptCtx context.Context, task queue.Task[*Item]) error {
	item := task.Item
	if err := item.unpack(); err != nil {
		return err
	}
	start := time.Now()
	apply := r.Cluster.Apply
	if task.Repair {
		apply = r.Cluster.Repair
	}
	applied, err := apply(attemptCtx, item.workspace, r.Secrets)
	if err != nil {
		return err
	}
	now := time.Now()
	duration := now.Sub(start)
	if item.hasChanged(applied) {
		result, err := r.Results.Applied(ctx, r.attempt(task, now), applied, duration)
		if err != nil {
			return err
		}
		r.Publisher.Publish(task.Key, result)
		r.Metrics.Repaired.Add(float64(len(applied.Repaired)))
		r.Logger.InfoContext(ctx, "applied the desired state", r.attributes(task, slog.Duration(logkey.Duration, duration),
			slog.Int(logkey.Pruned, len(applied.Pruned)), slog.Int(logkey.Repaired, len(applied.Repaired)))...)
	}
	if !task.Repair {
		r.Metrics.Applied.Inc()
		r.Metrics.Duration.Observe(duration.Seconds())
		if task.Attempt == 1 {
			r.Metrics.Latency.Observe(now.Sub(task.Since).Seconds())
		}
	}
	item.applied = true
	if err := item.pack(); err != nil {
		return err
	}
	r.Queue.Complete(task, item)
	return nil
}

// terminate deletes the objects of the workspace. While some remain, it polls and publishes each change of what
// remains and why.
func (r *Reconciler) terminate(ctx, attemptCtx context.Context, task queue.Task[*Item]) error {
	item := task.Item
	remaining, err := r.Cluster.Terminate(attemptCtx, item.workspace)
	if err != nil {
		item.remaining = kube.Remaining{} // the next result replaces the failure
		return err
	}
	a := r.attempt(task, time.Now())
	if len(remaining.Objects) == 0 {
		result, err := r.Results.Terminated(ctx, a)
		if err != nil {
			return err
		}
		r.Publisher.Publish(task.Key, result)
		r.Queue.Discard(task)
		r.Metrics.Terminated.Inc()
		r.Metrics.TerminationEnded(task.Key)
		r.Logger.InfoContext(ctx, "terminated the workspace", r.attributes(task)...)
		return nil
	}
	r.Metrics.TerminationStarted(task.Key)
	if !remaining.Equal(item.remaining) {
		item.reports++
		a.Count = item.reports
		result, err := r.Results.Terminating(ctx, a, remaining)
		if err != nil {
			return err
		}
		r.Publisher.Publish(task.Key, result)
		item.remaining = remaining
		r.Logger.InfoContext(ctx, "terminating the workspace",
			r.attributes(task, slog.Int(logkey.Remaining, len(remaining.Objects)),
				slog.String(logkey.Reason, remaining.Reason), slog.String(logkey.Message, remaining.Message))...)
	}
	r.Queue.RequeueAfter(task, r.Poll.Delay(task.Requeues+1))
	return nil
}

// fail publishes the failure, then queues the retry, so that the result of the retry is published later.
func (r *Reconciler) fail(ctx context.Context, task queue.Task[*Item], f *failure.Failure) {
	var delay time.Duration
	if !f.Final {
		delay = r.Retry.Delay(task.Attempt)
	}
	if task.Repair && !repair.ShouldPublish(f, task.Item.applied, task.Attempt) {
		r.Logger.InfoContext(ctx, "repair failed; retrying", r.attributes(task,
			slog.String(logkey.Reason, string(f.Reason)), slog.String(logkey.Message, f.Message),
			slog.Duration(logkey.RetryIn, delay))...)
		r.Queue.Retry(task, delay)
		return
	}
	task.Item.applied = false
	r.Metrics.Failed.WithLabelValues(string(f.Reason)).Inc()
	r.Logger.WarnContext(ctx, "failed to apply the desired state", r.attributes(task,
		slog.String(logkey.Reason, string(f.Reason)), slog.String(logkey.Message, f.Message),
		slog.Duration(logkey.RetryIn, delay), logkey.Error(f.Unwrap()))...)
	result, err := r.Results.Failed(ctx, r.attempt(task, time.Now()), f, delay)
	if err != nil {
		r.Logger.ErrorContext(ctx, "failed to encode a result", logkey.Error(err))
	} else {
		r.Publisher.Publish(task.Key, result)
	}
	if f.Final {
		r.Queue.Discard(task)
		return
	}
	r.Queue.Retry(task, delay)
}

func (r *Reconciler) attempt(task queue.Task[*Item], at time.Time) Attempt {
	return Attempt{
		Workspace: task.Key, Revision: task.Version, Count: task.Attempt, Repair: task.Item.repairs, At: at,
	}
}

// attributes returns the log attributes of a task, followed by more.
func (r *Reconciler) attributes(task queue.Task[*Item], more ...any) []any {
	return append([]any{
		slog.String(logkey.WorkspaceID, task.Key), slog.Int64(logkey.Revision, task.Version),
		slog.String(logkey.Target, string(task.Item.workspace.Target)), slog.Int(logkey.Attempt, task.Attempt),
	}, more...)
}

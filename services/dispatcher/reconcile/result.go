package reconcile

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/telemetry"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/dispatcher/failure"
	"lockstep.internal/services/dispatcher/kube"
)

// Kinds of results, part of their event types.
const (
	resultApplied     = "applied"
	resultFailed      = "apply_failed"
	resultTerminating = "terminating"
	resultTerminated  = "terminated"
)

// Results creates the result events of one leader.
type Results struct {
	// Source of the events.
	Source string
	// SessionID is the id of the leader's session. It makes the ids of events unique.
	SessionID string
}

// Attempt identifies the attempt that a result reports.
type Attempt struct {
	Workspace string
	Revision  int64
	// Count is the number of the attempt, from 1; for terminating, the number of the result.
	Count int
	// Repair is the number of the repair, 0 for the first apply.
	Repair int
	At     time.Time
}

// event returns a result event. Equal attempts of one leader have equal ids.
func (r Results) event(ctx context.Context, kind string, a Attempt, data any) (event.Event, error) {
	run := r.SessionID
	if a.Repair > 0 {
		run += "/" + strconv.Itoa(a.Repair)
	}
	e, err := event.New(event.Attributes{
		Type: event.TypePrefix + "applied." + kind + ".v1", Source: r.Source, Subject: a.Workspace, Time: a.At,
		ID: fmt.Sprintf("%s/%d/%s/%d/%s", a.Workspace, a.Revision, kind, a.Count, run),
	}, data)
	if err != nil {
		return event.Event{}, fmt.Errorf("result %s of workspace %s: %w", kind, a.Workspace, err)
	}
	header := nats.Header{}
	telemetry.Inject(ctx, header)
	if parent := header.Get(event.TraceParent); parent != "" {
		e.SetExtension(event.TraceParent, parent)
	}
	return e, nil
}

// Applied returns the result of a complete apply.
func (r Results) Applied(
	ctx context.Context, a Attempt, applied kube.Applied, duration time.Duration,
) (event.Event, error) {
	return r.event(ctx, resultApplied, a, events.Applied{
		WorkspaceID: a.Workspace, DesiredRevision: int(a.Revision), ObservedAt: milliseconds(a.At),
		Objects: applied.Objects, Pruned: applied.Pruned, Repaired: applied.Repaired,
		Attempt: a.Count, DurationMs: int(duration.Milliseconds()),
		DeploymentUID: string(applied.DeploymentUID), DeploymentGeneration: int(applied.DeploymentGeneration),
	})
}

// Failed returns the result of a failed attempt. retryAfter is the pause before the next one, 0 for none.
func (r Results) Failed(
	ctx context.Context, a Attempt, f *failure.Failure, retryAfter time.Duration,
) (event.Event, error) {
	return r.event(ctx, resultFailed, a, events.ApplyFailed{
		WorkspaceID: a.Workspace, DesiredRevision: int(a.Revision), ObservedAt: milliseconds(a.At),
		Reason: string(f.Reason), Message: f.Message, Object: f.Object, ClusterRevision: int(f.ClusterRevision),
		Attempt: a.Count, RetryAfterMs: int(retryAfter.Milliseconds()),
	})
}

// Terminating returns the result of a termination that has deleted objects; remaining ones still exist.
func (r Results) Terminating(ctx context.Context, a Attempt, remaining kube.Remaining) (event.Event, error) {
	return r.event(ctx, resultTerminating, a, events.Terminating{
		WorkspaceID: a.Workspace, DesiredRevision: int(a.Revision), ObservedAt: milliseconds(a.At),
		Remaining: remaining.Objects, Reason: remaining.Reason, Message: remaining.Message,
	})
}

// Terminated returns the result of a complete termination.
func (r Results) Terminated(ctx context.Context, a Attempt) (event.Event, error) {
	return r.event(ctx, resultTerminated, a, events.Terminated{
		WorkspaceID: a.Workspace, DesiredRevision: int(a.Revision), ObservedAt: milliseconds(a.At),
	})
}

func milliseconds(t time.Time) time.Time { return t.UTC().Truncate(time.Millisecond) }

package dispatcher

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/telemetry"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/dispatcher/desired"
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

// results builds the result events of one leader session.
type results struct {
	source string
	run    string
}

// attempt identifies what a result is about.
type attempt struct {
	workspace string
	revision  int64
	// count numbers the results of one kind for one revision within a session.
	count int
	// repair is the number of the repair, 0 for the first application.
	repair int
	at     time.Time
}

// event returns the result event. Its id is deterministic within a session.
func (o results) event(ctx context.Context, kind string, about attempt, data any) (event.Event, error) {
	run := o.run
	if about.repair > 0 {
		run += "/" + strconv.Itoa(about.repair)
	}
	e, err := event.New(event.Attributes{
		Type: event.TypePrefix + "applied." + kind + ".v1", Source: o.source, Subject: about.workspace, Time: about.at,
		ID: fmt.Sprintf("%s/%d/%s/%d/%s", about.workspace, about.revision, kind, about.count, run),
	}, data)
	if err != nil {
		return event.Event{}, fmt.Errorf("result %s of workspace %s: %w", kind, about.workspace, err)
	}
	header := nats.Header{}
	telemetry.Inject(ctx, header)
	if parent := header.Get(event.TraceParent); parent != "" {
		e.SetExtension(event.TraceParent, parent)
	}
	return e, nil
}

func (o results) applied(
	ctx context.Context, about attempt, applied kube.Applied, duration time.Duration,
) (event.Event, error) {
	return o.event(ctx, resultApplied, about, events.Applied{
		WorkspaceID: about.workspace, DesiredRevision: int(about.revision), ObservedAt: milliseconds(about.at),
		Objects: applied.Objects, Pruned: applied.Pruned, Repaired: applied.Repaired,
		Attempt: about.count, DurationMs: int(duration.Milliseconds()),
		DeploymentUID: string(applied.DeploymentUID), DeploymentGeneration: int(applied.DeploymentGeneration),
	})
}

func (o results) failed(
	ctx context.Context, about attempt, f *failure.Failure, retryAfter time.Duration,
) (event.Event, error) {
	return o.event(ctx, resultFailed, about, events.ApplyFailed{
		WorkspaceID: about.workspace, DesiredRevision: int(about.revision), ObservedAt: milliseconds(about.at),
		Reason: string(f.Reason), Message: f.Message, Object: f.Object, ClusterRevision: int(f.ClusterRevision),
		Attempt: about.count, RetryAfterMs: int(retryAfter.Milliseconds()),
	})
}

func (o results) terminating(
	ctx context.Context, about attempt, remaining []desired.Reference,
) (event.Event, error) {
	return o.event(ctx, resultTerminating, about, events.Terminating{
		WorkspaceID: about.workspace, DesiredRevision: int(about.revision), ObservedAt: milliseconds(about.at),
		Remaining: remaining,
	})
}

func (o results) terminated(ctx context.Context, about attempt) (event.Event, error) {
	return o.event(ctx, resultTerminated, about, events.Terminated{
		WorkspaceID: about.workspace, DesiredRevision: int(about.revision), ObservedAt: milliseconds(about.at),
	})
}

func milliseconds(t time.Time) time.Time { return t.UTC().Truncate(time.Millisecond) }

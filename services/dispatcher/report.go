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

// Kinds of results.
const (
	resultApplied     = "applied"
	resultFailed      = "apply_failed"
	resultTerminating = "terminating"
	resultTerminated  = "terminated"
)

// origin is what is the same in all results of one run.
type origin struct {
	source string
	run    string
}

// occasion is what a result is about.
type occasion struct {
	workspace string
	revision  int64
	// count tells results of one kind about one revision apart, within a run.
	count int
	// round is the repair that it is from; 0 for the first time.
	round int
	at    time.Time
}

// result makes the event. Its id is the same whenever the same run tells the same thing.
func (o origin) result(ctx context.Context, kind string, about occasion, data any) (event.Event, error) {
	run := o.run
	if about.round > 0 {
		run += "/" + strconv.Itoa(about.round)
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

func (o origin) applied(ctx context.Context, about occasion, applied kube.Applied, took time.Duration) (event.Event, error) {
	return o.result(ctx, resultApplied, about, events.Applied{
		WorkspaceID: about.workspace, DesiredRevision: int(about.revision), ObservedAt: moment(about.at),
		Objects: applied.Objects, Pruned: applied.Pruned, Repaired: applied.Repaired, Attempt: about.count, DurationMs: int(took.Milliseconds()),
		DeploymentUID: string(applied.DeploymentUID), DeploymentGeneration: int(applied.DeploymentGeneration),
	})
}

func (o origin) failed(ctx context.Context, about occasion, f *failure.Failure, retryAfter time.Duration) (event.Event, error) {
	return o.result(ctx, resultFailed, about, events.ApplyFailed{
		WorkspaceID: about.workspace, DesiredRevision: int(about.revision), ObservedAt: moment(about.at),
		Reason: string(f.Reason), Message: f.Message, Object: f.Object, Attempt: about.count, RetryAfterMs: int(retryAfter.Milliseconds()),
		ClusterRevision: int(f.ClusterRevision),
	})
}

func (o origin) terminating(ctx context.Context, about occasion, remaining []desired.Reference) (event.Event, error) {
	return o.result(ctx, resultTerminating, about, events.Terminating{
		WorkspaceID: about.workspace, DesiredRevision: int(about.revision), ObservedAt: moment(about.at), Remaining: remaining,
	})
}

func (o origin) terminated(ctx context.Context, about occasion) (event.Event, error) {
	return o.result(ctx, resultTerminated, about, events.Terminated{
		WorkspaceID: about.workspace, DesiredRevision: int(about.revision), ObservedAt: moment(about.at),
	})
}

func moment(t time.Time) time.Time { return t.UTC().Truncate(time.Millisecond) }

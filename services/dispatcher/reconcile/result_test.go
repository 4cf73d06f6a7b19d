package reconcile_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/dispatcher/desired"
	"lockstep.internal/services/dispatcher/failure"
	"lockstep.internal/services/dispatcher/kube"
	"lockstep.internal/services/dispatcher/reconcile"
)

func TestResultIsIdentifiedByAttemptAndValid(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	results := reconcile.Results{Source: "/lockstep/local/agents/7/dispatcher", SessionID: "run"}
	at := time.Date(2026, 3, 4, 5, 6, 7, 123_456_789, time.UTC)
	first := reconcile.Attempt{Workspace: id, Revision: 3, Count: 1, At: at}
	repaired := reconcile.Attempt{Workspace: id, Revision: 3, Count: 2, Repair: 4, At: at}
	reference := desired.NamespaceReference("ws-a")

	applied, err := results.Applied(ctx, first, kube.Applied{Objects: []desired.Reference{reference}}, time.Second)
	require.NoError(t, err)
	require.Equal(t, id+"/3/applied/1/run", applied.ID())
	require.NoError(t, events.Validate(applied.Type(), applied.Data()))
	failed, err := results.Failed(ctx, repaired, failure.New(failure.QuotaExceeded, nil, "no"), 2*time.Second)
	require.NoError(t, err)
	require.Equal(t, id+"/3/apply_failed/2/run/4", failed.ID(), "a repair has its own ids")
	var data events.ApplyFailed
	require.NoError(t, json.Unmarshal(failed.Data(), &data))
	require.Equal(t, events.ApplyFailed{
		WorkspaceID: id, DesiredRevision: 3, ObservedAt: at.Truncate(time.Millisecond), Reason: "QuotaExceeded",
		Message: "no", Attempt: 2, RetryAfterMs: 2000,
	}, data)
	terminating, err := results.Terminating(ctx, first, kube.Remaining{
		Objects: []desired.Reference{reference}, Reason: "ObjectsRemain", Message: "Namespace ws-a is still to be deleted",
	})
	require.NoError(t, err)
	var remaining events.Terminating
	require.NoError(t, json.Unmarshal(terminating.Data(), &remaining))
	require.Equal(t, events.Terminating{
		WorkspaceID: id, DesiredRevision: 3, ObservedAt: at.Truncate(time.Millisecond),
		Remaining: []desired.Reference{reference}, Reason: "ObjectsRemain",
		Message: "Namespace ws-a is still to be deleted",
	}, remaining)
	require.NoError(t, events.Validate(terminating.Type(), terminating.Data()))
	terminated, err := results.Terminated(ctx, first)
	require.NoError(t, err)
	require.Equal(t, "dev.lockstep.applied.terminated.v1", terminated.Type())
	require.Equal(t, id, terminated.Subject())
}

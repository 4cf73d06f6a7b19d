package workspace_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/actualstate"
	"lockstep.internal/services/state/workspace"
)

// requestTermination returns a running workspace whose desired state is terminated.
func requestTermination(t *testing.T) fixture {
	t.Helper()
	running := newFixture(t, func(w *workspace.Workspace) { w.AppliedRevision, w.ActualState = 1, actualstate.Running })
	requested, err := running.SetDesired(workspace.DesiredTerminated, 9, start())
	require.NoError(t, err)
	return requested
}

func TestTermination(t *testing.T) {
	t.Parallel()
	requested := requestTermination(t)
	before := requested.Observe(seen(deployment(1, "1")))
	require.Equal(t, actualstate.Running, before.ActualState, "the dispatcher has not started")
	deleting := deployment(1, "1")
	deleting.Object.DeletedAt = new(start())
	require.Equal(
		t,
		actualstate.Terminating,
		requested.Observe(seen(deleting)).ActualState,
		"observed before the dispatcher reports it",
	)
	observed := requested.Observe(workspace.Observation{Seen: true, DeploymentDeleted: true})
	require.Equal(t, actualstate.Terminating, observed.ActualState)
	require.EqualValues(
		t,
		2,
		requested.Observe(workspace.Observation{Seen: true, DeploymentDeleted: true}).DesiredRevision,
		"a terminated workspace is not redispatched",
	)

	refused := requested.ApplyFailed(actualstate.ApplyError{Revision: 2, Reason: "Forbidden"}, start()).Observe(seen(nil))
	require.Equal(t, actualstate.Error, refused.ActualState)
	terminating := refused.Terminating(2, start()).Observe(seen(nil))
	require.Equal(t, actualstate.Terminating, terminating.ActualState)
	terminated := terminating.Terminated(2, start()).Observe(seen(nil))
	require.Equal(t, actualstate.Terminated, terminated.ActualState)
	for name, later := range map[string]fixture{
		"applied":     terminated.Applied(3, start()),
		"failed":      terminated.ApplyFailed(actualstate.ApplyError{Revision: 3}, start()),
		"terminating": terminated.Terminating(3, start()),
		"observed":    terminated.Observe(seen(deployment(1, "3"))),
		"listed":      terminated.Observe(workspace.Observation{Seen: true, ResyncBegunAt: start().Add(time.Hour)}),
	} {
		require.Equal(t, terminated.Workspace, later.Workspace, name)
	}

	repeated := terminating.Redispatch(start()).Terminated(2, start()).Observe(seen(nil))
	require.Equal(t, actualstate.Terminated, repeated.ActualState)
	require.EqualValues(t, 2, repeated.AppliedRevision)
	completed := repeated.Terminated(3, start())
	require.EqualValues(t, 3, completed.AppliedRevision, "nothing is left to apply")
	require.Equal(t, completed.Workspace, completed.Terminated(4, start()).Workspace, "revision 4 was not desired")
}

// A full resync requests the termination again before the first terminated event arrives.
func TestRepeatedTerminationEnds(t *testing.T) {
	t.Parallel()
	requested := requestTermination(t)
	again := requested.Observe(
		workspace.Observation{Seen: true, ResyncBegunAt: start().Add(time.Minute), At: start().Add(time.Minute)},
	)
	require.EqualValues(t, 3, again.DesiredRevision)
	terminated := again.Terminated(2, start()).Observe(seen(nil))
	require.Equal(t, actualstate.Terminated, terminated.ActualState)
	over := terminated.Terminated(3, start().Add(time.Hour))
	require.EqualValues(t, 3, over.AppliedRevision)
	require.Equal(t, actualstate.Terminated, over.Observe(seen(nil)).ActualState)
	require.Equal(t, over.Workspace, over.Terminated(2, start()).Workspace, "an older report is ignored")
	later := terminated.Terminated(4, start())
	require.Equal(t, terminated.Workspace, later.Workspace, "a terminated workspace gets no new revision")
}

func TestReportsOfLowerRevisionsAreIgnored(t *testing.T) {
	t.Parallel()
	w := newFixture(t, func(w *workspace.Workspace) { w.DesiredRevision = 9 }).Applied(5, start())
	for name, after := range map[string]fixture{
		"applied":     w.Applied(4, start()),
		"failed":      w.ApplyFailed(actualstate.ApplyError{Revision: 4}, start()),
		"terminating": w.Terminating(4, start()),
		"terminated":  w.Terminated(4, start()),
	} {
		require.Equal(t, w.Workspace, after.Workspace, name)
	}
	failed := w.ApplyFailed(actualstate.ApplyError{Revision: 7}, start())
	require.Equal(t, failed.Workspace, failed.Applied(6, start()).Workspace, "6 is older than the failure of 7")
	require.Nil(t, failed.Applied(7, start()).ApplyError)
	require.NotNil(
		t,
		failed.Applied(7, start()).ApplyFailed(actualstate.ApplyError{Revision: 7}, start()).ApplyError,
		"for the same revision the latest report is used",
	)
}

func TestNextRevisionIsAboveReportedOne(t *testing.T) {
	t.Parallel()
	for name, report := range map[string]func(w fixture) fixture{
		"applied": func(w fixture) fixture { return w.Applied(8, start()) },
		"failed": func(w fixture) fixture {
			return w.ApplyFailed(actualstate.ApplyError{Revision: 8}, start())
		},
		"terminating": func(w fixture) fixture { return w.Terminating(8, start()) },
		"terminated":  func(w fixture) fixture { return w.Terminated(8, start()) },
	} {
		after := report(newFixture(t))
		require.EqualValues(t, 9, after.DesiredRevision, name)
		require.Equal(t, events.DesiredStateCauseRedispatch, after.cause().Kind, name)
		require.Equal(t, actualstate.TerminationNone, after.Termination, "%s: desired state is not terminated", name)
	}
}

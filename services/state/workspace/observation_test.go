package workspace_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/actualstate"
	"lockstep.internal/services/state/workspace"
)

func TestObserve(t *testing.T) {
	t.Parallel()
	before := newFixture(t)
	before.RecomputeAt = time.Time{}
	require.Equal(
		t,
		before.Workspace,
		before.Observe(workspace.Observation{}).Workspace,
		"no events yet: creation_requested",
	)
	running := before.Observe(seen(deployment(1, "1")))
	require.Equal(t, actualstate.Running, running.ActualState)
	require.Equal(t, start().Add(time.Minute), running.ActualStateChangedAt)
	require.EqualValues(t, 1, running.ActualStateRevision)
	again := running.Observe(seen(deployment(1, "1")))
	require.Equal(t, running.Workspace, again.Workspace, "the same report changes nothing")
	require.Equal(t, actualstate.Unknown, running.Observe(seen(nil)).ActualState)

	failed := running.ApplyFailed(actualstate.ApplyError{Revision: 1, Reason: "Forbidden", Message: "no"}, start()).
		Observe(seen(deployment(1, "1")))
	require.Equal(t, actualstate.Error, failed.ActualState)
	changed := failed.ApplyFailed(actualstate.ApplyError{Revision: 1, Reason: "Forbidden", Message: "never"}, start()).
		Observe(seen(deployment(1, "1")))
	require.Equal(t, "never", changed.Message)
	require.Empty(t, changed.events, "a changed message alone is no event")
	changed = changed.ApplyFailed(actualstate.ApplyError{Revision: 1, Reason: "Invalid", Message: "x"}, start()).
		Observe(seen(deployment(1, "1")))
	require.Len(t, changed.events, 1, "another reason is an event")
	require.Equal(t, actualstate.Running, changed.Applied(1, start()).Observe(seen(deployment(1, "1"))).ActualState)
}

func TestUnexpectedChangeIsStoredAndMarked(t *testing.T) {
	t.Parallel()
	before := newFixture(t, func(w *workspace.Workspace) { w.ActualState, w.ActualStateRevision = actualstate.Running, 4 })
	after := before.Observe(workspace.Observation{})
	require.Equal(t, actualstate.CreationRequested, after.ActualState)
	changes := after.events
	require.True(t, changes[0].Data.(events.WorkspaceStateChanged).Unexpected)
	require.Equal(t, before.ID.String()+"/actual/5", changes[0].ID)
}

func TestRestartCompletesAfterStopObserved(t *testing.T) {
	t.Parallel()
	requested := newFixture(t, func(w *workspace.Workspace) {
		w.DesiredState, w.ActualState = workspace.DesiredRestartRequested, actualstate.Stopping
		w.DesiredRevision, w.AppliedRevision = 6, 6
	})
	outdated := deployment(0, "6")
	outdated.Generation++
	for name, test := range map[string]struct {
		change     func(w *workspace.Workspace)
		deployment *events.ObservedWorkload
		actual     actualstate.State
	}{
		"not yet applied": {
			func(w *workspace.Workspace) { w.AppliedRevision = 5 },
			deployment(0, "6"),
			actualstate.Stopped,
		},
		"stopped by an earlier revision":        {nil, deployment(0, "5"), actualstate.Stopped},
		"stopped without a revision annotation": {nil, deployment(0, ""), actualstate.Stopped},
		"status of an older generation": {
			nil,
			outdated,
			actualstate.Stopped,
		},
		"still running": {nil, deployment(1, "6"), actualstate.Running},
		"stopped, but applying fails": {
			func(w *workspace.Workspace) { w.ApplyError = &actualstate.ApplyError{Revision: 6} },
			deployment(0, "6"),
			actualstate.Error,
		},
		"the Deployment is missing": {nil, nil, actualstate.Unknown},
		"no restart is requested": {
			func(w *workspace.Workspace) { w.DesiredState = workspace.DesiredStopped },
			deployment(0, "6"),
			actualstate.Stopped,
		},
		"a newer revision is pending": {
			func(w *workspace.Workspace) { w.DesiredRevision = 7 },
			deployment(0, "6"),
			actualstate.Stopped,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before := requested
			if test.change != nil {
				test.change(&before.Workspace)
			}
			after := before.Observe(seen(test.deployment))
			require.Equal(t, test.actual, after.ActualState)
			require.Equal(t, before.DesiredState, after.DesiredState)
			require.Equal(t, before.DesiredRevision, after.DesiredRevision)
		})
	}
	after := requested.Observe(seen(deployment(0, "6")))
	require.Equal(t, workspace.DesiredRunning, after.DesiredState)
	require.EqualValues(t, 7, after.DesiredRevision)
	changes := after.events
	require.Len(t, changes, 2)
	require.Equal(t, events.ActualStateStopped, changes[0].Data.(events.WorkspaceStateChanged).To)
	changed := changes[1].Data.(events.WorkspaceDesiredStateChanged)
	require.Equal(t, events.DesiredStateCauseRestartCompleted, *changed.Cause)
	require.Zero(t, changed.UserID)
	again := after.Observe(seen(deployment(0, "6")))
	require.Equal(t, after.Workspace, again.Workspace, "once")
}

func TestLostDeploymentIsDispatchedAgain(t *testing.T) {
	t.Parallel()
	listed := start().Add(time.Hour)
	for name, test := range map[string]struct {
		change func(w *workspace.Workspace)
		o      workspace.Observation
		again  bool
	}{
		"deleted by another client": {nil, workspace.Observation{Seen: true, DeploymentDeleted: true}, true},
		"deleted and recreated at once": {
			nil,
			workspace.Observation{Seen: true, DeploymentDeleted: true, Deployment: deployment(1, "1")},
			false,
		},
		"missing, as before":                       {nil, workspace.Observation{Seen: true}, false},
		"not in a complete resync":                 {nil, workspace.Observation{Seen: true, ResyncBegunAt: listed}, true},
		"never observed, not in a complete resync": {nil, workspace.Observation{ResyncBegunAt: listed}, true},
		"applied while the resync ran": {
			func(w *workspace.Workspace) { w.AppliedAt = listed },
			workspace.Observation{ResyncBegunAt: listed},
			false,
		},
		"not applied yet": {
			func(w *workspace.Workspace) { w.DesiredRevision = 2 },
			workspace.Observation{ResyncBegunAt: listed},
			false,
		},
		"observed again": {
			nil,
			workspace.Observation{Seen: true, ResyncBegunAt: listed, Deployment: deployment(1, "1")},
			false,
		},
		"stopped, deleted by another client": {
			func(w *workspace.Workspace) { w.DesiredState = workspace.DesiredStopped },
			workspace.Observation{Seen: true, DeploymentDeleted: true},
			true,
		},
		"desired state terminated, Deployment missing": {
			func(w *workspace.Workspace) { w.DesiredState, w.DesiredRevision = workspace.DesiredTerminated, 2 },
			workspace.Observation{Seen: true, ResyncBegunAt: listed},
			true,
		},
		"terminated while the resync ran": {
			func(w *workspace.Workspace) {
				w.DesiredState, w.DesiredRevision, w.DesiredStateChangedAt = workspace.DesiredTerminated, 2, listed
			},
			workspace.Observation{Seen: true, ResyncBegunAt: listed},
			false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before := newFixture(t, func(w *workspace.Workspace) { w.AppliedRevision, w.AppliedAt = 1, start() })
			if test.change != nil {
				test.change(&before.Workspace)
			}
			after := before.Observe(test.o)
			require.Equal(t, test.again, after.DesiredRevision == before.DesiredRevision+1)
			require.Equal(t, before.DesiredState, after.DesiredState)
			if test.again {
				require.Equal(t, events.DesiredStateCauseRedispatch, after.cause().Kind)
			}
		})
	}
}

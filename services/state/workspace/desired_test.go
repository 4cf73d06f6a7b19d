package workspace_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/actualstate"
	"lockstep.internal/services/state/workspace"
)

func TestNewWorkspace(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	require.Equal(t, "ws-7-ide", w.Namespace)
	require.Equal(t, workspace.DesiredRunning, w.DesiredState)
	require.Equal(t, actualstate.CreationRequested, w.ActualState)
	require.EqualValues(t, 1, w.DesiredRevision)
	require.Equal(
		t,
		workspace.Spec{Image: "registry.example/ide:9", CPU: "500m", Memory: "1Gi", VolumeSize: "10Gi"},
		w.Spec,
	)
	changes := w.events
	require.Len(t, changes, 1)
	require.Equal(t, w.ID.String()+"/created", changes[0].ID)
}

func TestSetDesired(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ from, ask, want workspace.DesiredState }{
		{workspace.DesiredRunning, workspace.DesiredRunning, workspace.DesiredRunning},
		{workspace.DesiredRunning, workspace.DesiredStopped, workspace.DesiredStopped},
		{workspace.DesiredRunning, workspace.DesiredTerminated, workspace.DesiredTerminated},
		{workspace.DesiredRunning, workspace.DesiredRestartRequested, workspace.DesiredRestartRequested},
		{workspace.DesiredStopped, workspace.DesiredRunning, workspace.DesiredRunning},
		{workspace.DesiredStopped, workspace.DesiredStopped, workspace.DesiredStopped},
		{workspace.DesiredStopped, workspace.DesiredTerminated, workspace.DesiredTerminated},
		{workspace.DesiredStopped, workspace.DesiredRestartRequested, workspace.DesiredRunning},
		{workspace.DesiredRestartRequested, workspace.DesiredRunning, workspace.DesiredRunning},
		{workspace.DesiredRestartRequested, workspace.DesiredStopped, workspace.DesiredStopped},
		{workspace.DesiredRestartRequested, workspace.DesiredTerminated, workspace.DesiredTerminated},
		{workspace.DesiredRestartRequested, workspace.DesiredRestartRequested, workspace.DesiredRestartRequested},
		{workspace.DesiredTerminated, workspace.DesiredTerminated, workspace.DesiredTerminated},
	} {
		t.Run(string(test.from)+" to "+string(test.ask), func(t *testing.T) {
			t.Parallel()
			before := newFixture(t, func(w *workspace.Workspace) { w.DesiredState = test.from })
			after, err := before.SetDesired(test.ask, 11, start().Add(time.Hour))
			require.NoError(t, err)
			require.Equal(t, test.want, after.DesiredState)
			if test.from == test.ask {
				require.Equal(t, before.Workspace, after.Workspace, "no change, no revision")
				require.Empty(t, after.events)
				return
			}
			require.Equal(t, before.DesiredRevision+1, after.DesiredRevision)
			changes := after.events
			require.Len(t, changes, 1)
			user := events.DesiredStateCauseUser
			require.Equal(t, events.WorkspaceDesiredStateChanged{
				WorkspaceID:     after.ID.String(),
				Name:            "ide",
				ProjectID:       4,
				AgentID:         7,
				From:            events.DesiredState(test.from),
				To:              events.DesiredState(test.want),
				DesiredRevision: 2,
				UserID:          11,
				Cause:           &user,
			}, changes[0].Data)
		})
	}
}

func TestTerminatedIsPermanent(t *testing.T) {
	t.Parallel()
	w, err := newFixture(t).SetDesired(workspace.DesiredTerminated, 9, start())
	require.NoError(t, err)
	for _, to := range []workspace.DesiredState{
		workspace.DesiredRunning,
		workspace.DesiredStopped,
		workspace.DesiredRestartRequested,
	} {
		same, err := w.SetDesired(to, 9, start())
		require.True(t, fault.Is(err, errcode.WorkspaceTerminated), to)
		require.ErrorContains(t, err, `workspace "ide" was asked to terminate, which is permanent; create another one`)
		require.Equal(t, w.Workspace, same.Workspace)
	}
	_, err = w.SetSpec(workspace.Spec{Image: "other:1"}, 9, start())
	require.True(t, fault.Is(err, errcode.WorkspaceTerminated))
	_, err = newFixture(t).SetDesired("gone", 9, start())
	require.True(t, fault.Is(err, errcode.InvalidArgument))
}

func TestSetSpec(t *testing.T) {
	t.Parallel()
	before := newFixture(t)
	same, err := before.SetSpec(
		workspace.Spec{Image: before.Spec.Image, Env: map[string]string{}, Command: []string{}, Args: []string{}},
		9,
		start(),
	)
	require.NoError(t, err)
	require.Equal(t, before.Workspace, same.Workspace)
	after, err := before.SetSpec(workspace.Spec{Image: "other:1", VolumeSize: "20Gi"}, 9, start())
	require.NoError(t, err)
	require.EqualValues(t, 2, after.DesiredRevision)
	require.Equal(t, workspace.DesiredRunning, after.DesiredState)
	_, err = after.SetSpec(workspace.Spec{Image: "other:1", VolumeSize: "19Gi"}, 9, start())
	require.ErrorContains(t, err, `volume_size: "19Gi" is less than the current "20Gi"`)
}

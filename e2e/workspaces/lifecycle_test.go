package workspaces_test

import (
	"context"
	"slices"
	"strconv"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/events"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

func TestLifecycleCreateReachesRunning(t *testing.T) {
	s := shared.Parallel(t)

	w := s.Create("created", fixture.GoodImage)
	running := w.AwaitRunning()
	require.Equal(t, statev1.DesiredState_DESIRED_STATE_RUNNING, running.GetDesiredState())
	require.Equal(t, int64(1), running.GetDesiredRevision())
	require.Empty(t, running.GetReason())

	seen := w.Events().Until(events.ActualStateRunning)
	fixture.RequirePath(t, seen.States, events.ActualStateCreationRequested, events.ActualStateStarting,
		events.ActualStateRunning)
	require.Empty(t, seen.DesiredChanges)
	require.Equal(t, seen.IDs, w.EventIDs(), "the API lists what the stream holds")

	require.ElementsMatch(t, []events.ObjectReference{
		{ApiVersion: "v1", Kind: "Namespace", Name: w.Namespace},
		{ApiVersion: "v1", Kind: "ServiceAccount", Namespace: w.Namespace, Name: w.Name},
		{ApiVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy", Namespace: w.Namespace, Name: w.Name},
		{ApiVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: w.Namespace, Name: w.Name + "-data"},
		{ApiVersion: "v1", Kind: "Service", Namespace: w.Namespace, Name: w.Name},
		{ApiVersion: "apps/v1", Kind: "Deployment", Namespace: w.Namespace, Name: w.Name},
	}, w.Objects())
	revision, inventory := w.Inventory()
	require.Equal(t, "1", revision)
	require.ElementsMatch(t, w.Objects(), inventory)

	require.Equal(t, corev1.ClaimBound, w.Claim().Status.Phase)
	require.Equal(t, fixture.GoodImage, w.Pod().Spec.Containers[0].Image)
	require.Equal(t, corev1.PodRunning, w.Pod().Status.Phase)
	for key, value := range w.Labels() {
		require.Equal(t, value, w.Pod().Labels[key])
	}
	namespace, err := s.Kube.CoreV1().Namespaces().Get(t.Context(), w.Namespace, metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "ws-"+strconv.FormatInt(w.AgentID, 10)+"-"+w.Name, namespace.Name)
	require.Equal(t, "restricted", namespace.Labels["pod-security.kubernetes.io/enforce"])
}

func TestLifecycleStopKeepsVolume(t *testing.T) {
	s := shared.Parallel(t)

	w := s.CreateRunning("stopped")
	reader := w.Events()
	reader.Until(events.ActualStateRunning)
	claim, pod := w.Claim().UID, w.PodUID()

	w.Stop()
	w.AwaitStopped()
	fixture.RequirePath(
		t,
		append([]events.ActualState{events.ActualStateRunning}, reader.Until(events.ActualStateStopped).States...),
		events.ActualStateRunning,
		events.ActualStateStopping,
		events.ActualStateStopped,
	)
	require.Empty(t, w.Pods())
	require.Equal(t, claim, w.Claim().UID, "the volume is kept")
	require.Nil(t, w.Claim().DeletionTimestamp)

	w.Start()
	w.AwaitRunning()
	fixture.RequirePath(
		t,
		append([]events.ActualState{events.ActualStateStopped}, reader.Until(events.ActualStateRunning).States...),
		events.ActualStateStopped,
		events.ActualStateStarting,
		events.ActualStateRunning,
	)
	require.Equal(t, claim, w.Claim().UID, "the volume is the same")
	require.NotEqual(t, pod, w.PodUID())
}

func TestLifecycleRestartStopsAndStarts(t *testing.T) {
	s := shared.Parallel(t)

	w := s.CreateRunning("restarted")
	reader := w.Events()
	reader.Until(events.ActualStateRunning)
	pod, claim := w.PodUID(), w.Claim().UID

	asked := w.Restart()
	require.Equal(t, statev1.DesiredState_DESIRED_STATE_RESTART_REQUESTED, asked.GetDesiredState())
	done := w.AwaitRestarted()
	require.Equal(t, asked.GetDesiredRevision()+1, done.GetDesiredRevision())

	first, second := reader.Until(events.ActualStateStopped), reader.Until(events.ActualStateRunning)
	fixture.RequirePath(t, append([]events.ActualState{events.ActualStateRunning}, first.States...),
		events.ActualStateRunning, events.ActualStateStopping, events.ActualStateStopped)
	fixture.RequirePath(t, append([]events.ActualState{events.ActualStateStopped}, second.States...),
		events.ActualStateStopped, events.ActualStateStarting, events.ActualStateRunning)
	changes := slices.Concat(first.DesiredChanges, second.DesiredChanges)
	require.Len(t, changes, 2)
	require.Equal(t, events.DesiredStateRestartRequested, changes[0].To)
	require.Equal(t, new(events.DesiredStateCauseUser), changes[0].Cause)
	require.Equal(t, events.DesiredStateRunning, changes[1].To)
	require.Equal(t, new(events.DesiredStateCauseRestartCompleted), changes[1].Cause)
	require.NotEqual(t, pod, w.PodUID())
	require.Equal(t, claim, w.Claim().UID)
}

func TestLifecycleRestartStartsStoppedWorkspace(t *testing.T) {
	s := shared.Parallel(t)

	w := s.CreateRunning("restarted-stopped")
	w.Stop()
	w.AwaitStopped()
	require.Equal(t, statev1.DesiredState_DESIRED_STATE_RUNNING, w.Restart().GetDesiredState())
	w.AwaitRunning()
}

func TestLifecycleTerminateIsFinal(t *testing.T) {
	s := shared.Parallel(t)

	w := s.CreateRunning("terminated")
	reader := w.Events()
	reader.Until(events.ActualStateRunning)
	volume := w.Claim().Spec.VolumeName
	require.NotEmpty(t, volume)

	w.Terminate()
	requireRefusesChanges(w)
	w.AwaitTerminated()
	w.RequireGone()
	requireRefusesChanges(w)
	fixture.RequirePath(
		t,
		append([]events.ActualState{events.ActualStateRunning}, reader.Until(events.ActualStateTerminated).States...),
		events.ActualStateRunning,
		events.ActualStateStopping,
		events.ActualStateStopped,
		events.ActualStateTerminating,
		events.ActualStateTerminated,
	)
	fixture.AwaitCluster(t, "the volume is gone", func(ctx context.Context) (bool, error) {
		_, err := s.Kube.CoreV1().PersistentVolumes().Get(ctx, volume, metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	})
	require.Equal(t, statev1.DesiredState_DESIRED_STATE_TERMINATED, w.Terminate().GetDesiredState(),
		"a repeated request is no change")

	again := s.CreateRunning("terminated")
	require.NotEqual(t, w.ID, again.ID)
	require.Equal(t, w.Namespace, again.Namespace)
	require.Equal(t, statev1.ActualState_ACTUAL_STATE_TERMINATED, w.Get().GetActualState())
}

// requireRefusesChanges tries every change of a workspace that is being terminated.
func requireRefusesChanges(w *fixture.Workspace) {
	w.T.Helper()
	for _, state := range []statev1.DesiredState{
		statev1.DesiredState_DESIRED_STATE_RUNNING, statev1.DesiredState_DESIRED_STATE_STOPPED,
		statev1.DesiredState_DESIRED_STATE_RESTART_REQUESTED,
	} {
		_, err := w.TrySetDesired(state)
		require.True(w.T, fault.Is(err, errcode.WorkspaceTerminated), "%s: %v", state, err)
		require.ErrorContains(w.T, err, w.Name)
		require.ErrorContains(w.T, err, "permanent")
	}
	_, err := w.System.API.Workspaces.UpdateWorkspace(w.T.Context(), connect.NewRequest(&statev1.UpdateWorkspaceRequest{
		Workspace: w.Reference(), Overrides: &statev1.WorkspaceOverrides{Image: fixture.OtherGoodImage},
	}))
	require.True(w.T, fault.Is(err, errcode.WorkspaceTerminated), "update: %v", err)
}

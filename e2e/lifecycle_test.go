package e2e_test

import (
	"context"
	"slices"
	"strconv"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/events"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

func createdBecomesRunning(s *system) {
	t := s.t
	w := s.create("created", goodImage)
	running := w.untilRunning()
	require.Equal(t, statev1.DesiredState_DESIRED_STATE_RUNNING, running.GetDesiredState())
	require.Equal(t, int64(1), running.GetDesiredRevision())
	require.Empty(t, running.GetReason())

	told := w.follow().through(events.ActualStateRunning)
	requirePath(t, told.states, events.ActualStateCreationRequested, events.ActualStateStarting, events.ActualStateRunning)
	require.Empty(t, told.wishes)
	require.Equal(t, told.ids, w.history(), "the API lists what the stream holds")

	require.ElementsMatch(t, []events.ObjectReference{
		{ApiVersion: "v1", Kind: "Namespace", Name: w.namespace},
		{ApiVersion: "v1", Kind: "ServiceAccount", Namespace: w.namespace, Name: w.name},
		{ApiVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy", Namespace: w.namespace, Name: w.name},
		{ApiVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: w.namespace, Name: w.name + "-data"},
		{ApiVersion: "v1", Kind: "Service", Namespace: w.namespace, Name: w.name},
		{ApiVersion: "apps/v1", Kind: "Deployment", Namespace: w.namespace, Name: w.name},
	}, w.objects())
	revision, inventory := w.inventory()
	require.Equal(t, "1", revision)
	require.ElementsMatch(t, w.objects(), inventory)

	require.Equal(t, corev1.ClaimBound, w.claim().Status.Phase)
	require.Equal(t, goodImage, w.pod().Spec.Containers[0].Image)
	require.Equal(t, corev1.PodRunning, w.pod().Status.Phase)
	for key, value := range w.labels() {
		require.Equal(t, value, w.pod().Labels[key])
	}
	namespace, err := s.kube.CoreV1().Namespaces().Get(t.Context(), w.namespace, metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "ws-"+strconv.FormatInt(w.agent, 10)+"-"+w.name, namespace.Name)
	require.Equal(t, "restricted", namespace.Labels["pod-security.kubernetes.io/enforce"])
}

func stopKeepsTheVolume(s *system) {
	t := s.t
	w := s.createRunning("stopped")
	story := w.follow()
	story.through(events.ActualStateRunning)
	claim, pod := w.claim().UID, w.podUID()

	w.stop()
	w.untilStopped()
	requirePath(t, append([]events.ActualState{events.ActualStateRunning}, story.through(events.ActualStateStopped).states...),
		events.ActualStateRunning, events.ActualStateStopping, events.ActualStateStopped)
	require.Empty(t, w.pods())
	require.Equal(t, claim, w.claim().UID, "the volume is kept")
	require.Nil(t, w.claim().DeletionTimestamp)

	w.start()
	w.untilRunning()
	requirePath(t, append([]events.ActualState{events.ActualStateStopped}, story.through(events.ActualStateRunning).states...),
		events.ActualStateStopped, events.ActualStateStarting, events.ActualStateRunning)
	require.Equal(t, claim, w.claim().UID, "the volume is the same")
	require.NotEqual(t, pod, w.podUID())
}

func restartStopsAndStarts(s *system) {
	t := s.t
	w := s.createRunning("restarted")
	story := w.follow()
	story.through(events.ActualStateRunning)
	pod, claim := w.podUID(), w.claim().UID

	asked := w.restart()
	require.Equal(t, statev1.DesiredState_DESIRED_STATE_RESTART_REQUESTED, asked.GetDesiredState())
	done := w.untilRestarted()
	require.Equal(t, asked.GetDesiredRevision()+1, done.GetDesiredRevision())

	first, second := story.through(events.ActualStateStopped), story.through(events.ActualStateRunning)
	requirePath(t, append([]events.ActualState{events.ActualStateRunning}, first.states...), events.ActualStateRunning, events.ActualStateStopping, events.ActualStateStopped)
	requirePath(t, append([]events.ActualState{events.ActualStateStopped}, second.states...), events.ActualStateStopped, events.ActualStateStarting, events.ActualStateRunning)
	wishes := slices.Concat(first.wishes, second.wishes)
	require.Len(t, wishes, 2)
	require.Equal(t, events.DesiredStateRestartRequested, wishes[0].To)
	require.Equal(t, new(events.DesiredStateCauseUser), wishes[0].Cause)
	require.Equal(t, events.DesiredStateRunning, wishes[1].To)
	require.Equal(t, new(events.DesiredStateCauseRestartCompleted), wishes[1].Cause)
	require.NotEqual(t, pod, w.podUID())
	require.Equal(t, claim, w.claim().UID)
}

func restartOfAStoppedOneStartsIt(s *system) {
	t := s.t
	w := s.createRunning("restarted-stopped")
	w.stop()
	w.untilStopped()
	require.Equal(t, statev1.DesiredState_DESIRED_STATE_RUNNING, w.restart().GetDesiredState())
	w.untilRunning()
}

func terminatedIsGoneForEver(s *system) {
	t := s.t
	w := s.createRunning("terminated")
	story := w.follow()
	story.through(events.ActualStateRunning)
	volume := w.claim().Spec.VolumeName
	require.NotEmpty(t, volume)

	w.terminate()
	w.requireRefusesChanges()
	w.untilTerminated()
	w.requireGone()
	w.requireRefusesChanges()
	requirePath(t, append([]events.ActualState{events.ActualStateRunning}, story.through(events.ActualStateTerminated).states...),
		events.ActualStateRunning, events.ActualStateStopping, events.ActualStateStopped, events.ActualStateTerminating, events.ActualStateTerminated)
	awaitCluster(t, "the volume is gone", func(ctx context.Context) (bool, error) {
		_, err := s.kube.CoreV1().PersistentVolumes().Get(ctx, volume, metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	})
	require.Equal(t, statev1.DesiredState_DESIRED_STATE_TERMINATED, w.terminate().GetDesiredState(), "what is wanted already is no change")

	again := s.createRunning("terminated")
	require.NotEqual(t, w.id, again.id)
	require.Equal(t, w.namespace, again.namespace)
	require.Equal(t, statev1.ActualState_ACTUAL_STATE_TERMINATED, w.get().GetActualState())
}

// requireRefusesChanges tries each change of a workspace that was asked to terminate.
func (w *workspace) requireRefusesChanges() {
	w.t.Helper()
	for _, state := range []statev1.DesiredState{
		statev1.DesiredState_DESIRED_STATE_RUNNING, statev1.DesiredState_DESIRED_STATE_STOPPED, statev1.DesiredState_DESIRED_STATE_RESTART_REQUESTED,
	} {
		_, err := w.tryDesire(state)
		require.True(w.t, fault.Is(err, errcode.WorkspaceTerminated), "%s: %v", state, err)
		require.ErrorContains(w.t, err, w.name)
		require.ErrorContains(w.t, err, "permanent")
	}
	_, err := w.s.api.Workspaces.UpdateWorkspace(w.t.Context(), connect.NewRequest(&statev1.UpdateWorkspaceRequest{
		Workspace: w.reference(), Overrides: &statev1.WorkspaceOverrides{Image: otherGoodImage},
	}))
	require.True(w.t, fault.Is(err, errcode.WorkspaceTerminated), "update: %v", err)
}

// awaitPodOtherThan waits for a pod to be replaced.
func (w *workspace) awaitPodOtherThan(old types.UID) {
	w.t.Helper()
	w.awaitCluster("another pod runs", func(ctx context.Context) (bool, error) {
		list, err := w.s.kube.CoreV1().Pods(w.namespace).List(ctx, metav1.ListOptions{})
		return err == nil && len(list.Items) == 1 && list.Items[0].UID != old && list.Items[0].Status.Phase == corev1.PodRunning, err
	})
}

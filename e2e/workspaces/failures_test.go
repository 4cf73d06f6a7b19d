package workspaces_test

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/schemas/gen/events"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

func TestFailuresMissingImage(t *testing.T) {
	s := shared.Parallel(t)

	w := s.Create("missing-image", fixture.MissingImage)
	failed := w.AwaitFailed("ErrImagePull")
	require.Equal(t, "image "+fixture.MissingImage+" cannot be pulled: not found", failed.GetMessage())
	repairImage(w)
	fixture.RequirePath(t, w.Events().Until(events.ActualStateRunning).States, events.ActualStateCreationRequested,
		events.ActualStateStarting, events.ActualStateFailed, events.ActualStateStarting, events.ActualStateRunning)
}

func TestFailuresCrashingImage(t *testing.T) {
	s := shared.Parallel(t)

	w := s.Create("crashing-image", fixture.CrashingImage)
	failed := w.AwaitFailed("CrashLoopBackOff")
	require.Equal(t, "container workspace keeps exiting: its command failed with exit code 1", failed.GetMessage())
	repairImage(w)
}

// repairImage gives the workspace an image that works.
func repairImage(w *fixture.Workspace) {
	w.T.Helper()
	w.Update(&statev1.WorkspaceOverrides{Image: fixture.GoodImage})
	fixed := w.AwaitRunning()
	require.Empty(w.T, fixed.GetReason())
	require.Empty(w.T, fixed.GetMessage())
	require.Equal(w.T, fixture.GoodImage, w.Pod().Spec.Containers[0].Image)
}

// TestFailuresCrashAfterRunning crashes a workspace that was Running. The Deployment's conditions
// alone do not show it. The crash loop is one failure, however often the container is started again.
func TestFailuresCrashAfterRunning(t *testing.T) {
	s := shared.Parallel(t)

	w := s.CreateRunning("crashes-later")
	reader := w.Events()
	reader.Until(events.ActualStateRunning)
	pod := w.PodUID()
	w.BreakPod("crash-loop")
	w.AwaitFailed("CrashLoopBackOff")
	w.AwaitCluster("the container is started again", func(context.Context) (bool, error) {
		return w.Pod().Status.ContainerStatuses[0].RestartCount >= 4, nil
	})
	w.BreakPod("")
	w.AwaitRunning()
	require.Equal(t, pod, w.PodUID(), "it leaves Failed by itself")
	states := reader.Until(events.ActualStateRunning).States
	require.Equal(t, []events.ActualState{events.ActualStateFailed, events.ActualStateRunning},
		states[slices.Index(states, events.ActualStateFailed):])
}

func TestFailuresUnschedulable(t *testing.T) {
	s := shared.Parallel(t)
	agent, project := newAgent(s, "unschedulable")
	configureAgent(s, agent.ID, &statev1.AgentConfiguration{UnschedulablePatience: durationpb.New(time.Second)})
	here := *s
	here.ProjectID, here.AgentID = project, agent.ID

	w := here.Create("unschedulable", "registry.example/unschedulable:1")
	failed := w.AwaitFailed("Unschedulable")
	require.Contains(t, failed.GetMessage(), "no node of the cluster can take the workspace")
	require.Eventually(t, func() bool {
		return fixture.ContainsAll(s.CLI().OK("ws", "events", w.Name), []string{"to=starting", "reason=Unschedulable"})
	}, fixture.Timeout, fixture.PollInterval, "the reason is shown before it fails")
	repairImage(w)
}

// TestFailuresLeaveOtherWorkspacesAlone runs a healthy workspace beside four that fail for
// different reasons.
func TestFailuresLeaveOtherWorkspacesAlone(t *testing.T) {
	s := shared.Parallel(t)

	healthy := s.CreateRunning("healthy")
	healthy.Events().Until(events.ActualStateRunning)
	before, pod, past := healthy.Get(), healthy.PodUID(), healthy.EventIDs()

	pulling := s.Create("neighbour-pulling", fixture.MissingImage)
	crashing := s.Create("neighbour-crashing", fixture.CrashingImage)
	blocked := createInTakenNamespace(s, "neighbour-blocked")
	limited := s.CreateWith(
		&statev1.CreateWorkspaceRequest{
			Name:      "neighbour-limited",
			Overrides: &statev1.WorkspaceOverrides{Image: fixture.GoodImage},
		},
	)
	limited.AwaitRunning()
	lift := forbidServices(limited)
	limited.Update(&statev1.WorkspaceOverrides{Ports: []*statev1.Port{{Name: "web", Number: 8080}}})

	pulling.AwaitFailed("ErrImagePull")
	crashing.AwaitFailed("CrashLoopBackOff")
	taken := blocked.AwaitError("Conflict")
	require.Contains(t, taken.GetMessage(), blocked.Namespace)
	refused := limited.AwaitError("QuotaExceeded")
	require.Contains(t, refused.GetMessage(),
		"the quota no-services is exceeded by Service "+limited.Namespace+"/"+limited.Name)

	after := healthy.Get()
	require.Equal(t, before.GetDesiredRevision(), after.GetDesiredRevision())
	require.Equal(t, before.GetActualState(), after.GetActualState())
	require.Equal(t, before.GetActualStateChangedAt().AsTime(), after.GetActualStateChangedAt().AsTime())
	require.Equal(t, pod, healthy.PodUID())
	require.Equal(t, past, healthy.EventIDs(), "it has no new events")

	healthy.Update(&statev1.WorkspaceOverrides{Image: fixture.OtherGoodImage})
	healthy.AwaitNewPod(pod)
	healthy.AwaitRunning()
	require.Equal(t, fixture.OtherGoodImage, healthy.Pod().Spec.Containers[0].Image, "a change takes effect meanwhile")
	require.Equal(t, statev1.ActualState_ACTUAL_STATE_ERROR, limited.Get().GetActualState())

	lift()
	limited.AwaitRunning()
	blocked.Terminate()
	blocked.AwaitTerminated()
	namespace, err := s.Kube.CoreV1().Namespaces().Get(t.Context(), blocked.Namespace, metav1.GetOptions{})
	require.NoError(t, err)
	require.Nil(t, namespace.DeletionTimestamp, "a foreign namespace stays")
}

// createInTakenNamespace creates a workspace whose namespace already exists and belongs to someone
// else.
func createInTakenNamespace(s *fixture.System, name string) *fixture.Workspace {
	s.T.Helper()
	_, err := s.Kube.CoreV1().Namespaces().Create(
		s.T.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ws-" + strconv.FormatInt(s.AgentID, 10) + "-" + name}},
		metav1.CreateOptions{},
	)
	require.NoError(s.T, err)
	return s.Create(name, fixture.GoodImage)
}

// forbidServices creates a quota that allows no Services in the workspace's namespace. The returned
// function deletes it.
func forbidServices(w *fixture.Workspace) func() {
	w.T.Helper()
	quotas := w.System.Kube.CoreV1().ResourceQuotas(w.Namespace)
	none := corev1.ResourceList{corev1.ResourceServices: resource.MustParse("0")}
	_, err := quotas.Create(w.T.Context(), &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "no-services"}, Spec: corev1.ResourceQuotaSpec{Hard: none},
	}, metav1.CreateOptions{})
	require.NoError(w.T, err)
	// The API server enforces a quota a moment after its status is complete.
	w.AwaitCluster("the quota is in force", func(ctx context.Context) (bool, error) {
		_, err := w.System.Kube.CoreV1().Services(w.Namespace).Create(ctx, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "probe-"},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
		}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil || apierrors.IsForbidden(err) {
			return err != nil && strings.Contains(err.Error(), "exceeded quota: no-services"), nil
		}
		return false, err
	})
	return func() {
		w.T.Helper()
		require.NoError(w.T, quotas.Delete(w.T.Context(), "no-services", metav1.DeleteOptions{}))
	}
}

// TestFailuresRefusedApplyBacksOff lets a quota refuse a change until the quota is deleted.
func TestFailuresRefusedApplyBacksOff(t *testing.T) {
	s := shared.Parallel(t)
	// A resync of another test would create the deleted Service again.
	agent, project := newAgent(s, "refused")

	w := s.CreateWith(&statev1.CreateWorkspaceRequest{
		Name:      "refused",
		ProjectId: project,
		AgentId:   agent.ID,
		Overrides: &statev1.WorkspaceOverrides{Image: fixture.GoodImage},
	})
	w.AwaitRunning()
	reader := w.Events()
	reader.Until(events.ActualStateRunning)

	for _, number := range []int32{8080, 8081} {
		lift := forbidServices(w)
		w.Update(&statev1.WorkspaceOverrides{Ports: []*statev1.Port{{Name: "web", Number: number}}})
		refused := w.AwaitError("QuotaExceeded")
		require.Contains(t, refused.GetMessage(), "the quota no-services is exceeded by Service "+w.Namespace+"/"+w.Name)
		failures := w.AwaitAttempt(4, refused.GetDesiredRevision())
		require.LessOrEqual(t, failures[0].Attempt, 4, "attempts are counted anew: the revision before succeeded in the end")
		fixture.RequireBackOff(t, failures)
		for _, failed := range failures {
			require.Equal(t, "QuotaExceeded", failed.Reason)
			require.Equal(t, refused.GetMessage(), failed.Message)
			require.Equal(t, &events.ObjectReference{ApiVersion: "v1", Kind: "Service", Namespace: w.Namespace, Name: w.Name},
				failed.Object)
		}
		lift()
		fixed := w.AwaitRunning()
		require.Equal(t, refused.GetDesiredRevision(), fixed.GetDesiredRevision(), "no new request is needed")
		require.Empty(t, fixed.GetReason())
		require.Empty(t, fixed.GetMessage())
		reader.Until(events.ActualStateError)
		require.NotContains(t, reader.Until(events.ActualStateRunning).States[1:], events.ActualStateError,
			"a retry is no event")
		// An existing Service needs no quota: delete it for the next round.
		require.NoError(t, s.Kube.CoreV1().Services(w.Namespace).Delete(t.Context(), w.Name, metav1.DeleteOptions{}))
	}
}

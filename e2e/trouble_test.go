package e2e_test

import (
	"context"
	"strconv"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/schemas/gen/events"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

func missingImageFailsReadablyAndIsMended(s *system) {
	t := s.t
	w := s.create("missing-image", missingImage)
	failed := w.untilFailed("ErrImagePull")
	require.Equal(t, "image "+missingImage+" cannot be pulled: not found", failed.GetMessage())
	w.mend()
	requirePath(t, w.follow().through(events.ActualStateRunning).states,
		events.ActualStateCreationRequested, events.ActualStateStarting, events.ActualStateFailed, events.ActualStateStarting, events.ActualStateRunning)
}

func crashingImageFailsReadablyAndIsMended(s *system) {
	t := s.t
	w := s.create("crashing-image", crashingImage)
	failed := w.untilFailed("CrashLoopBackOff")
	require.Equal(t, "container workspace keeps ending: its command failed with exit code 1", failed.GetMessage())
	w.mend()
}

// mend gives the workspace an image that works.
func (w *workspace) mend() {
	w.t.Helper()
	w.update(&statev1.WorkspaceOverrides{Image: goodImage})
	mended := w.untilRunning()
	require.Empty(w.t, mended.GetReason())
	require.Empty(w.t, mended.GetMessage())
	require.Equal(w.t, goodImage, w.pod().Spec.Containers[0].Image)
}

// whatWasCompleteOnceStillFails is a workspace that crashes after it was Running, which its Deployment's conditions alone do not tell.
func whatWasCompleteOnceStillFails(s *system) {
	t := s.t
	w := s.createRunning("crashes-later")
	pod := w.podUID()
	w.breakPod("crash-loop")
	w.untilFailed("CrashLoopBackOff")
	w.breakPod("")
	w.untilRunning()
	require.Equal(t, pod, w.podUID(), "it leaves Failed by itself")
}

func unschedulableFailsPastPatience(s *system) {
	t := s.t
	w := s.create("unschedulable", "registry.example/unschedulable:1")
	failed := w.untilFailed("Unschedulable")
	require.Contains(t, failed.GetMessage(), "no node of the cluster can take the workspace")
	w.mend()
}

// othersTroubleIsNotOnesOwn has one healthy workspace beside three that cannot be what they should, each for another reason.
func othersTroubleIsNotOnesOwn(s *system) {
	t := s.t
	healthy := s.createRunning("healthy")
	before, pod, past := healthy.get(), healthy.podUID(), healthy.history()

	pulling := s.create("neighbour-pulling", missingImage)
	crashing := s.create("neighbour-crashing", crashingImage)
	squatted := s.squatted("neighbour-squatted")
	limited := s.createAs(&statev1.CreateWorkspaceRequest{Name: "neighbour-limited", Overrides: &statev1.WorkspaceOverrides{Image: goodImage}})
	limited.untilRunning()
	lift := limited.forbidServices()
	limited.update(&statev1.WorkspaceOverrides{Ports: []*statev1.Port{{Name: "web", Number: 8080}}})

	pulling.untilFailed("ErrImagePull")
	crashing.untilFailed("CrashLoopBackOff")
	taken := squatted.untilError("Conflict")
	require.Contains(t, taken.GetMessage(), squatted.namespace)
	refused := limited.untilError("QuotaExceeded")
	require.Contains(t, refused.GetMessage(), "the quota no-services leaves no room for Service "+limited.namespace+"/"+limited.name)

	after := healthy.get()
	require.Equal(t, before.GetDesiredRevision(), after.GetDesiredRevision())
	require.Equal(t, before.GetActualState(), after.GetActualState())
	require.Equal(t, before.GetActualStateChangedAt().AsTime(), after.GetActualStateChangedAt().AsTime())
	require.Equal(t, pod, healthy.podUID())
	require.Equal(t, past, healthy.history(), "nothing is told of it")

	healthy.update(&statev1.WorkspaceOverrides{Image: otherGoodImage})
	healthy.awaitPodOtherThan(pod)
	healthy.untilRunning()
	require.Equal(t, otherGoodImage, healthy.pod().Spec.Containers[0].Image, "a change takes effect meanwhile")
	require.Equal(t, statev1.ActualState_ACTUAL_STATE_ERROR, limited.get().GetActualState())

	lift()
	limited.untilRunning()
	squatted.terminate()
	squatted.untilTerminated()
	namespace, err := s.kube.CoreV1().Namespaces().Get(t.Context(), squatted.namespace, metav1.GetOptions{})
	require.NoError(t, err)
	require.Nil(t, namespace.DeletionTimestamp, "what is not the workspace's stays")
}

// squatted asks for a workspace whose namespace somebody else has.
func (s *system) squatted(name string) *workspace {
	s.t.Helper()
	_, err := s.kube.CoreV1().Namespaces().Create(s.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ws-" + strconv.FormatInt(s.agent, 10) + "-" + name}}, metav1.CreateOptions{})
	require.NoError(s.t, err)
	return s.create(name, goodImage)
}

// forbidServices puts a quota into the workspace's namespace that leaves no room for Services, and returns what lifts it.
func (w *workspace) forbidServices() func() {
	w.t.Helper()
	quotas := w.s.kube.CoreV1().ResourceQuotas(w.namespace)
	none := corev1.ResourceList{corev1.ResourceServices: resource.MustParse("0")}
	_, err := quotas.Create(w.t.Context(), &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "no-services"}, Spec: corev1.ResourceQuotaSpec{Hard: none},
	}, metav1.CreateOptions{})
	require.NoError(w.t, err)
	w.awaitCluster("the quota is in force", func(ctx context.Context) (bool, error) {
		quota, err := quotas.Get(ctx, "no-services", metav1.GetOptions{})
		return err == nil && len(quota.Status.Hard) > 0, err
	})
	return func() {
		w.t.Helper()
		require.NoError(w.t, quotas.Delete(w.t.Context(), "no-services", metav1.DeleteOptions{}))
	}
}

// refusedIsTriedAgainEverLess has a quota refuse a change again and again, until it is lifted.
func refusedIsTriedAgainEverLess(s *system) {
	t := s.t
	w := s.createAs(&statev1.CreateWorkspaceRequest{Name: "refused", Overrides: &statev1.WorkspaceOverrides{Image: goodImage}})
	w.untilRunning()
	story := w.follow()
	story.through(events.ActualStateRunning)

	for _, number := range []int32{8080, 8081} {
		lift := w.forbidServices()
		w.update(&statev1.WorkspaceOverrides{Ports: []*statev1.Port{{Name: "web", Number: number}}})
		refused := w.untilError("QuotaExceeded")
		require.Contains(t, refused.GetMessage(), "the quota no-services leaves no room for Service "+w.namespace+"/"+w.name)
		failures := w.untilAttempt(4, refused.GetDesiredRevision())
		requireBackOff(t, failures) // which begins anew, since the one before succeeded in the end
		for _, failed := range failures {
			require.Equal(t, "QuotaExceeded", failed.Reason)
			require.Equal(t, refused.GetMessage(), failed.Message)
			require.Equal(t, &events.ObjectReference{ApiVersion: "v1", Kind: "Service", Namespace: w.namespace, Name: w.name}, failed.Object)
		}
		lift()
		mended := w.untilRunning()
		require.Equal(t, refused.GetDesiredRevision(), mended.GetDesiredRevision(), "nobody had to ask for it again")
		require.Empty(t, mended.GetReason())
		require.Empty(t, mended.GetMessage())
		story.through(events.ActualStateError)
		require.NotContains(t, story.through(events.ActualStateRunning).states[1:], events.ActualStateError, "that it is tried again is no news of the workspace")
		// A Service that is there needs no room.
		require.NoError(t, s.kube.CoreV1().Services(w.namespace).Delete(t.Context(), w.name, metav1.DeleteOptions{}))
	}
}

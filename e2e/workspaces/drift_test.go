package workspaces_test

import (
	"context"
	"encoding/json"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/schemas/gen/events"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

// editDeployment patches the workspace's Deployment with another field manager.
func editDeployment(w *fixture.Workspace, patch string, subresources ...string) {
	w.T.Helper()
	_, err := w.System.Kube.AppsV1().Deployments(w.Namespace).Patch(w.T.Context(), w.Name, types.StrategicMergePatchType,
		[]byte(patch), metav1.PatchOptions{FieldManager: "somebody"}, subresources...)
	require.NoError(w.T, err)
}

// driftEvents returns the workspace's drift events, oldest first.
func driftEvents(w *fixture.Workspace) []events.WorkspaceDrifted {
	w.T.Helper()
	response, err := w.System.API.Workspaces.ListWorkspaceEvents(w.T.Context(),
		connect.NewRequest(&statev1.ListWorkspaceEventsRequest{Workspace: w.Reference(), PageSize: 1000}))
	require.NoError(w.T, err)
	var found []events.WorkspaceDrifted
	for _, e := range response.Msg.GetEvents() {
		if e.GetType() != events.TypeWorkspaceDrifted {
			continue
		}
		var structured struct {
			Data events.WorkspaceDrifted `json:"data"`
		}
		require.NoError(w.T, json.Unmarshal([]byte(e.GetCloudEvent()), &structured))
		found = append(found, structured.Data)
	}
	return found
}

// awaitReapplied waits until the workspace is Running with a desired revision above the given one.
func awaitReapplied(w *fixture.Workspace, revision int64) *statev1.Workspace {
	w.T.Helper()
	return w.Await("applied again", func(now *statev1.Workspace) bool {
		return fixture.Settled(statev1.ActualState_ACTUAL_STATE_RUNNING)(now) && now.GetDesiredRevision() > revision
	})
}

func TestDriftEditedDeploymentReapplied(t *testing.T) {
	s := shared.Exclusive(t)

	w := s.CreateRunning("edited")
	uid := w.Deployment().UID
	for _, edit := range []struct{ patch, message string }{
		{`{"spec":{"replicas":3}}`, "was scaled to 3 by somebody else"},
		{`{"spec":{"template":{"spec":{"containers":[{"name":"workspace","image":"` +
			fixture.OtherGoodImage + `"}]}}}}`, "was changed by somebody else"},
		{`{"spec":{"replicas":0}}`, "was scaled to 0 by somebody else"},
	} {
		before, seen := w.Get(), len(driftEvents(w))
		editDeployment(w, edit.patch)
		after := awaitReapplied(w, before.GetDesiredRevision())
		require.Equal(t, before.GetDesiredRevision()+1, after.GetDesiredRevision(), "each change is answered once")
		require.Equal(t, before.GetDesiredState(), after.GetDesiredState())
		live := w.Deployment()
		require.Equal(t, uid, live.UID)
		require.EqualValues(t, 1, *live.Spec.Replicas)
		require.Equal(t, fixture.GoodImage, live.Spec.Template.Spec.Containers[0].Image)
		require.Equal(t, after.GetDesiredRevision(), w.DeploymentRevision())
		var drifts []events.WorkspaceDrifted
		require.Eventually(t, func() bool {
			drifts = driftEvents(w)
			return len(drifts) > seen
		}, fixture.Timeout, fixture.PollInterval)
		require.Len(t, drifts, seen+1)
		require.Contains(t, drifts[seen].Message, edit.message)
		require.EqualValues(t, after.GetDesiredRevision(), drifts[seen].DesiredRevision)
	}
}

func TestDriftUnobservedEditReapplied(t *testing.T) {
	s := shared.Parallel(t)

	w := s.CreateRunning("edited-unseen")
	before := w.Get()
	// A change of annotations leaves the generation alone: only a list reports it.
	editDeployment(w, `{"metadata":{"annotations":{"`+fixture.DesiredRevisionAnnotation+`":"999"}}}`)
	s.Resync()
	w.AwaitCluster("it is the revision's again", func(ctx context.Context) (bool, error) {
		live, err := s.Kube.AppsV1().Deployments(w.Namespace).Get(ctx, w.Name, metav1.GetOptions{})
		return err == nil && live.Annotations[fixture.DesiredRevisionAnnotation] != "999", err
	})
	w.Await("settled", fixture.Settled(statev1.ActualState_ACTUAL_STATE_RUNNING))
	require.Eventually(t, func() bool { return len(driftEvents(w)) > 0 }, fixture.Timeout, fixture.PollInterval)
	require.LessOrEqual(t, w.Get().GetDesiredRevision(), before.GetDesiredRevision()+1)
}

func TestDriftResyncRepairsOtherObjects(t *testing.T) {
	s := shared.Parallel(t)

	secret := s.Secrets.New()
	w := s.CreateWith(&statev1.CreateWorkspaceRequest{Name: "repaired", Overrides: &statev1.WorkspaceOverrides{
		Image:     fixture.GoodImage,
		Ports:     []*statev1.Port{{Name: "web", Number: 8080}},
		SecretEnv: map[string]string{"TOKEN": secret},
	}})
	w.AwaitRunning()
	ctx, before := t.Context(), w.Get()
	pod := w.PodUID()
	require.NoError(t, s.Kube.NetworkingV1().NetworkPolicies(w.Namespace).Delete(ctx, w.Name, metav1.DeleteOptions{}))
	_, err := s.Kube.CoreV1().Services(w.Namespace).Patch(ctx, w.Name, types.MergePatchType,
		[]byte(`{"spec":{"selector":{"app":"theirs"}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	_, err = s.Kube.CoreV1().Secrets(w.Namespace).Patch(ctx, w.Name+"-env", types.MergePatchType,
		[]byte(`{"stringData":{"TOKEN":"theirs"}}`), metav1.PatchOptions{})
	require.NoError(t, err)

	s.Resync()
	require.Eventually(t, func() bool { return len(driftEvents(w)) == 3 }, fixture.Timeout, fixture.PollInterval,
		"the repairs are reported")
	kinds := map[string]bool{}
	for _, drift := range driftEvents(w) {
		kinds[drift.Object.Kind] = true
		require.Contains(t, drift.Message, "was changed or deleted by somebody else; it has been applied again")
	}
	require.Equal(t, map[string]bool{"NetworkPolicy": true, "Service": true, "Secret": true}, kinds)
	_, err = s.Kube.NetworkingV1().NetworkPolicies(w.Namespace).Get(ctx, w.Name, metav1.GetOptions{})
	require.NoError(t, err)
	service, err := s.Kube.CoreV1().Services(w.Namespace).Get(ctx, w.Name, metav1.GetOptions{})
	require.NoError(t, err)
	require.NotContains(t, service.Spec.Selector, "app")
	require.Equal(t, []string{secret}, w.SecretValues("-env"))
	after := w.Get()
	require.Equal(t, before.GetDesiredRevision(), after.GetDesiredRevision(), "nothing new is wanted")
	require.Equal(t, statev1.ActualState_ACTUAL_STATE_RUNNING, after.GetActualState())
	require.Equal(t, pod, w.PodUID())
}

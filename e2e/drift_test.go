package e2e_test

import (
	"context"
	"encoding/json"
	"strconv"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockstep.internal/schemas/gen/events"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/services/watcher"
	"lockstep.internal/tools/stack"
)

// TestBehindTheSystemsBack is one system whose cluster others change too.
func TestBehindTheSystemsBack(t *testing.T) {
	t.Parallel()
	s := start(t, func(service string, config any) {
		if service == stack.Watcher {
			config.(*watcher.Config).TickInterval = time.Second
		}
	})
	// By itself: a resync that others ask for has the dispatcher mend what is edited before the state service answers it.
	s.inTurn(promise{"an edited Deployment is applied again at once", editedDeploymentIsAppliedAgain})
	s.together(
		promise{"a Deployment edited while nobody looked is applied again", editUnseenIsAppliedAgain},
		promise{"whatever else was changed is repaired by a resync", restIsRepairedByAResync},
		promise{"an orphan is left alone, and adopted", orphanIsLeftAloneAndAdopted},
		promise{"an orphan is deleted on purpose", orphanIsDeletedOnPurpose},
	)
	s.inTurn(promise{"the history is sound", requireSoundHistory})
}

// edit patches the workspace's Deployment as somebody else.
func (w *workspace) edit(patch string, subresources ...string) {
	w.t.Helper()
	_, err := w.s.kube.AppsV1().Deployments(w.namespace).Patch(w.t.Context(), w.name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: "somebody"}, subresources...)
	require.NoError(w.t, err)
}

// drifts are what was told of changes by others, oldest first.
func (w *workspace) drifts() []events.WorkspaceDrifted {
	w.t.Helper()
	response, err := w.s.api.Workspaces.ListWorkspaceEvents(w.t.Context(), connect.NewRequest(&statev1.ListWorkspaceEventsRequest{Workspace: w.reference(), PageSize: 1000}))
	require.NoError(w.t, err)
	var found []events.WorkspaceDrifted
	for _, e := range response.Msg.GetEvents() {
		if e.GetType() != events.TypeWorkspaceDrifted {
			continue
		}
		var structured struct {
			Data events.WorkspaceDrifted `json:"data"`
		}
		require.NoError(w.t, json.Unmarshal([]byte(e.GetCloudEvent()), &structured))
		found = append(found, structured.Data)
	}
	return found
}

// untilAppliedAgain waits until the workspace runs as it did, with a revision above this one.
func (w *workspace) untilAppliedAgain(than int64) *statev1.Workspace {
	w.t.Helper()
	return w.until("applied again", func(now *statev1.Workspace) bool {
		return settled(statev1.ActualState_ACTUAL_STATE_RUNNING)(now) && now.GetDesiredRevision() > than
	})
}

func editedDeploymentIsAppliedAgain(s *system) {
	t := s.t
	w := s.createRunning("edited")
	uid := w.deployment().UID
	for _, edit := range []struct{ patch, says string }{
		{`{"spec":{"replicas":3}}`, "was scaled to 3 by somebody else"},
		{`{"spec":{"template":{"spec":{"containers":[{"name":"workspace","image":"` + otherGoodImage + `"}]}}}}`, "was changed by somebody else"},
		{`{"spec":{"replicas":0}}`, "was scaled to 0 by somebody else"},
	} {
		before, told := w.get(), len(w.drifts())
		w.edit(edit.patch)
		after := w.untilAppliedAgain(before.GetDesiredRevision())
		require.Equal(t, before.GetDesiredRevision()+1, after.GetDesiredRevision(), "each change is answered once")
		require.Equal(t, before.GetDesiredState(), after.GetDesiredState())
		live := w.deployment()
		require.Equal(t, uid, live.UID)
		require.EqualValues(t, 1, *live.Spec.Replicas)
		require.Equal(t, goodImage, live.Spec.Template.Spec.Containers[0].Image)
		require.Equal(t, after.GetDesiredRevision(), w.deploymentRevision())
		drifts := w.drifts()
		require.Len(t, drifts, told+1)
		require.Contains(t, drifts[told].Message, edit.says)
		require.EqualValues(t, after.GetDesiredRevision(), drifts[told].DesiredRevision)
	}
}

func editUnseenIsAppliedAgain(s *system) {
	t := s.t
	w := s.createRunning("edited-unseen")
	before := w.get()
	// What leaves the generation alone is only told by a list.
	w.edit(`{"metadata":{"annotations":{"` + desiredRevision + `":"999"}}}`)
	s.resync()
	w.awaitCluster("it is the revision's again", func(ctx context.Context) (bool, error) {
		live, err := s.kube.AppsV1().Deployments(w.namespace).Get(ctx, w.name, metav1.GetOptions{})
		return err == nil && live.Annotations[desiredRevision] != "999", err
	})
	w.until("settled", settled(statev1.ActualState_ACTUAL_STATE_RUNNING))
	require.Eventually(t, func() bool { return len(w.drifts()) > 0 }, patience, clusterTick)
	require.LessOrEqual(t, w.get().GetDesiredRevision(), before.GetDesiredRevision()+1)
}

// resync has the agent report all that it has and look at all that it should have, and returns when the report has come in whole.
func (s *system) resync() {
	s.t.Helper()
	s.commandLine().ok("agent", "resync", strconv.FormatInt(s.agent, 10), "--wait")
}

func restIsRepairedByAResync(s *system) {
	t := s.t
	secret := s.secrets.make()
	w := s.createAs(&statev1.CreateWorkspaceRequest{Name: "repaired", Overrides: &statev1.WorkspaceOverrides{
		Image: goodImage, Ports: []*statev1.Port{{Name: "web", Number: 8080}}, SecretEnv: map[string]string{"TOKEN": secret},
	}})
	w.untilRunning()
	ctx, before := t.Context(), w.get()
	pod := w.podUID()
	require.NoError(t, s.kube.NetworkingV1().NetworkPolicies(w.namespace).Delete(ctx, w.name, metav1.DeleteOptions{}))
	_, err := s.kube.CoreV1().Services(w.namespace).Patch(ctx, w.name, types.MergePatchType, []byte(`{"spec":{"selector":{"app":"theirs"}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	_, err = s.kube.CoreV1().Secrets(w.namespace).Patch(ctx, w.name+"-env", types.MergePatchType, []byte(`{"stringData":{"TOKEN":"theirs"}}`), metav1.PatchOptions{})
	require.NoError(t, err)

	s.resync()
	require.Eventually(t, func() bool { return len(w.drifts()) == 3 }, patience, clusterTick, "it is told what was repaired")
	kinds := map[string]bool{}
	for _, drift := range w.drifts() {
		kinds[drift.Object.Kind] = true
		require.Contains(t, drift.Message, "was changed or deleted by somebody else; it has been applied again")
	}
	require.Equal(t, map[string]bool{"NetworkPolicy": true, "Service": true, "Secret": true}, kinds)
	_, err = s.kube.NetworkingV1().NetworkPolicies(w.namespace).Get(ctx, w.name, metav1.GetOptions{})
	require.NoError(t, err)
	service, err := s.kube.CoreV1().Services(w.namespace).Get(ctx, w.name, metav1.GetOptions{})
	require.NoError(t, err)
	require.NotContains(t, service.Spec.Selector, "app")
	require.Equal(t, []string{secret}, w.secretValues("-env"))
	after := w.get()
	require.Equal(t, before.GetDesiredRevision(), after.GetDesiredRevision(), "nothing new is wanted")
	require.Equal(t, statev1.ActualState_ACTUAL_STATE_RUNNING, after.GetActualState())
	require.Equal(t, pod, w.podUID())
}

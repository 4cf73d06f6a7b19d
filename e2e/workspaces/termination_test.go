package workspaces_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/schemas/gen/events"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

// terminationAgent is the name of an agent that has its own clock.
const terminationAgent = "own-termination"

// terminationClock is its clock.
var terminationClock = &fixture.Clock{}

// TestStuckTerminationIsExplained holds the deletion of a workspace by a finalizer. It is terminating with the reason,
// an error after the patience on the agent's clock, and terminated when the finalizer is gone.
func TestStuckTerminationIsExplained(t *testing.T) {
	s := shared.Parallel(t)
	here := *s
	here.ProjectID = s.NewProject(terminationAgent)
	agent, err := s.AddAgent(t.Context(), here.ProjectID, terminationAgent, s.Kubeconfig())
	require.NoError(t, err)
	here.AgentID = agent.ID
	s.CLI().OK("agent", "configure", terminationAgent, "--termination-patience", clockPatience.String())
	w := here.CreateRunning("stuck-termination")
	_, err = s.Kube.CoreV1().ConfigMaps(w.Namespace).Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "held", Finalizers: []string{"example.test/held"}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)

	w.Terminate()
	stuck := w.Await("terminating because of a finalizer", func(w *statev1.Workspace) bool {
		return w.GetActualState() == statev1.ActualState_ACTUAL_STATE_TERMINATING && w.GetReason() == "FinalizersRemain"
	})
	require.Contains(t, stuck.GetMessage(), "example.test/held")
	terminationClock.Advance(clockLead)
	failed := w.AwaitError("FinalizersRemain")
	require.Contains(t, failed.GetMessage(), "the workspace has been terminating since ")
	require.Contains(t, failed.GetMessage(), "example.test/held")

	release := []byte(`{"metadata":{"finalizers":null}}`)
	_, err = s.Kube.CoreV1().ConfigMaps(w.Namespace).
		Patch(t.Context(), "held", types.MergePatchType, release, metav1.PatchOptions{})
	require.NoError(t, err)
	w.AwaitTerminated()
	require.Empty(t, w.Get().GetReason())
	w.RequireGone()
	require.Contains(t, w.Events().Until(events.ActualStateTerminated).States, events.ActualStateError)
}

package scale_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/e2e/fixture"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

// groupSize is how many workspaces change at once.
const groupSize = 210

// TestConvergence starts many workspaces on three agents. Then a third of them stop, a third restart
// and a third terminate, all at once.
func TestConvergence(t *testing.T) {
	s := shared.Exclusive(t)
	agents := []int64{s.AgentID}
	for _, name := range []string{"second", "third"} {
		agent, err := s.AddAgent(t.Context(), s.ProjectID, name, s.Kubeconfig())
		require.NoError(t, err)
		agents = append(agents, agent.ID)
	}
	begun := time.Now()
	all := newWorkspaceGroup(s, "group", groupSize, agents...)
	t.Logf("%d workspaces requested in %s", len(all), time.Since(begun).Round(time.Millisecond))
	all.await("Running", fixture.Settled(statev1.ActualState_ACTUAL_STATE_RUNNING))
	t.Logf("Running %s after the first request", time.Since(begun).Round(time.Millisecond))

	stopped, restarted, ended := all[:groupSize/3], all[groupSize/3:2*groupSize/3], all[2*groupSize/3:]
	begun = time.Now()
	ended.setDesired(t, statev1.DesiredState_DESIRED_STATE_TERMINATED)
	restarted.setDesired(t, statev1.DesiredState_DESIRED_STATE_RESTART_REQUESTED)
	stopped.setDesired(t, statev1.DesiredState_DESIRED_STATE_STOPPED)
	t.Logf("changes requested in %s", time.Since(begun).Round(time.Millisecond))
	stopped.await("Stopped", fixture.Settled(statev1.ActualState_ACTUAL_STATE_STOPPED))
	t.Logf("Stopped after %s", time.Since(begun).Round(time.Millisecond))
	restarted.await("Running again", func(now *statev1.Workspace) bool {
		return fixture.Settled(statev1.ActualState_ACTUAL_STATE_RUNNING)(now) &&
			now.GetDesiredState() == statev1.DesiredState_DESIRED_STATE_RUNNING
	})
	t.Logf("Running again after %s", time.Since(begun).Round(time.Millisecond))
	ended.await("Terminated", fixture.Settled(statev1.ActualState_ACTUAL_STATE_TERMINATED))
	t.Logf("Terminated after %s", time.Since(begun).Round(time.Millisecond))

	deployments, err := s.Kube.AppsV1().Deployments("").List(t.Context(),
		metav1.ListOptions{LabelSelector: fixture.LabelWorkspace})
	require.NoError(t, err)
	present := map[string]int32{}
	for _, d := range deployments.Items {
		present[d.Labels[fixture.LabelWorkspace]] = d.Status.Replicas
	}
	namespaces, err := s.Kube.CoreV1().Namespaces().List(t.Context(),
		metav1.ListOptions{LabelSelector: fixture.LabelWorkspace})
	require.NoError(t, err)
	require.Len(t, namespaces.Items, len(present))
	for _, w := range stopped {
		require.Contains(t, present, w.ID, w.Name)
		require.Zero(t, present[w.ID], w.Name)
	}
	for _, w := range restarted {
		require.EqualValues(t, 1, present[w.ID], w.Name)
	}
	for _, w := range ended {
		require.NotContains(t, present, w.ID, w.Name)
	}
}

package e2e_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/stack"
)

const (
	crowdSize    = 300
	troubledSize = 1000
)

// TestScale is one system with many workspaces, whose services are the programs that people run: they look for races everywhere else.
func TestScale(t *testing.T) {
	t.Parallel()
	s := startWith(t, stack.Options{Nodes: 4, Programs: buildShipped(t)}) // a node has room for 110 pods
	s.inTurn(
		promise{"a crowd over several agents converges", crowdConverges},
		promise{"a thousand in trouble delay nobody", thousandInTroubleDelayNobody},
		promise{"the history is sound", requireSoundHistory},
	)
}

// crowdConverges has many workspaces over three agents come up, and then a third of them stop, a third restart and a third end, all at once.
func crowdConverges(s *system) {
	t := s.t
	agents := []int64{s.agent}
	for _, name := range []string{"second", "third"} {
		agent, err := s.AddAgent(t.Context(), s.project, name, s.Kubeconfig())
		require.NoError(t, err)
		agents = append(agents, agent.ID)
	}
	begun := time.Now()
	all := s.newCrowd("crowd", crowdSize, agents...)
	t.Logf("%d workspaces asked for in %s", len(all), time.Since(begun).Round(time.Millisecond))
	all.until("Running", settled(statev1.ActualState_ACTUAL_STATE_RUNNING))
	t.Logf("Running %s after the first was asked for", time.Since(begun).Round(time.Millisecond))

	stopped, restarted, ended := all[:crowdSize/3], all[crowdSize/3:2*crowdSize/3], all[2*crowdSize/3:]
	begun = time.Now()
	ended.desire(t, statev1.DesiredState_DESIRED_STATE_TERMINATED)
	restarted.desire(t, statev1.DesiredState_DESIRED_STATE_RESTART_REQUESTED)
	stopped.desire(t, statev1.DesiredState_DESIRED_STATE_STOPPED)
	t.Logf("changes asked for in %s", time.Since(begun).Round(time.Millisecond))
	stopped.until("Stopped", settled(statev1.ActualState_ACTUAL_STATE_STOPPED))
	t.Logf("Stopped after %s", time.Since(begun).Round(time.Millisecond))
	restarted.until("Running again", func(now *statev1.Workspace) bool {
		return settled(statev1.ActualState_ACTUAL_STATE_RUNNING)(now) && now.GetDesiredState() == statev1.DesiredState_DESIRED_STATE_RUNNING
	})
	t.Logf("Running again after %s", time.Since(begun).Round(time.Millisecond))
	ended.until("Terminated", settled(statev1.ActualState_ACTUAL_STATE_TERMINATED))
	t.Logf("Terminated after %s", time.Since(begun).Round(time.Millisecond))

	deployments, err := s.kube.AppsV1().Deployments("").List(t.Context(), metav1.ListOptions{LabelSelector: labelWorkspace})
	require.NoError(t, err)
	present := map[string]int32{}
	for _, d := range deployments.Items {
		present[d.Labels[labelWorkspace]] = d.Status.Replicas
	}
	require.Len(t, present, len(stopped)+len(restarted))
	for _, w := range stopped {
		require.Zero(t, present[w.id], w.name)
	}
	for _, w := range restarted {
		require.EqualValues(t, 1, present[w.id], w.name)
	}
	namespaces, err := s.kube.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{LabelSelector: labelWorkspace})
	require.NoError(t, err)
	require.Len(t, namespaces.Items, len(present))
}

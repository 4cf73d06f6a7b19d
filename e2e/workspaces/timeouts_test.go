package workspaces_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/schemas/gen/events"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

// clockAgent is the name of an agent that has its own clock.
const clockAgent = "own-clock"

const (
	// clockPatience is how long the agent's cluster may take to start or stop a pod.
	clockPatience = 45 * time.Second
	// clockLead is more, and less than the state service accepts of an agent's clock.
	clockLead = 50 * time.Second
)

// TestTimeoutsUseAgentClock delays workspaces in three ways. They fail when the timeout has passed on
// the agent's clock.
func TestTimeoutsUseAgentClock(t *testing.T) {
	s := shared.Parallel(t)
	here := *s
	here.ProjectID = s.NewProject(clockAgent)
	agent, err := s.AddAgent(t.Context(), here.ProjectID, clockAgent, s.Kubeconfig())
	require.NoError(t, err)
	here.AgentID = agent.ID
	configureAgent(s, agent.ID, &statev1.AgentConfiguration{
		UnschedulablePatience: durationpb.New(clockPatience), StopPatience: durationpb.New(clockPatience),
	})

	unschedulable := here.Create("timeout-unschedulable", "registry.example/unschedulable:1")
	unschedulable.Await("without a node", func(w *statev1.Workspace) bool {
		return w.GetActualState() == statev1.ActualState_ACTUAL_STATE_STARTING
	})
	terminating, finalized := here.CreateRunning("timeout-terminating"), here.CreateRunning("timeout-finalized")
	terminatingPod, finalizedPod := terminating.Pod().Name, finalized.Pod().Name
	terminating.BreakPod("stuck-terminating")
	finalized.PatchPod(finalizedPod, map[string]any{"finalizers": []string{"example.org/unmount"}})
	terminating.Stop()
	finalized.Stop()
	terminating.AwaitStopped()
	finalized.AwaitStopped()

	agentClock.Advance(clockLead)
	require.Contains(t, unschedulable.AwaitFailed("Unschedulable").GetMessage(),
		"no node of the cluster can take the workspace")
	require.Contains(t, terminating.AwaitFailed("PodNotEnding").GetMessage(),
		"pod "+terminatingPod+" has been terminating since")
	require.Contains(t, finalized.AwaitFailed("PodNotEnding").GetMessage(),
		"pod "+finalizedPod+" has been terminating since")

	repairImage(unschedulable)
	terminating.PatchPod(terminatingPod, map[string]any{"annotations": map[string]any{fixture.FaultAnnotation: nil}})
	finalized.PatchPod(finalizedPod, map[string]any{"finalizers": nil})
	terminating.AwaitStopped()
	finalized.AwaitStopped()
	for _, w := range []*fixture.Workspace{terminating, finalized} {
		states := w.Events().Until(events.ActualStateFailed).States
		fixture.RequirePath(t, states[len(states)-2:], events.ActualStateStopped, events.ActualStateFailed)
		w.Start()
		w.AwaitRunning()
	}
}

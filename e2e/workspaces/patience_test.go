package workspaces_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/schemas/gen/events"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

// clockAgent is the name of an agent that has its own clock.
const clockAgent = "patient"

// TestPatienceUsesAgentClock holds workspaces up in three ways. They fail when the limit has passed
// on the agent's clock.
func TestPatienceUsesAgentClock(t *testing.T) {
	s := shared.Parallel(t)
	here := *s
	here.ProjectID = s.NewProject(clockAgent)
	agent, err := s.AddAgent(t.Context(), here.ProjectID, clockAgent, s.Kubeconfig())
	require.NoError(t, err)
	here.AgentID = agent.ID

	homeless := here.Create("homeless", "registry.example/unschedulable:1")
	hanging, held := here.CreateRunning("hanging"), here.CreateRunning("held")
	hangingPod, heldPod := hanging.Pod().Name, held.Pod().Name
	hanging.BreakPod("stuck-terminating")
	held.PatchPod(heldPod, map[string]any{"finalizers": []string{"example.org/unmount"}})
	hanging.Stop()
	held.Stop()
	hanging.AwaitStopped()
	held.AwaitStopped()
	homeless.Await("without a node", func(w *statev1.Workspace) bool {
		return w.GetActualState() == statev1.ActualState_ACTUAL_STATE_STARTING
	})

	agentClock.Advance(time.Hour)
	require.Contains(
		t,
		homeless.AwaitFailed("Unschedulable").GetMessage(),
		"no node of the cluster can take the workspace",
	)
	require.Contains(t, hanging.AwaitFailed("PodNotEnding").GetMessage(), "pod "+hangingPod+" has not ended since")
	require.Contains(t, held.AwaitFailed("PodNotEnding").GetMessage(), "pod "+heldPod+" has not ended since")

	repairImage(homeless)
	hanging.PatchPod(hangingPod, map[string]any{"annotations": map[string]any{fixture.FaultAnnotation: nil}})
	held.PatchPod(heldPod, map[string]any{"finalizers": nil})
	hanging.AwaitStopped()
	held.AwaitStopped()
	for _, w := range []*fixture.Workspace{hanging, held} {
		states := w.Events().Until(events.ActualStateFailed).States
		fixture.RequirePath(t, states[len(states)-2:], events.ActualStateStopped, events.ActualStateFailed)
		w.Start()
		w.AwaitRunning()
	}
}

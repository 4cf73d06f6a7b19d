package workspaces_test

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/libs/event"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/events"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/stack"
)

// TestAgentsShareCluster runs a second agent in the cluster of the first: neither touches the
// other's workspaces.
func TestAgentsShareCluster(t *testing.T) {
	s := shared.Parallel(t)

	project := s.NewProject("second")
	second, err := s.AddAgent(t.Context(), project, "second", s.Kubeconfig())
	require.NoError(t, err)
	mine := s.CreateRunning("of-the-first")
	theirs := s.CreateWith(&statev1.CreateWorkspaceRequest{
		Name:      "of-the-second",
		ProjectId: project,
		AgentId:   second.ID,
		Overrides: &statev1.WorkspaceOverrides{Image: fixture.GoodImage},
	})
	theirs.AwaitRunning()
	before := mine.PodUID()

	// A workspace name is unique in the cell until the workspace is terminated.
	namesake := &statev1.CreateWorkspaceRequest{Name: mine.Name, ProjectId: project, AgentId: second.ID}
	_, err = s.API.Workspaces.CreateWorkspace(t.Context(), connect.NewRequest(namesake))
	require.True(t, fault.Is(err, errcode.AlreadyExists), "%v", err)

	// While its dispatcher is stopped, no desired state is applied.
	require.NoError(t, s.StopService(stack.DispatcherOf(second.Name)))
	stopping := theirs.Stop()
	mine.Restart()
	mine.AwaitRestarted()
	require.NotEqual(t, before, mine.PodUID())
	untouched := theirs.Get()
	require.Equal(t, statev1.ActualState_ACTUAL_STATE_RUNNING, untouched.GetActualState())
	require.Equal(t, stopping.GetDesiredRevision()-1, untouched.GetAppliedRevision())
	require.Len(t, theirs.Pods(), 1)

	// While its watcher is stopped, no change is observed.
	require.NoError(t, s.StopService(stack.WatcherOf(second.Name)))
	require.NoError(t, s.StartService(t.Context(), stack.DispatcherOf(second.Name)))
	applied := theirs.Await("applied",
		func(now *statev1.Workspace) bool { return now.GetAppliedRevision() == stopping.GetDesiredRevision() })
	require.Equal(t, statev1.ActualState_ACTUAL_STATE_RUNNING, applied.GetActualState())
	require.NoError(t, s.StartService(t.Context(), stack.WatcherOf(second.Name)))
	theirs.AwaitStopped()

	for _, w := range []*fixture.Workspace{mine, theirs} {
		for _, family := range []string{topology.FamilyObserved, topology.FamilyApplied, topology.FamilyDesired} {
			requireOnlyOf(t, w, s.Records(family))
		}
		_, objects := w.Inventory()
		require.NotEmpty(t, objects)
		namespace := fixture.AgentNamespace(mine.AgentID + theirs.AgentID - w.AgentID)
		elsewhere, err := s.Kube.CoreV1().ConfigMaps(namespace).List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		for _, held := range elsewhere.Items {
			require.NotContains(t, held.Name, w.ID)
		}
	}
	requireOwnNamespaces(s, mine.AgentID, theirs.AgentID)
	theirs.Terminate()
	theirs.AwaitTerminated()
	theirs.RequireGone()
	again := s.CreateWith(
		&statev1.CreateWorkspaceRequest{Name: theirs.Name, Overrides: &statev1.WorkspaceOverrides{Image: fixture.GoodImage}},
	)
	again.AwaitRunning()
	require.Equal(t, mine.AgentID, again.AgentID)
}

// requireOwnNamespaces checks that every fact of an agent is about a namespace of that agent.
func requireOwnNamespaces(s *fixture.System, agents ...int64) {
	s.T.Helper()
	for _, agent := range agents {
		own := "ws-" + strconv.FormatInt(agent, 10) + "-"
		seen := 0
		for _, r := range s.Records(topology.FamilyObserved + "." + strconv.FormatInt(agent, 10)) {
			var about struct {
				Object events.ObjectMeta `json:"object"`
			}
			require.NoError(s.T, json.Unmarshal(r.Data, &about))
			if about.Object.Namespace != "" {
				require.True(s.T, strings.HasPrefix(about.Object.Namespace, own), "agent %d reports %s/%s", agent,
					about.Object.Namespace, about.Object.Name)
				seen++
			}
		}
		require.NotZero(s.T, seen)
		for _, r := range s.Records(topology.FamilyApplied + "." + strconv.FormatInt(agent, 10)) {
			var about events.Applied
			require.NoError(s.T, json.Unmarshal(r.Data, &about))
			for _, object := range about.Objects {
				require.True(s.T, strings.HasPrefix(object.Namespace+object.Name, own), "agent %d applies %v", agent, object)
			}
		}
	}
}

// requireOnlyOf checks that every record that mentions the workspace is on a subject of its agent.
func requireOnlyOf(t testing.TB, w *fixture.Workspace, all []fixture.Record) {
	t.Helper()
	seen := false
	for _, r := range all {
		if !strings.Contains(r.Subject, w.ID) && !strings.Contains(string(r.Data), w.ID) {
			continue
		}
		seen = true
		parsed, err := topology.Parse(r.Subject)
		require.NoError(t, err)
		require.Equal(t, strconv.FormatInt(w.AgentID, 10), parsed.Tokens[0], r.Subject)
		if parsed.Family == topology.FamilyObserved {
			e, err := event.Decode(r.Header, r.Data)
			require.NoError(t, err)
			if e.Type() == events.TypeObservedWorkload {
				require.Equal(t, w.Namespace, fixture.Decode[events.ObservedWorkload](t, e).Object.Namespace)
			}
		}
	}
	require.True(t, seen, "workspace %s is on no subject", w.Name)
}

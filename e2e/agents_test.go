package e2e_test

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/events"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/stack"
)

// agentsOfOneClusterKeepToTheirOwn has a second agent beside the first, which works for the other tests meanwhile.
func agentsOfOneClusterKeepToTheirOwn(s *system) {
	t := s.t
	project := s.newProject("second")
	second, err := s.AddAgent(t.Context(), project, "second", s.Kubeconfig())
	require.NoError(t, err)
	mine := s.createRunning("of-the-first")
	theirs := s.createAs(&statev1.CreateWorkspaceRequest{
		Name: "of-the-second", ProjectId: project, AgentId: second.ID, Overrides: &statev1.WorkspaceOverrides{Image: goodImage},
	})
	theirs.untilRunning()
	before := mine.podUID()

	// A name is one workspace's in the whole cell, until it ends.
	namesake := &statev1.CreateWorkspaceRequest{Name: mine.name, ProjectId: project, AgentId: second.ID}
	_, err = s.api.Workspaces.CreateWorkspace(t.Context(), connect.NewRequest(namesake))
	require.True(t, fault.Is(err, errcode.AlreadyExists), "%v", err)

	// Without its own dispatcher nobody applies what is desired of it.
	require.NoError(t, s.StopService(stack.DispatcherOf(second.Name)))
	stopping := theirs.stop()
	mine.restart()
	mine.untilRestarted()
	require.NotEqual(t, before, mine.podUID())
	untouched := theirs.get()
	require.Equal(t, statev1.ActualState_ACTUAL_STATE_RUNNING, untouched.GetActualState())
	require.Equal(t, stopping.GetDesiredRevision()-1, untouched.GetAppliedRevision())
	require.Len(t, theirs.pods(), 1)

	// Without its own watcher nobody observes it.
	require.NoError(t, s.StopService(stack.WatcherOf(second.Name)))
	require.NoError(t, s.StartService(t.Context(), stack.DispatcherOf(second.Name)))
	applied := theirs.until("applied", func(now *statev1.Workspace) bool { return now.GetAppliedRevision() == stopping.GetDesiredRevision() })
	require.Equal(t, statev1.ActualState_ACTUAL_STATE_RUNNING, applied.GetActualState())
	require.NoError(t, s.StartService(t.Context(), stack.WatcherOf(second.Name)))
	theirs.untilStopped()

	for _, w := range []*workspace{mine, theirs} {
		for _, family := range []string{topology.FamilyObserved, topology.FamilyApplied, topology.FamilyDesired} {
			requireOnlyOf(t, w, s.records(family))
		}
		_, objects := w.inventory()
		require.NotEmpty(t, objects)
		elsewhere, err := s.kube.CoreV1().ConfigMaps(home(mine.agent+theirs.agent-w.agent)).List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		for _, held := range elsewhere.Items {
			require.NotContains(t, held.Name, w.id)
		}
	}
	s.requireOwnNamespaces(mine.agent, theirs.agent)
	theirs.terminate()
	theirs.untilTerminated()
	theirs.requireGone()
	again := s.createAs(&statev1.CreateWorkspaceRequest{Name: theirs.name, Overrides: &statev1.WorkspaceOverrides{Image: goodImage}})
	again.untilRunning()
	require.Equal(t, mine.agent, again.agent)
}

// requireOwnNamespaces checks that all that was told in the agents' names is about namespaces of their own, whoever's workspaces are in them.
func (s *system) requireOwnNamespaces(agents ...int64) {
	s.t.Helper()
	for _, agent := range agents {
		own := "ws-" + strconv.FormatInt(agent, 10) + "-"
		told := 0
		for _, r := range s.records(topology.FamilyObserved + "." + strconv.FormatInt(agent, 10)) {
			var about struct {
				Object events.ObjectMeta `json:"object"`
			}
			require.NoError(s.t, json.Unmarshal(r.data, &about))
			if about.Object.Namespace != "" {
				require.True(s.t, strings.HasPrefix(about.Object.Namespace, own), "agent %d tells of %s/%s", agent, about.Object.Namespace, about.Object.Name)
				told++
			}
		}
		require.NotZero(s.t, told)
		for _, r := range s.records(topology.FamilyApplied + "." + strconv.FormatInt(agent, 10)) {
			var about events.Applied
			require.NoError(s.t, json.Unmarshal(r.data, &about))
			for _, object := range about.Objects {
				require.True(s.t, strings.HasPrefix(object.Namespace+object.Name, own), "agent %d applies %v", agent, object)
			}
		}
	}
}

// requireOnlyOf checks that whatever names the workspace is on a subject of its agent.
func requireOnlyOf(t *testing.T, w *workspace, all []record) {
	t.Helper()
	seen := false
	for _, r := range all {
		if !strings.Contains(r.subject, w.id) && !strings.Contains(string(r.data), w.id) {
			continue
		}
		seen = true
		parsed, err := topology.Parse(r.subject)
		require.NoError(t, err)
		require.Equal(t, strconv.FormatInt(w.agent, 10), parsed.Tokens[0], r.subject)
		if parsed.Family == topology.FamilyObserved {
			e, err := event.Decode(r.header, r.data)
			require.NoError(t, err)
			if e.Type() == events.TypeObservedDeployment {
				require.Equal(t, w.namespace, decode[events.ObservedDeployment](t, e).Object.Namespace)
			}
		}
	}
	require.True(t, seen, "workspace %s is on no subject", w.name)
}

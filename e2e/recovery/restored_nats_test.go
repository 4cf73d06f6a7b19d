package recovery_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/fixture"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/stack"
)

// TestRestoredNATS restores an older copy of the NATS store: newer desired states are missing,
// terminated workspaces are back, a newer agent is unknown.
func TestRestoredNATS(t *testing.T) {
	t.Parallel()
	s := fixture.Start(t, fixture.ShortLeases)
	kept, changed, stopped, leaving := s.CreateRunning(
		"kept",
	), s.CreateRunning(
		"changed",
	), s.CreateRunning(
		"stopped",
	), s.CreateRunning(
		"leaves",
	)
	s.RequireConverged()
	copied := filepath.Join(t.TempDir(), "copy")
	require.NoError(t, s.NATS().Snapshot(copied))

	leaving.Terminate()
	stopped.Stop()
	changed.Update(&statev1.WorkspaceOverrides{Image: fixture.OtherGoodImage})
	created := s.CreateRunning("created-after-the-copy")
	project := s.NewProject("late")
	late, err := s.AddAgent(t.Context(), project, "late", s.Kubeconfig())
	require.NoError(t, err)
	foreign := s.CreateWith(&statev1.CreateWorkspaceRequest{
		Name:      "of-an-agent-after-the-copy",
		ProjectId: project,
		AgentId:   late.ID,
		Overrides: &statev1.WorkspaceOverrides{Image: fixture.GoodImage},
	})
	foreign.AwaitRunning()
	leaving.AwaitTerminated()
	stopped.AwaitStopped()
	changed.AwaitRunning()
	s.RequireConverged()
	pods := map[*fixture.Workspace]any{
		kept:    kept.PodUID(),
		changed: changed.PodUID(),
		created: created.PodUID(),
		foreign: foreign.PodUID(),
	}

	require.NoError(t, s.NATS().Restore(copied))
	s.RequireConverged()
	// A service that restarts trusts what it reads.
	for _, service := range []string{
		s.DispatcherName(), s.WatcherName(), stack.DispatcherOf(late.Name), stack.WatcherOf(late.Name), stack.State,
	} {
		require.NoError(t, s.Restart(t.Context(), service))
	}
	s.RequireConverged()
	leaving.RequireGone()
	for w, pod := range pods {
		require.Equal(t, pod, w.PodUID(), "%s runs on", w.Name)
	}

	kept.Restart()
	stopped.Start()
	foreign.Stop()
	created.Terminate()
	changed.Update(&statev1.WorkspaceOverrides{Image: fixture.GoodImage})
	kept.AwaitRestarted()
	stopped.AwaitRunning()
	foreign.AwaitStopped()
	created.AwaitTerminated()
	created.RequireGone()
	changed.AwaitRunning()
	s.RequireConverged()
	fixture.RequireConsistentEvents(s)
}

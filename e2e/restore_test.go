package e2e_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/stack"
)

// TestRestoredNATS has NATS come back with an older copy of its store: what is wanted is not in it, what was terminated is there again, an agent is not known.
func TestRestoredNATS(t *testing.T) {
	t.Parallel()
	s := start(t, quickLeases)
	kept, changed, stopped, leaving := s.createRunning("kept"), s.createRunning("changed"), s.createRunning("stopped"), s.createRunning("leaves")
	s.requireConverged()
	copied := filepath.Join(t.TempDir(), "copy")
	require.NoError(t, s.NATS().Snapshot(copied))

	leaving.terminate()
	stopped.stop()
	changed.update(&statev1.WorkspaceOverrides{Image: otherGoodImage})
	born := s.createRunning("born-after-the-copy")
	project := s.newProject("late")
	late, err := s.AddAgent(t.Context(), project, "late", s.Kubeconfig())
	require.NoError(t, err)
	foreign := s.createAs(&statev1.CreateWorkspaceRequest{
		Name: "of-an-agent-after-the-copy", ProjectId: project, AgentId: late.ID, Overrides: &statev1.WorkspaceOverrides{Image: goodImage},
	})
	foreign.untilRunning()
	leaving.untilTerminated()
	stopped.untilStopped()
	changed.untilRunning()
	s.requireConverged()
	pods := map[*workspace]any{kept: kept.podUID(), changed: changed.podUID(), born: born.podUID(), foreign: foreign.podUID()}

	require.NoError(t, s.NATS().Restore(copied))
	s.requireConverged()
	// Whoever begins anew believes what it reads.
	for _, service := range []string{s.dispatcher(), s.watcher(), stack.DispatcherOf(late.Name), stack.WatcherOf(late.Name), stack.State} {
		require.NoError(t, s.Restart(t.Context(), service))
	}
	s.requireConverged()
	leaving.requireGone()
	for w, pod := range pods {
		require.Equal(t, pod, w.podUID(), "%s runs on", w.name)
	}

	kept.restart()
	stopped.start()
	foreign.stop()
	born.terminate()
	changed.update(&statev1.WorkspaceOverrides{Image: goodImage})
	kept.untilRestarted()
	stopped.untilRunning()
	foreign.untilStopped()
	born.untilTerminated()
	born.requireGone()
	changed.untilRunning()
	s.requireConverged()
	requireSoundEvents(s)
}

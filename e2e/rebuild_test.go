package e2e_test

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

// rebuild runs lockstep rebuild, which ends with the exit code.
func (c commandLine) rebuild(want int, args ...string) *statev1.RebuildOutcome {
	c.t.Helper()
	code, stdout, stderr := c.run(append([]string{"rebuild", "-o", "json"}, args...)...)
	require.Equal(c.t, want, code, "%s\n%s", stdout, stderr)
	return printed(c.t, stdout, &statev1.RebuildOutcome{})
}

// identical checks that what is stored is what the streams say.
func (c commandLine) identical() {
	c.t.Helper()
	outcome := c.rebuild(0, "--check")
	require.Empty(c.t, outcome.GetDifferences())
	require.False(c.t, outcome.GetReplaced())
	for _, table := range outcome.GetTables() {
		require.Zero(c.t, table.GetDifferent(), table.GetName())
	}
}

// TestRebuild is one system with a lively history, of which what is derived is made anew.
func TestRebuild(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	cli := s.commandLine()
	w := s.createRunning("lively")
	gone := s.createRunning("gone")
	failing := s.create("failing", missingImage)
	squatted := s.squatted("squatted")
	w.restart()
	w.untilRestarted()
	gone.terminate()
	cli.identical() // in the middle of it
	failing.untilFailed("ErrImagePull")
	squatted.untilError("Conflict")
	w.deleteDeployment()
	require.NoError(t, s.Restart(t.Context(), s.watcher()))
	gone.untilTerminated()
	w.untilRunning()
	failing.mend()
	stopped := s.createRunning("stopped")
	stopped.stop()
	stopped.untilStopped()
	cli.identical()

	// Rows are spoilt by hand.
	conn, err := pgx.Connect(t.Context(), s.Database().URL())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	_, err = conn.Exec(t.Context(), `set search_path = state`)
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), `update workspaces set actual_state = 'failed', reason = 'Spoilt' where id = $1`, stopped.id)
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), `delete from observed_objects where kind = 'pod'`)
	require.NoError(t, err)
	require.Equal(t, "Spoilt", stopped.get().GetReason())
	found := cli.rebuild(8, "--check")
	require.NotEmpty(t, found.GetDifferences())
	require.Contains(t, cli.fails8("rebuild", "--check"), `workspaces `+stopped.id+`: actual_state is "failed", by the streams "stopped"; reason is "Spoilt", by the streams ""`)
	require.Equal(t, "Spoilt", stopped.get().GetReason(), "nothing is changed by a check")

	// Users go on while all is made anew.
	changing := make(chan error, 1)
	go func() {
		_, err := w.tryDesire(statev1.DesiredState_DESIRED_STATE_STOPPED)
		changing <- err
	}()
	mended := cli.rebuild(0)
	require.True(t, mended.GetReplaced())
	require.NotEmpty(t, mended.GetDifferences())
	require.NoError(t, errors.Join(<-changing))
	now := stopped.get()
	require.Equal(t, statev1.ActualState_ACTUAL_STATE_STOPPED, now.GetActualState())
	require.Empty(t, now.GetReason())
	cli.identical()

	// And the system goes on.
	w.untilStopped()
	require.Equal(t, statev1.DesiredState_DESIRED_STATE_RUNNING, w.start().GetDesiredState())
	w.untilRunning()
	stopped.start()
	stopped.untilRunning()
	squatted.terminate()
	squatted.untilTerminated()
	cli.identical()
	require.Contains(t, cli.with("LOCKSTEP_TOKEN="+s.reader()).fails(4, "rebuild", "--check"), "is no administrator of this cell")
	requireSoundHistory(s)
}

// fails8 runs a command that finds what it was to look for, and gives what it prints.
func (c commandLine) fails8(args ...string) string {
	c.t.Helper()
	code, stdout, stderr := c.run(args...)
	require.Equal(c.t, 8, code, stderr)
	return stdout
}

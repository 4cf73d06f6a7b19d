package workspaces_test

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/fixture"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

// rebuild runs lockstep rebuild and expects the exit code.
func rebuild(c fixture.CLI, want int, args ...string) *statev1.RebuildOutcome {
	c.T.Helper()
	code, stdout, stderr := c.Run(append([]string{"rebuild", "-o", "json"}, args...)...)
	require.Equal(c.T, want, code, "%s\n%s", stdout, stderr)
	return fixture.ParseOutput(c.T, stdout, &statev1.RebuildOutcome{})
}

// requireIdentical checks that the tables equal what the streams give.
func requireIdentical(c fixture.CLI) {
	c.T.Helper()
	outcome := rebuild(c, 0, "--check")
	require.Empty(c.T, outcome.GetDifferences())
	require.False(c.T, outcome.GetReplaced())
	for _, table := range outcome.GetTables() {
		require.Zero(c.T, table.GetDifferent(), table.GetName())
	}
}

// TestRebuild corrupts derived tables and rebuilds them from the streams while users make changes.
func TestRebuild(t *testing.T) {
	s := shared.Exclusive(t)
	cli := s.CLI()
	w := s.CreateRunning("rebuilt-running")
	gone := s.CreateRunning("rebuilt-gone")
	failing := s.Create("rebuilt-failing", fixture.MissingImage)
	blocked := createInTakenNamespace(s, "rebuilt-refused")
	w.Restart()
	w.AwaitRestarted()
	gone.Terminate()
	requireIdentical(cli) // in the middle of it
	failing.AwaitFailed("ErrImagePull")
	blocked.AwaitError("Conflict")
	w.DeleteDeployment()
	require.NoError(t, s.Restart(t.Context(), s.WatcherName()))
	gone.AwaitTerminated()
	w.AwaitRunning()
	repairImage(failing)
	stopped := s.CreateRunning("rebuilt-stopped")
	stopped.Stop()
	stopped.AwaitStopped()
	requireIdentical(cli)

	// Corrupt some rows, which no observation corrects meanwhile.
	require.NoError(t, s.StopService(s.WatcherName()))
	s.AwaitIngested()
	conn, err := pgx.Connect(t.Context(), s.Database().URL())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	_, err = conn.Exec(t.Context(), `set search_path = state`)
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), `update workspaces set actual_state = 'failed', reason = 'Spoilt' where id = $1`,
		stopped.ID)
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), `delete from observed_objects where kind = 'pod'`)
	require.NoError(t, err)
	require.Equal(t, "Spoilt", stopped.Get().GetReason())
	found := rebuild(cli, 8, "--check")
	require.NotEmpty(t, found.GetDifferences())
	require.Contains(
		t,
		findsDifferences(cli, "rebuild", "--check"),
		`workspaces `+stopped.ID+`: actual_state is "failed", `+
			`the streams give "stopped"; reason is "Spoilt", the streams give ""`,
	)
	require.Equal(t, "Spoilt", stopped.Get().GetReason(), "nothing is changed by a check")

	// A user makes a change during the rebuild.
	changing := make(chan error, 1)
	go func() {
		_, err := w.TrySetDesired(statev1.DesiredState_DESIRED_STATE_STOPPED)
		changing <- err
	}()
	fixed := rebuild(cli, 0)
	require.True(t, fixed.GetReplaced())
	require.NotEmpty(t, fixed.GetDifferences())
	require.NoError(t, errors.Join(<-changing))
	now := stopped.Get()
	require.Equal(t, statev1.ActualState_ACTUAL_STATE_STOPPED, now.GetActualState())
	require.Empty(t, now.GetReason())
	requireIdentical(cli)
	require.NoError(t, s.StartService(t.Context(), s.WatcherName()))

	// The system still works.
	w.AwaitStopped()
	require.Equal(t, statev1.DesiredState_DESIRED_STATE_RUNNING, w.Start().GetDesiredState())
	w.AwaitRunning()
	stopped.Start()
	stopped.AwaitRunning()
	blocked.Terminate()
	blocked.AwaitTerminated()
	requireIdentical(cli)
	reader := s.NewUser("reader", s.ProjectID, statev1.Role_ROLE_READER)
	require.Contains(t, cli.With("LOCKSTEP_TOKEN="+reader.Token).Fails(4, "rebuild", "--check"),
		"is not an administrator of this cell")
}

// findsDifferences runs a command that exits with code 8 and returns its output.
func findsDifferences(c fixture.CLI, args ...string) string {
	c.T.Helper()
	code, stdout, stderr := c.Run(args...)
	require.Equal(c.T, 8, code, stderr)
	return stdout
}

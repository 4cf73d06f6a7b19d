package pg

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseMajor(t *testing.T) {
	t.Parallel()
	for printed, want := range map[string]int{
		"postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n": 15,
		"postgres (PostgreSQL) 17.2\n":                           17,
		"postgres (PostgreSQL) 18beta1\n":                        18,
		"postgres (PostgreSQL) 16":                               16,
	} {
		got, err := parseMajor(printed)
		require.NoError(t, err, printed)
		require.Equal(t, want, got, printed)
	}
	for _, printed := range []string{"", "postgres", "postgres (PostgreSQL) devel"} {
		_, err := parseMajor(printed)
		require.Error(t, err, printed)
	}
}

func TestPIDFileReady(t *testing.T) {
	t.Parallel()
	ready := "42\n/data\n1700000000\n5432\n/tmp\n127.0.0.1\n  1234 5\nready   \n"
	require.True(t, pidFileReady(ready, 42))
	require.False(t, pidFileReady(ready, 43), "written by another run")
	require.False(t, pidFileReady("42\n/data\n1700000000\n5432\n/tmp\n127.0.0.1\n  1234 5\nstarting\n", 42))
	require.False(t, pidFileReady("42\n/data\n", 42), "partial")
}

func TestProgramWithTheNumberOfAnEndedServerIsLeftAlone(t *testing.T) {
	t.Parallel()
	data, err := os.MkdirTemp("", "testkit-data-") //nolint:usetesting // t.TempDir closes its parents to others
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(data)) })
	server, err := Start(t.Context(), Options{Data: data})
	require.NoError(t, err)
	require.NoError(t, server.Stop(t.Context()))

	other := exec.CommandContext(t.Context(), "sleep", "600")
	server.cluster.account.apply(other, "/")
	require.NoError(t, other.Start())
	ended := make(chan error, 1)
	go func() { ended <- other.Wait() }()
	left := fmt.Sprintf("%d\n%s\n1700000000\n5432\n/tmp\n127.0.0.1\n\nready\n", other.Process.Pid, server.cluster.data())
	require.NoError(t, os.WriteFile(filepath.Join(server.cluster.data(), "postmaster.pid"), []byte(left), 0o600))
	again, err := Start(t.Context(), Options{Data: data})
	require.NoError(t, err)
	require.NoError(t, again.Stop(t.Context()))
	select {
	case err := <-ended:
		require.NoError(t, err, "it was stopped")
	default:
		require.NoError(t, other.Process.Kill())
		<-ended
	}
}

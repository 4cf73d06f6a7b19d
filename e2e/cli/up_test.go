package cli_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/tools/client"
	"lockstep.internal/tools/testkit/lab"
)

// TestUpDemoLeavesNothingBehind starts everything with one command and ends it with Ctrl-C.
func TestUpDemoLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "up-") //nolint:usetesting // the paths of t.TempDir are too long for sockets
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o711)) // PostgreSQL may run as another user
	kubelab, err := lab.Binary(t.Context(), lab.Options{Progress: t.Output()})
	require.NoError(t, err)
	cli := fixture.NewCLI(t).With("TMPDIR="+dir, lab.BinaryVariable+"="+kubelab, "DATABASE_URL=")
	kubeconfig := dir + "/not-mine"
	demo := cli.With("KUBECONFIG="+kubeconfig).Start("up", "--demo")
	demo.AwaitLine("✓", "agent")
	demo.AwaitLine(`Creating workspace "hello"`)
	demo.AwaitLine("hello", "Running")
	demo.AwaitLine("Lockstep is running")
	export := demo.AwaitLine("export " + client.Variable)
	demo.AwaitLine("Ctrl-C stops everything")

	_, file, _ := strings.Cut(export, client.Variable+"=")
	user := cli.With(client.Variable + "=" + file)
	require.Regexp(t, `(?m)^hello +Running`, user.OK("ws", "list"))
	require.Contains(t, user.OK("replay", "observed.>"), "hello")

	children := descendants(t, demo.Cmd.Process.Pid)
	require.GreaterOrEqual(t, len(children), 2, "PostgreSQL and the Kubernetes control plane are processes of their own")
	require.Zero(t, demo.Interrupt())
	fixture.AwaitCluster(t, "its processes are gone", func(context.Context) (bool, error) {
		for _, pid := range children {
			if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
				return false, nil
			}
		}
		return true, nil
	})
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left, "nothing is left in the folder of temporary files")
}

// descendants returns the processes below a process.
func descendants(t testing.TB, pid int) []int {
	t.Helper()
	out, err := exec.Command("ps", "-A", "-o", "pid=,ppid=").Output()
	require.NoError(t, err)
	children := map[int][]int{}
	for line := range bytes.Lines(out) {
		fields := strings.Fields(string(line))
		child, err := strconv.Atoi(fields[0])
		require.NoError(t, err)
		parent, err := strconv.Atoi(fields[1])
		require.NoError(t, err)
		children[parent] = append(children[parent], child)
	}
	found := append([]int(nil), children[pid]...)
	for i := 0; i < len(found); i++ {
		found = append(found, children[found[i]]...)
	}
	return found
}

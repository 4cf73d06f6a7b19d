package e2e_test

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

	"lockstep.internal/tools/client"
	"lockstep.internal/tools/testkit/lab"
)

// TestUpDemoRunsAndLeavesNothing is what a newcomer sees first: everything starts with one command and ends with Ctrl-C.
func TestUpDemoRunsAndLeavesNothing(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "up-") //nolint:usetesting // the paths of t.TempDir are too long for sockets
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o711)) // PostgreSQL may run as another user
	kubelab, err := lab.Binary(t.Context(), lab.Options{Progress: t.Output()})
	require.NoError(t, err)
	cli := newCommandLine(t).with("TMPDIR="+dir, lab.BinaryVariable+"="+kubelab, "DATABASE_URL=")
	kubeconfig := dir + "/not-mine"
	demo := cli.with("KUBECONFIG="+kubeconfig).begin("up", "--demo")
	demo.line("✓", "agent")
	demo.line(`Creating the workspace "hello"`)
	demo.line("hello", "Running")
	demo.line("Lockstep is running")
	export := demo.line("export " + client.Variable)
	demo.line("Ctrl-C stops everything")

	_, file, _ := strings.Cut(export, client.Variable+"=")
	user := cli.with(client.Variable + "=" + file)
	require.Regexp(t, `(?m)^hello +Running`, user.ok("ws", "list"))
	require.Contains(t, user.ok("replay", "observed.>"), "hello")

	children := descendants(t, demo.cmd.Process.Pid)
	require.GreaterOrEqual(t, len(children), 2, "PostgreSQL and the Kubernetes control plane are processes of their own")
	require.Zero(t, demo.interrupt())
	awaitCluster(t, "its processes are gone", func(context.Context) (bool, error) {
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

// descendants are the processes that a process started, and those that these started.
func descendants(t *testing.T, pid int) []int {
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

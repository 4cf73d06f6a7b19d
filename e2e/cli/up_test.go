package cli_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/fixture"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
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
	_, cluster, _ := strings.Cut(demo.AwaitLine("create deployment web"), "--kubeconfig ")
	cluster, _, _ = strings.Cut(cluster, " ")
	demo.AwaitLine("gitlab-runner register", "--url http://127.0.0.1:", "--token glrt-")
	demo.AwaitLine("Ctrl-C stops everything")

	_, file, _ := strings.Cut(export, client.Variable+"=")
	user := cli.With(client.Variable + "=" + file)
	require.Regexp(t, `(?m)^hello +Running`, user.OK("ws", "list"))
	require.Contains(t, user.OK("replay", "observed.>"), "hello")

	requireFirstHour(t, user.With("KUBECONFIG="+cluster), kubelab)

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

// TestUpStartsAgainWithTheSameDataAndPorts starts a system again after it was killed, and whatever happened in it.
func TestUpStartsAgainWithTheSameDataAndPorts(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "up-") //nolint:usetesting // the paths of t.TempDir are too long for sockets
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o711)) // PostgreSQL may run as another user
	kubelab, err := lab.Binary(t.Context(), lab.Options{Progress: t.Output()})
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(dir+"/bin", 0o700))
	require.NoError(t, os.Symlink(kubelab, dir+"/bin/kubelab"))
	data := dir + "/data"
	// Outside of the repository, with kubelab in PATH and without kubectl.
	cli := fixture.NewCLI(t).InDir(dir).With("TMPDIR="+dir, "PATH="+dir+"/bin", "DATABASE_URL=")
	user := cli.With(client.Variable + "=" + data + "/client.yaml")
	up := []string{"up", "--data", data, "--demo", "--workloads=false"}

	first := cli.Start(up...)
	first.AwaitLine("hello", "Running")
	first.AwaitLine("export " + client.Variable)
	first.AwaitLine("./bin/kubelab kubectl --kubeconfig", "# through the relay")
	first.AwaitLine("Ctrl-C stops everything")
	requireTargetAnswers(t, user, "local")
	code, _, message := cli.Run(up...)
	require.Equal(t, 8, code)
	require.Contains(t, message, "is in use by another system: stop it, or choose another folder")
	before := readFile(t, data+"/client.yaml")

	user.OK("project", "create", "acme/platform/web")
	user.OK("ws", "stop", "hello")
	user.OK("agent", "revoke", "local")
	user.OK("token", "revoke", bootstrapToken(t, user))
	require.NoError(t, os.WriteFile(data+"/notes.txt", []byte("mine"), 0o600))
	require.NoError(t, first.Cmd.Process.Kill())
	_ = first.Cmd.Wait()

	code, _, message = cli.Run(up...)
	require.Equal(t, 3, code)
	token := data + "/keys/admin.token"
	require.Equal(t, "the program git was not found: workspace \"hello\" has no project\n"+
		"lockstep: the administrator's token in "+token+" was revoked: remove this file, and the next start creates "+
		"another token\n", message)
	require.NoError(t, os.Remove(token))

	second := cli.Start(up...)
	second.AwaitLine("✓", "local-2")
	second.AwaitLine(`workspace "hello" exists from an earlier run`)
	second.AwaitLine("Ctrl-C stops everything")
	require.Equal(t, before, readFile(t, data+"/client.yaml"), "the same addresses")
	requireTargetAnswers(t, user, "local-2")
	require.Zero(t, second.Interrupt())

	taken, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, taken.Close()) })
	code, _, message = cli.Run("up", "--data", data, "--api-listen", taken.Addr().String())
	require.Equal(t, 2, code)
	require.Regexp(t, `port \d+ of state is used by another program: stop it, or choose another port`, message)
}

// requireTargetAnswers requests the target of the demo through the relay.
func requireTargetAnswers(t *testing.T, user fixture.CLI, agent string) {
	t.Helper()
	forward := user.Start("relay", "forward", agent, "hello")
	address, _, _ := strings.Cut(forward.AwaitLine("forwards to hello"), " ")
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address, nil)
	require.NoError(t, err)
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	body, err := io.ReadAll(response.Body)
	require.NoError(t, errors.Join(err, response.Body.Close()))
	require.Contains(t, string(body), "Hello")
	require.Zero(t, forward.Interrupt())
}

// bootstrapToken returns the id of the token that a start creates.
func bootstrapToken(t *testing.T, user fixture.CLI) string {
	t.Helper()
	tokens := fixture.ParseOutput(t, user.OK("token", "list", "-o", "json"), &statev1.ListTokensResponse{}).GetTokens()
	require.Len(t, tokens, 1)
	return strconv.FormatInt(tokens[0].GetId(), 10)
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(content)
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

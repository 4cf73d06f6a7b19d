package relay_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/e2e/fixture"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/testkit/lab"
)

// kubectl is the real program with the kubeconfig that the CLI wrote. Its streams use WebSocket or
// SPDY.
type kubectl struct{ fixture.CLI }

func newKubectl(c fixture.CLI, agent string, webSockets bool) kubectl {
	c.T.Helper()
	file := filepath.Join(c.T.TempDir(), "kubeconfig")
	c.OK("kube-config", agent, "--file", file)
	program, err := lab.Binary(c.T.Context(), lab.Options{Progress: c.T.Output()})
	require.NoError(c.T, err)
	c.Path = program
	carried := "false"
	if webSockets {
		carried = "true"
	}
	return kubectl{
		c.With("KUBECONFIG="+file, "KUBECTL_REMOTE_COMMAND_WEBSOCKETS="+carried, "KUBECTL_PORT_FORWARD_WEBSOCKETS="+carried),
	}
}

func (k kubectl) output(args ...string) string { return k.OK(append([]string{"kubectl"}, args...)...) }

func (k kubectl) start(args ...string) *fixture.Process {
	return k.Start(append([]string{"kubectl"}, args...)...)
}

// TestKubectl reads, watches, follows logs, executes, attaches and forwards ports. Beyond the API
// server, kubelab's simulated kubelets answer.
func TestKubectl(t *testing.T) {
	s := shared.Parallel(t)
	ctx := t.Context()
	_, cli := member(s, "kubectl-developer", s.ProjectID, statev1.Role_ROLE_DEVELOPER)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "echo", Namespace: "default"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "nginx:1"}}},
	}
	_, err := s.Kube.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{})
	require.NoError(t, err)
	fixture.AwaitCluster(t, "the pod runs", func(ctx context.Context) (bool, error) {
		found, err := s.Kube.CoreV1().Pods("default").Get(ctx, pod.Name, metav1.GetOptions{})
		return err == nil && found.Status.Phase == corev1.PodRunning, err
	})
	client := throughRelay(cli, "local")
	fixture.AwaitCluster(t, "the developer may list", func(ctx context.Context) (bool, error) {
		_, err := client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
		return err == nil, nil
	})
	much := make([]byte, 4<<20)
	_, _ = rand.Read(much)
	for name, webSockets := range map[string]bool{"WebSocket": true, "SPDY": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newKubectl(cli.In(t), "local", webSockets)
			require.Contains(t, k.output("get", "pods"), "echo")
			watching := k.start("get", "pods", "--watch", "--output-watch-events")
			watching.AwaitLine("ADDED", "echo")
			logs := k.start("logs", "--follow", "echo")
			logs.AwaitLine("simulated container c of pod default/echo")
			logs.AwaitLine("line 2")

			answered := kubectl{k.WithInput(string(much))}.output("exec", "-i", "echo", "--", "cat")
			require.True(t, bytes.Equal(append([]byte("cat\n"), much...), []byte(answered)), "%d bytes came back", len(answered))
			code, _, _ := k.Run("kubectl", "exec", "echo", "--", "exit", "3")
			require.Equal(t, 3, code)
			require.Equal(t, "hello\n", kubectl{k.WithInput("hello\n")}.output("attach", "-i", "echo"))

			_, rest, found := strings.Cut(
				k.start("port-forward", "--address=127.0.0.1", "echo", ":80").AwaitLine("Forwarding from"),
				"Forwarding from ",
			)
			require.True(t, found)
			address, _, _ := strings.Cut(rest, " -> ")
			for range 2 { // a connection that ends leaves the port open for others
				echoed(t, address, much[:1<<20])
			}
		})
	}
}

func TestReaderAsksWithKubectlWhatItMayDo(t *testing.T) {
	s := shared.Parallel(t)
	id, cli := member(s, "kubectl-reader", s.ProjectID, statev1.Role_ROLE_READER)
	k := newKubectl(cli, "local", true)
	fixture.AwaitCluster(t, "the relay knows the reader", func(context.Context) (bool, error) {
		_, out, _ := k.Run("kubectl", "auth", "whoami")
		return strings.Contains(out, fmt.Sprintf("lockstep:user:%d", id)), nil
	})
	require.Equal(t, "yes\n", k.output("auth", "can-i", "list", "pods"))
	code, out, _ := k.Run("kubectl", "auth", "can-i", "list", "secrets")
	require.Equal(t, 1, code)
	require.Equal(t, "no\n", out)
	require.Contains(t, k.output("auth", "can-i", "--list"), "selfsubjectreviews")
}

func TestKubectlShowsThatAnAgentIsAbsent(t *testing.T) {
	s := shared.Parallel(t)
	project := s.NewProject("absent")
	absent := fixture.ParseOutput(t, s.CLI().OK("agent", "register", "absent", "--project",
		strconv.FormatInt(project, 10), "--credentials", filepath.Join(t.TempDir(), "credentials.json"), "-o", "json"),
		&statev1.Agent{})
	_, cli := member(s, "absent-reader", project, statev1.Role_ROLE_READER)
	k := newKubectl(cli, "absent", true)
	fixture.AwaitCluster(t, "the relay knows the reader", func(context.Context) (bool, error) {
		code, _, _ := cli.Run("relay", "agents", "absent")
		return code == 0, nil
	})
	reason := fmt.Sprintf(`agent "absent" (%d) is not connected; the request waited for `, absent.GetId())
	_, _, stderr := k.Run("kubectl", "version", "--request-timeout=20s") // asks one thing, of discovery
	require.Contains(t, stderr, "Warning: "+reason)
	_, _, stderr = k.Run("kubectl", "get", "--raw", "/api/v1/pods?timeout=2s")
	require.Contains(t, stderr, "Error from server (ServiceUnavailable): "+reason)
}

// echoed sends data to an address that echoes and reads it back.
func echoed(t testing.TB, address string, data []byte) {
	t.Helper()
	var dialer net.Dialer
	conn, err := dialer.DialContext(t.Context(), "tcp", address)
	require.NoError(t, err)
	defer conn.Close()
	sent := make(chan error, 1)
	go func() {
		_, err := conn.Write(data)
		sent <- err
	}()
	back := make([]byte, len(data))
	_, err = io.ReadFull(conn, back)
	require.NoError(t, err)
	require.NoError(t, <-sent)
	require.True(t, bytes.Equal(data, back))
}

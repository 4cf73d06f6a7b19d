package e2e_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/testkit/lab"
)

// kubectl is a plain one, with the kubeconfig that the command line wrote. webSockets says what carries its streams; else it is SPDY.
type kubectl struct{ commandLine }

func (c commandLine) kubectl(agent string, webSockets bool) kubectl {
	c.t.Helper()
	file := filepath.Join(c.t.TempDir(), "kubeconfig")
	c.ok("kube-config", agent, "--file", file)
	program, err := lab.Binary(c.t.Context(), lab.Options{Progress: c.t.Output()})
	require.NoError(c.t, err)
	c.path = program
	carried := "false"
	if webSockets {
		carried = "true"
	}
	return kubectl{c.with("KUBECONFIG="+file, "KUBECTL_REMOTE_COMMAND_WEBSOCKETS="+carried, "KUBECTL_PORT_FORWARD_WEBSOCKETS="+carried)}
}

func (k kubectl) does(args ...string) string { return k.ok(append([]string{"kubectl"}, args...)...) }

func (k kubectl) starts(args ...string) *running {
	return k.begin(append([]string{"kubectl"}, args...)...)
}

// kubectlDoesAllOfIt reads, watches, follows logs, executes, attaches and forwards ports. What answers beyond the API server is kubelab's stand-in for kubelets: streams of both kinds, without
// containers.
func kubectlDoesAllOfIt(s *system) {
	t, ctx := s.t, s.t.Context()
	_, cli := s.member("kubectl-developer", s.project, statev1.Role_ROLE_DEVELOPER)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "played", Namespace: "default"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "nginx:1"}}}}
	_, err := s.kube.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{})
	require.NoError(t, err)
	awaitCluster(t, "the pod runs", func(ctx context.Context) (bool, error) {
		found, err := s.kube.CoreV1().Pods("default").Get(ctx, pod.Name, metav1.GetOptions{})
		return err == nil && found.Status.Phase == corev1.PodRunning, err
	})
	client := cli.throughRelay("local")
	awaitCluster(t, "the developer may list", func(ctx context.Context) (bool, error) {
		_, err := client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
		return err == nil, nil
	})
	much := make([]byte, 4<<20)
	_, _ = rand.Read(much)
	for name, webSockets := range map[string]bool{"WebSocket": true, "SPDY": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := cli.in(t).kubectl("local", webSockets)
			require.Contains(t, k.does("get", "pods"), "played")
			watching := k.starts("get", "pods", "--watch", "--output-watch-events")
			watching.line("ADDED", "played")
			logs := k.starts("logs", "--follow", "played")
			logs.line("kubelab plays container c of pod default/played")
			logs.line("line 2")

			answered := kubectl{k.reading(string(much))}.does("exec", "-i", "played", "--", "cat")
			require.True(t, bytes.Equal(append([]byte("cat\n"), much...), []byte(answered)), "%d bytes came back", len(answered))
			code, _, _ := k.run("kubectl", "exec", "played", "--", "exit", "3")
			require.Equal(t, 3, code)
			require.Equal(t, "hello\n", kubectl{k.reading("hello\n")}.does("attach", "-i", "played"))

			_, rest, found := strings.Cut(k.starts("port-forward", "--address=127.0.0.1", "played", ":80").line("Forwarding from"), "Forwarding from ")
			require.True(t, found)
			address, _, _ := strings.Cut(rest, " -> ")
			for range 2 { // a connection that ends leaves the port open for others
				echoed(t, address, much[:1<<20])
			}
		})
	}
}

// echoed sends data to an address that echoes, and reads it back.
func echoed(t *testing.T, address string, data []byte) {
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

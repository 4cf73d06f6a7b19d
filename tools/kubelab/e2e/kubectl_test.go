package e2e_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/tools/kubelab/kubelet"
)

// onPod is kubectl with a running pod of the shared lab.
type onPod struct {
	cluster

	kubeconfig, name string
}

func newPod(t *testing.T, image string) onPod {
	t.Helper()
	p, err := shared()
	require.NoError(t, err)
	return podIn(t, p, namespaceIn(t, p.client(t), nil), image)
}

func podIn(t *testing.T, p *process, c cluster, image string) onPod {
	t.Helper()
	deploy(t, c, "app", 1, podSpec(image))
	var pods []v1.Pod
	eventually(t, "the pod has been started", func(context.Context) bool {
		pods = podsOf(t, c, "app")
		return len(pods) == 1 && pods[0].Status.StartTime != nil
	})
	return onPod{cluster: c, kubeconfig: p.info.Kubeconfig, name: pods[0].Name}
}

// kubectl returns a kubectl in the pod's namespace that is not started yet. Its
// streams go over WebSocket, or over SPDY.
func (p onPod) kubectl(t *testing.T, protocol string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, append([]string{"kubectl", "--namespace=" + p.namespace}, args...)...)
	webSocket := "false"
	if protocol == webSockets {
		webSocket = "true"
	}
	cmd.Env = []string{
		"KUBECONFIG=" + p.kubeconfig, "HOME=" + t.TempDir(),
		"KUBECTL_REMOTE_COMMAND_WEBSOCKETS=" + webSocket, "KUBECTL_PORT_FORWARD_WEBSOCKETS=" + webSocket,
	}
	cmd.WaitDelay = timeout
	return cmd
}

const webSockets, spdy = "WebSocket", "SPDY"

// overBoth runs a test over each protocol.
func overBoth(t *testing.T, test func(t *testing.T, protocol string)) {
	t.Helper()
	for _, protocol := range []string{webSockets, spdy} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			test(t, protocol)
		})
	}
}

func TestKubectlHasControlPlaneVersion(t *testing.T) {
	t.Parallel()
	p, err := shared()
	require.NoError(t, err)
	pod := onPod{kubeconfig: p.info.Kubeconfig, cluster: cluster{namespace: "default"}}
	out, err := pod.kubectl(t, webSockets, "version").CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "Client Version: "+kubelet.Version+"\n")
	require.Contains(t, string(out), "Server Version: "+kubelet.Version+"\n")
	// kubelab does not parse flags of kubectl.
	out, err = pod.kubectl(t, webSockets, "get", "--help").CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "kubectl get pods")
}

func TestKubectlExec(t *testing.T) {
	t.Parallel()
	pod := newPod(t, "nginx:1")
	overBoth(t, func(t *testing.T, protocol string) {
		cmd := pod.kubectl(t, protocol, "exec", "-i", pod.name, "--", "cat", "-")
		cmd.Stdin = strings.NewReader("one\ntwo\n")
		out, err := cmd.Output()
		require.NoError(t, err)
		require.Equal(t, "cat -\none\ntwo\n", string(out))

		for _, command := range [][]string{{"exit", "3"}, {"sh", "-c", "exit 3"}} {
			err = pod.kubectl(t, protocol, append([]string{"exec", pod.name, "--"}, command...)...).Run()
			var exit *exec.ExitError
			require.ErrorAs(t, err, &exit)
			require.Equal(t, 3, exit.ExitCode())
		}
		require.NoError(t, pod.kubectl(t, protocol, "exec", pod.name, "--", "exit", "0").Run())
	})
}

func TestKubectlExecTransfersLargeData(t *testing.T) {
	t.Parallel()
	pod := newPod(t, "nginx:1")
	data := make([]byte, 10<<20)
	_, _ = rand.Read(data)
	overBoth(t, func(t *testing.T, protocol string) {
		cmd := pod.kubectl(t, protocol, "exec", "-i", pod.name, "--", "cat")
		cmd.Stdin = bytes.NewReader(data)
		out, err := cmd.Output()
		require.NoError(t, err)
		require.True(t, bytes.Equal(append([]byte("cat\n"), data...), out), "%d bytes came back", len(out))
	})
}

func TestKubectlAttach(t *testing.T) {
	t.Parallel()
	pod := newPod(t, "nginx:1")
	overBoth(t, func(t *testing.T, protocol string) {
		cmd := pod.kubectl(t, protocol, "attach", "-i", pod.name)
		cmd.Stdin = strings.NewReader("hello\n")
		out, err := cmd.Output()
		require.NoError(t, err)
		require.Equal(t, "hello\n", string(out))

		// Without input it prints the log.
		silent := follow(t, pod.kubectl(t, protocol, "attach", pod.name))
		require.Regexp(t, `^line \d+\n$`, silent.line(t))
	})
}

// followed is a kubectl whose output is read while it runs.
type followed struct {
	*bufio.Reader

	cmd *exec.Cmd
}

// follow starts a command, which is interrupted at the end of the test if it still runs.
func follow(t *testing.T, cmd *exec.Cmd) followed {
	t.Helper()
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	f := followed{Reader: bufio.NewReader(out), cmd: cmd}
	t.Cleanup(func() { f.interrupt() })
	return f
}

func (f followed) line(t *testing.T) string {
	t.Helper()
	line, err := f.ReadString('\n')
	require.NoError(t, err)
	return line
}

// interrupt ends the command as Ctrl-C does, and waits for it.
func (f followed) interrupt() {
	if f.cmd.ProcessState == nil {
		_ = f.cmd.Process.Signal(os.Interrupt)
		_ = f.cmd.Wait()
	}
}

func TestKubectlLogs(t *testing.T) {
	t.Parallel()
	pod := newPod(t, "nginx:1")
	logs := follow(t, pod.kubectl(t, webSockets, "logs", "--follow", pod.name))
	require.Equal(t, "simulated container c0 of pod "+pod.namespace+"/"+pod.name+", image nginx:1\n", logs.line(t))
	for _, want := range []string{"line 1\n", "line 2\n", "line 3\n"} {
		require.Equal(t, want, logs.line(t))
	}
	require.NoError(t, pod.CoreV1().Pods(pod.namespace).Delete(t.Context(), pod.name, metav1.DeleteOptions{}))
	_, err := io.ReadAll(logs)
	require.NoError(t, err)
	require.NoError(t, logs.cmd.Wait(), "the log ends with the pod")
}

func TestSignalsReachKubectl(t *testing.T) {
	t.Parallel()
	pod := newPod(t, "nginx:1")
	proxy := follow(t, pod.kubectl(t, webSockets, "proxy", "--port=0"))
	require.Contains(t, proxy.line(t), "Starting to serve on 127.0.0.1:")
	// kubelab would handle this signal; kubectl proxy does not.
	require.NoError(t, proxy.cmd.Process.Signal(syscall.SIGTERM))
	require.Error(t, proxy.cmd.Wait())
	require.False(t, proxy.cmd.ProcessState.Exited(), "the signal has ended it")
}

func TestKubectlLogsOfFaults(t *testing.T) {
	t.Parallel()
	crashing := newPod(t, "crash-loop:1")
	eventually(t, "a crashed container is reported", func(context.Context) bool {
		out, err := crashing.kubectl(t, webSockets, "logs", "--previous", crashing.name).Output()
		return err == nil && bytes.HasSuffix(out, []byte("exit code 1\n"))
	})
	missing := newPod(t, "missing")
	out, err := missing.kubectl(t, webSockets, "logs", missing.name).CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "is waiting to start: ")
	out, err = missing.kubectl(t, webSockets, "exec", missing.name, "--", "ls").CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), `container not found ("c0")`)
}

func TestKubectlPortForward(t *testing.T) {
	t.Parallel()
	pod := newPod(t, "nginx:1")
	overBoth(t, func(t *testing.T, protocol string) {
		forward := follow(t, pod.kubectl(t, protocol, "port-forward", "--address=127.0.0.1", pod.name, ":80"))
		_, rest, found := strings.Cut(forward.line(t), "Forwarding from ")
		require.True(t, found)
		address, _, found := strings.Cut(rest, " -> 80")
		require.True(t, found)

		data := make([]byte, 1<<20)
		_, _ = rand.Read(data)
		// Twice: the port stays open after a connection has ended.
		for range 2 {
			var d net.Dialer
			conn, err := d.DialContext(t.Context(), "tcp", address)
			require.NoError(t, err)
			go func() {
				_, _ = conn.Write(data)
				_ = conn.(*net.TCPConn).CloseWrite()
			}()
			echo, err := io.ReadAll(conn)
			require.NoError(t, err)
			require.True(t, bytes.Equal(data, echo), "%d bytes came back", len(echo))
			require.NoError(t, conn.Close())
		}
		forward.interrupt()
		require.NotNil(t, forward.cmd.ProcessState)
	})
}

func TestStreamsEndWithPod(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, protocol string) {
		pod := newPod(t, "nginx:1")
		cmd := pod.kubectl(t, protocol, "exec", "-i", pod.name, "--", "cat")
		stdin, err := cmd.StdinPipe()
		require.NoError(t, err)
		echo := follow(t, cmd)
		require.Equal(t, "cat\n", echo.line(t))
		require.NoError(t, pod.CoreV1().Pods(pod.namespace).Delete(t.Context(), pod.name, metav1.DeleteOptions{}))
		_, _ = io.ReadAll(echo)
		var exit *exec.ExitError
		require.ErrorAs(t, cmd.Wait(), &exit)
		require.Equal(t, 137, exit.ExitCode())
		_ = stdin.Close()
	})
}

func TestStoppedNodeIsUnreachable(t *testing.T) {
	t.Parallel()
	p := start(t, "--nodes=1", "--node-grace=8s")
	pod := podIn(t, p, namespaceIn(t, p.client(t), nil), "nginx:1")
	logs := follow(t, pod.kubectl(t, webSockets, "logs", "--follow", pod.name))
	logs.line(t)

	node(t, p, "stop")
	_, _ = io.ReadAll(logs) // returns when the connection is closed
	require.Error(t, pod.kubectl(t, webSockets, "exec", pod.name, "--", "ls").Run())
	node(t, p, "start")
	eventually(t, "the node is reached again", func(context.Context) bool {
		return pod.kubectl(t, webSockets, "exec", pod.name, "--", "ls").Run() == nil
	})
}

func TestStreamsDoNotDelayStop(t *testing.T) {
	t.Parallel()
	p := start(t)
	pod := podIn(t, p, namespaceIn(t, p.client(t), nil), "nginx:1")
	cmd := pod.kubectl(t, webSockets, "exec", "-i", pod.name, "--", "cat")
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	echo := follow(t, cmd)
	require.Equal(t, "cat\n", echo.line(t))
	logs := follow(t, pod.kubectl(t, webSockets, "logs", "--follow", pod.name))
	logs.line(t)
	forward := follow(t, pod.kubectl(t, webSockets, "port-forward", "--address=127.0.0.1", pod.name, ":80"))
	forward.line(t)
	require.NoError(t, p.stop(os.Interrupt))
	_, _ = io.ReadAll(echo)
	_, _ = io.ReadAll(logs)
	_ = stdin.Close()
}

func TestKubectlWorksAfterRestart(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	first := start(t, "--data="+data)
	pod := podIn(t, first, namespaceIn(t, first.client(t), nil), "nginx:1")
	require.NoError(t, pod.kubectl(t, webSockets, "exec", pod.name, "--", "ls").Run())
	require.NoError(t, first.stop(os.Interrupt))
	// The nodes were ready and still report the old port.
	again := start(t, "--data="+data)
	pod.kubeconfig = again.info.Kubeconfig
	out, err := pod.kubectl(t, webSockets, "exec", pod.name, "--", "ls").CombinedOutput()
	require.NoError(t, err, "%s", out)
}

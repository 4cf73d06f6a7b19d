package endpoint_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/client-go/util/exec"
	clocktesting "k8s.io/utils/clock/testing"

	"lockstep.internal/tools/kubelab/endpoint"
	"lockstep.internal/tools/kubelab/kubelet"
	"lockstep.internal/tools/kubelab/pki"
)

// TestMain waits for the goroutines of closed connections: one of SPDY runs for a second. Package
// goleak alone waits for half a second.
func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 {
		err := goleak.Find()
		for deadline := time.Now().Add(timeout); err != nil && time.Now().Before(deadline); {
			err = goleak.Find()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

const (
	// timeout of every wait.
	timeout = time.Minute
	tick    = 10 * time.Millisecond
)

// kubelets is an endpoint with the pod ns/p on node-1, and a client.
type kubelets struct {
	client *fake.Clientset
	clock  *clocktesting.FakeClock
	certs  pki.KubeletCerts
	config *rest.Config
	// stop ends the endpoint and waits for it.
	stop func()
}

func serve(t *testing.T) *kubelets {
	t.Helper()
	certs, err := pki.NewKubeletCerts(filepath.Join(t.TempDir(), "certs"), time.Now())
	require.NoError(t, err)
	k := &kubelets{
		client: fake.NewClientset(podWith(running(), v1.ContainerState{}), &v1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: "node-1", Labels: map[string]string{kubelet.StateLabel: kubelet.StateRunning},
		}}),
		clock: clocktesting.NewFakeClock(epoch().Add(2 * time.Second)),
		certs: certs,
	}
	config, err := certs.ServerTLS()
	require.NoError(t, err)
	var lc net.ListenConfig
	listener, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	certPath, keyPath := certs.ClientCert()
	// Not by path: client-go would watch the files.
	cert, err := os.ReadFile(certPath)
	require.NoError(t, err)
	key, err := os.ReadFile(keyPath)
	require.NoError(t, err)
	k.config = &rest.Config{
		Host:            "https://" + listener.Addr().String(),
		TLSClientConfig: rest.TLSClientConfig{CAFile: certs.CA(), CertData: cert, KeyData: key},
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() {
		served <- (&endpoint.Server{Client: k.client, Clock: k.clock, Log: t.Output()}).Serve(ctx, listener, config)
	}()
	stopped := false
	k.stop = func() {
		if !stopped {
			stopped = true
			cancel()
			require.NoError(t, <-served)
		}
	}
	t.Cleanup(k.stop)
	return k
}

func (k *kubelets) url(t *testing.T, path string, query url.Values) *url.URL {
	t.Helper()
	u, err := url.Parse(k.config.Host + path + "?" + query.Encode())
	require.NoError(t, err)
	return u
}

// exec runs a command over SPDY, as the API server does.
func (k *kubelets) exec(t *testing.T, options remotecommand.StreamOptions, command ...string) error {
	t.Helper()
	return await(t, k.begin(t, options, command...))
}

// begin starts a command and sends its error.
func (k *kubelets) begin(t *testing.T, options remotecommand.StreamOptions, command ...string) <-chan error {
	t.Helper()
	query := url.Values{"command": command, "output": {"1"}}
	if options.Stdin != nil {
		query.Set("input", "1")
	}
	if options.Tty {
		query.Set("tty", "1")
	}
	executor, err := remotecommand.NewSPDYExecutor(k.config, http.MethodPost, k.url(t, "/exec/ns/p/c", query))
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- executor.StreamWithContext(t.Context(), options) }()
	return ended
}

// get requests a log. The caller closes the response.
func (k *kubelets) get(t *testing.T, query url.Values) *http.Response {
	t.Helper()
	transport, err := rest.TransportFor(k.config)
	require.NoError(t, err)
	t.Cleanup((&http.Client{Transport: transport}).CloseIdleConnections)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
		k.url(t, "/containerLogs/ns/p/c", query).String(), nil)
	require.NoError(t, err)
	response, err := transport.RoundTrip(request)
	require.NoError(t, err)
	t.Cleanup(func() { _ = response.Body.Close() })
	return response
}

// awaitWatches returns when the pod and the node of a stream are watched. Unlike an API server, the fake client loses
// changes between a list and its watch.
func (k *kubelets) awaitWatches(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		watched := map[string]bool{}
		for _, action := range k.client.Actions() {
			if action.GetVerb() == "watch" {
				watched[action.GetResource().Resource] = true
			}
		}
		return watched["pods"] && watched["nodes"]
	}, timeout, tick)
}

// setStatus replaces the state of the pod's container.
func (k *kubelets) setStatus(t *testing.T, state, last v1.ContainerState) {
	t.Helper()
	_, err := k.client.CoreV1().Pods("ns").UpdateStatus(t.Context(), podWith(state, last), metav1.UpdateOptions{})
	require.NoError(t, err)
}

func (k *kubelets) deletePod(t *testing.T) {
	t.Helper()
	require.NoError(t, k.client.CoreV1().Pods("ns").Delete(t.Context(), "p", metav1.DeleteOptions{}))
}

func (k *kubelets) stopNode(t *testing.T) {
	t.Helper()
	require.NoError(t, kubelet.SetNodeState(t.Context(), k.client, "node-1", kubelet.StateStopped))
}

func requireExit(t *testing.T, code int, err error) {
	t.Helper()
	var exit exec.CodeExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, code, exit.Code)
}

func TestExecEchoesAndExits(t *testing.T) {
	t.Parallel()
	k := serve(t)
	var out bytes.Buffer
	require.NoError(t,
		k.exec(t, remotecommand.StreamOptions{Stdin: bytes.NewReader([]byte("hello")), Stdout: &out}, "cat", "-n"))
	require.Equal(t, "cat -n\nhello", out.String())
	out.Reset()
	require.NoError(t, k.exec(t, remotecommand.StreamOptions{Stdout: &out}, "ls"))
	require.Equal(t, "ls\n", out.String())
	requireExit(t, 3, k.exec(t, remotecommand.StreamOptions{Stdout: io.Discard}, "exit", "3"))
}

// sizes is a queue of terminal sizes.
type sizes chan remotecommand.TerminalSize

func (s sizes) Next() *remotecommand.TerminalSize {
	if size, ok := <-s; ok {
		return &size
	}
	return nil
}

func TestExecOnATerminal(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		last  string
		check func(*testing.T, error)
	}{
		"Ctrl-D": {"bye\x04lost", func(t *testing.T, err error) { require.NoError(t, err) }},
		"Ctrl-C": {"bye\x03lost", func(t *testing.T, err error) { requireExit(t, 130, err) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := serve(t)
			in, keys := io.Pipe()
			screen, out := io.Pipe()
			resize := make(sizes, 1)
			resize <- remotecommand.TerminalSize{Width: 80, Height: 24}
			result := k.begin(t, remotecommand.StreamOptions{Stdin: in, Stdout: out, Tty: true, TerminalSizeQueue: resize},
				"bash")
			lines := bufio.NewReader(screen)
			for _, want := range []string{"bash\r\n", "terminal 80x24\r\n"} {
				line, err := lines.ReadString('\n')
				require.NoError(t, err)
				require.Equal(t, want, line)
			}
			_, err := io.WriteString(keys, test.last)
			require.NoError(t, err)
			rest := make([]byte, 3)
			_, err = io.ReadFull(lines, rest)
			require.NoError(t, err)
			require.Equal(t, "bye", string(rest))
			go func() { _, _ = io.Copy(io.Discard, lines) }()
			test.check(t, await(t, result))
			_ = out.Close()
			close(resize)
			_ = keys.Close()
		})
	}
}

// startEcho opens an exec and waits until it has echoed once.
func startEcho(t *testing.T, k *kubelets) (result <-chan error) {
	t.Helper()
	in, keys := io.Pipe()
	screen, out := io.Pipe()
	ended := k.begin(t, remotecommand.StreamOptions{Stdin: in, Stdout: out}, "cat")
	_, err := io.WriteString(keys, "hello\n")
	require.NoError(t, err)
	lines := bufio.NewReader(screen)
	for _, want := range []string{"cat\n", "hello\n"} {
		line, err := lines.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, want, line)
	}
	t.Cleanup(func() { _ = keys.Close() })
	return ended
}

func TestExecEndsWithContainer(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		end   func(*kubelets, *testing.T)
		check func(*testing.T, error)
	}{
		"the pod is deleted": {(*kubelets).deletePod, func(t *testing.T, err error) { requireExit(t, 137, err) }},
		"the container restarts": {
			func(k *kubelets, t *testing.T) {
				k.setStatus(t, waiting("CrashLoopBackOff"), terminated("now", "Error", 1, time.Second))
			},
			func(t *testing.T, err error) { requireExit(t, 137, err) },
		},
		"the kubelet is stopped": {(*kubelets).stopNode, requireClosed},
		// The last output may be lost.
		"the lab ends": {func(k *kubelets, _ *testing.T) { k.stop() }, func(*testing.T, error) {}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := serve(t)
			ended := startEcho(t, k)
			k.awaitWatches(t)
			test.end(k, t)
			test.check(t, await(t, ended))
		})
	}
}

// requireClosed checks that a stream has ended without an exit code.
func requireClosed(t *testing.T, err error) {
	t.Helper()
	var exit exec.CodeExitError
	require.NotErrorAs(t, err, &exit)
}

func await(t *testing.T, ended <-chan error) error {
	t.Helper()
	select {
	case err := <-ended:
		return err
	case <-time.After(timeout):
		require.Fail(t, "the stream does not end")
		return nil
	}
}

func TestExecNeedsRunningContainer(t *testing.T) {
	t.Parallel()
	k := serve(t)
	k.setStatus(t, waiting("ErrImagePull"), v1.ContainerState{})
	require.ErrorContains(t, k.exec(t, remotecommand.StreamOptions{Stdout: io.Discard}, "ls"), `container not found ("c")`)
	k.deletePod(t)
	require.ErrorContains(t, k.exec(t, remotecommand.StreamOptions{Stdout: io.Discard}, "ls"), `pod "p" does not exist`)
}

func TestStoppedNodeDoesNotRespond(t *testing.T) {
	t.Parallel()
	k := serve(t)
	k.stopNode(t)
	require.ErrorContains(t, k.exec(t, remotecommand.StreamOptions{Stdout: io.Discard}, "ls"), "EOF")
}

func TestLogs(t *testing.T) {
	t.Parallel()
	const first = "simulated container c of pod ns/p, image x:1\n"
	for name, test := range map[string]struct {
		query url.Values
		want  string
	}{
		"all":              {nil, first + "line 1\nline 2\n"},
		"the last":         {url.Values{"tailLines": {"1"}}, "line 2\n"},
		"more than exist":  {url.Values{"tailLines": {"9"}}, first + "line 1\nline 2\n"},
		"since one second": {url.Values{"sinceSeconds": {"1"}}, "line 1\nline 2\n"},
		"since a time":     {url.Values{"sinceTime": {epoch().Add(2 * time.Second).Format(time.RFC3339)}}, "line 2\n"},
		"byte limit":       {url.Values{"limitBytes": {"7"}}, first[:7]},
		"with times": {
			url.Values{"tailLines": {"1"}, "timestamps": {"true"}},
			"2026-01-02T03:04:07.000000000Z line 2\n",
		},
		"error output":     {url.Values{"stream": {"Stderr"}}, ""},
		"limit and follow": {url.Values{"limitBytes": {"7"}, "follow": {"true"}}, first[:7]},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			response := serve(t).get(t, test.query)
			require.Equal(t, http.StatusOK, response.StatusCode)
			body, err := io.ReadAll(response.Body)
			require.NoError(t, err)
			require.Equal(t, test.want, string(body))
		})
	}
}

func TestOldLinesAreDropped(t *testing.T) {
	t.Parallel()
	k := serve(t)
	k.clock.SetTime(epoch().Add(24 * time.Hour))
	body, err := io.ReadAll(k.get(t, nil).Body)
	require.NoError(t, err)
	require.Equal(t, 1000, bytes.Count(body, []byte("\n")))
	require.True(t, bytes.HasPrefix(body, []byte("line 85401\n")))
	require.True(t, bytes.HasSuffix(body, []byte("line 86400\n")))
}

func TestLogsFollowToTheEnd(t *testing.T) {
	t.Parallel()
	k := serve(t)
	lines := bufio.NewReader(k.get(t, url.Values{"follow": {"true"}, "tailLines": {"1"}}).Body)
	require.Equal(t, "line 2\n", readLine(t, lines))
	k.awaitWatches(t)
	require.Eventually(t, k.clock.HasWaiters, timeout, tick)
	k.clock.Step(time.Second)
	require.Equal(t, "line 3\n", readLine(t, lines))
	k.setStatus(t, waiting("CrashLoopBackOff"), terminated("now", "Error", 1, 4*time.Second))
	rest, err := io.ReadAll(lines)
	require.NoError(t, err)
	require.Equal(t, "line 4\nexit code 1\n", string(rest))
}

func readLine(t *testing.T, from *bufio.Reader) string {
	t.Helper()
	line, err := from.ReadString('\n')
	require.NoError(t, err)
	return line
}

func TestLogsOfWaitingContainer(t *testing.T) {
	t.Parallel()
	k := serve(t)
	k.setStatus(t, waiting("ErrImagePull"), v1.ContainerState{})
	response := k.get(t, nil)
	require.Equal(t, http.StatusBadRequest, response.StatusCode)
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.Contains(t, string(body), "is waiting to start: ErrImagePull")
}

func TestPortsEchoUntilPodEnds(t *testing.T) {
	t.Parallel()
	k := serve(t)
	transport, upgrader, err := spdy.RoundTripperFor(k.config)
	require.NoError(t, err)
	dialer := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost,
		k.url(t, "/portForward/ns/p", nil))
	ready, stop := make(chan struct{}), make(chan struct{})
	forwarder, err := portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, []string{"0:80"}, stop, ready, io.Discard,
		io.Discard)
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- forwarder.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-ended:
		require.NoError(t, err)
	}
	ports, err := forwarder.GetPorts()
	require.NoError(t, err)

	var d net.Dialer
	dial := func() *net.TCPConn {
		conn, err := d.DialContext(t.Context(), "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(ports[0].Local))))
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		return conn.(*net.TCPConn)
	}
	whole := dial()
	_, err = io.WriteString(whole, "hello")
	require.NoError(t, err)
	require.NoError(t, whole.CloseWrite())
	echo, err := io.ReadAll(whole)
	require.NoError(t, err)
	require.Equal(t, "hello", string(echo))

	open := dial()
	_, err = io.WriteString(open, "x")
	require.NoError(t, err)
	_, err = io.ReadFull(open, make([]byte, 1))
	require.NoError(t, err)
	k.awaitWatches(t)
	k.deletePod(t)
	_, _ = io.ReadAll(open) // returns when the connection is closed
	close(stop)
	await(t, ended)
}

func TestOnlyTheAPIServerIsAccepted(t *testing.T) {
	t.Parallel()
	k := serve(t)
	host, err := url.Parse(k.config.Host)
	require.NoError(t, err)
	ours, err := k.certs.ServerTLS()
	require.NoError(t, err)

	// An administrator of the lab is rejected, and so is a client without a certificate.
	bundleDir := filepath.Join(t.TempDir(), "pki")
	_, err = pki.Ensure(bundleDir, net.IPv4(10, 96, 0, 1), time.Now())
	require.NoError(t, err)
	admin, err := tls.LoadX509KeyPair(filepath.Join(bundleDir, "admin.crt"), filepath.Join(bundleDir, "admin.key"))
	require.NoError(t, err)
	for name, certificates := range map[string][]tls.Certificate{"administrator": {admin}, "nobody": nil} {
		dialer := tls.Dialer{
			Config: &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: ours.ClientCAs, Certificates: certificates},
		}
		conn, err := dialer.DialContext(t.Context(), "tcp", host.Host)
		require.NoError(t, err, name)
		_, err = io.WriteString(conn, "GET /containerLogs/ns/p/c HTTP/1.1\r\nHost: x\r\n\r\n")
		if err == nil {
			_, err = conn.Read(make([]byte, 1))
		}
		require.ErrorContains(t, err, "certificate", name)
		_ = conn.Close()
	}
	require.FileExists(t, k.certs.CA())
	info, err := os.Stat(filepath.Dir(k.certs.CA()))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
}

package agent_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/natsauth"
	"lockstep.internal/services/relay/agent"
	"lockstep.internal/services/relay/connections"
	"lockstep.internal/services/relay/tunnel"
)

// process is a relay agent in this process.
type process struct {
	t    *testing.T
	cfg  agent.Config
	ops  string
	stop func()
}

// newConfig returns the configuration of an agent that dials these relays, with the Kubernetes API disabled.
func newConfig(t *testing.T, token string, relays ...*relay) agent.Config {
	t.Helper()
	cfg := agent.DefaultConfig()
	cfg.Ops.Listen = "127.0.0.1:0"
	cfg.CredentialsFile = writeCredentials(t, "", token)
	cfg.Kubernetes.Enabled = false
	cfg.Relay.URLs = nil
	for _, r := range relays {
		cfg.Relay.URLs = append(cfg.Relay.URLs, r.url())
	}
	cfg.Relay.RetryMin, cfg.Relay.RetryMax = 10*time.Millisecond, 50*time.Millisecond
	cfg.Targets.AllowedAddresses = []string{"127.0.0.1:*"}
	cfg.Telemetry.LogFormat = "text"
	return cfg
}

// start runs an agent until stop is called or the test ends. It returns when it listens.
func start(t *testing.T, cfg agent.Config) *process {
	t.Helper()
	p := &process{t: t, cfg: cfg}
	cfg.Telemetry.Out = t.Output()
	listening := make(chan string, 1)
	cfg.OnListen = func(addrs map[string]string) { listening <- addrs["ops"] }
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- agent.Main(ctx, cfg) }()
	p.stop = sync.OnceFunc(func() {
		cancel()
		assert.NoError(t, <-ended)
	})
	t.Cleanup(p.stop)
	select {
	case p.ops = <-listening:
	case err := <-ended:
		ended <- nil
		require.NoError(t, err, "the agent ended at once")
	}
	return p
}

// get sends a GET request to the ops listener.
func (p *process) get(path string) (int, string) {
	p.t.Helper()
	response, err := http.Get("http://" + p.ops + path)
	require.NoError(p.t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(p.t, err)
	return response.StatusCode, string(body)
}

// waitFor waits until a path of the ops listener responds with this status and text.
func (p *process) waitFor(path string, status int, text string) {
	p.t.Helper()
	require.EventuallyWithT(p.t, func(c *assert.CollectT) {
		code, body := p.get(path)
		require.Equal(c, status, code, body)
		require.Contains(c, body, text)
	}, timeout, pollInterval)
}

func TestTargetsMustBeConfiguredAndAllowed(t *testing.T) {
	t.Parallel()
	token := natsauth.NewToken(natsauth.TokenAgent)
	r, echo := newRelay(t, token), newTarget(t)
	cfg := newConfig(t, token, r)
	cfg.Pod = "apps/agent-0"
	p := start(t, cfg)
	require.Equal(t, `the agent's configuration (revision 0) has no target "echo"`, r.refused("echo").Text)
	r.configure(echo.configuration(3))
	p.waitFor("/metrics", http.StatusOK, "lockstep_relay_agent_config_revision 3")

	s := r.stream("echo")
	require.NoError(t, s.WaitAccepted())
	requireEcho(t, s)
	require.NoError(t, s.CloseWrite())
	rest, err := io.ReadAll(s)
	require.NoError(t, err)
	require.Equal(t, "bye", string(rest), "half-close")

	reset := r.refused("nothing")
	require.Equal(t, tunnel.Refused, reset.Reason)
	require.Equal(t, `the agent's configuration (revision 3) has no target "nothing"`, reset.Text)
	reset = r.refused("outside")
	require.Equal(t, tunnel.Refused, reset.Reason)
	require.Contains(t, reset.Text, "outside.example:80")
	reset = r.refused("closed")
	require.Equal(t, tunnel.Unreachable, reset.Reason)
	require.Contains(t, reset.Text, "target closed cannot be reached from the agent's cluster: dial tcp 127.0.0.1:1")
	reset = r.refused("kubernetes")
	require.Equal(t, tunnel.Refused, reset.Reason)
	require.Contains(t, reset.Text, "kubernetes.enabled is false")

	r.configure(`{"config_revision":4}`)
	p.waitFor("/metrics", http.StatusOK, "lockstep_relay_agent_config_revision 4")
	require.Equal(t, tunnel.Refused, r.refused("echo").Reason)
	p.waitFor("/metrics", http.StatusOK, `lockstep_relay_agent_streams_total{outcome="unreachable"} 1`)
	p.waitFor("/metrics", http.StatusOK, `lockstep_relay_agent_target_bytes_total{direction="to_target"} 160000`)
	connected := r.connections()
	require.Len(t, connected, 1)
	require.Equal(t, "apps", connected[0].PodNamespace)
	require.Equal(t, "agent-0", connected[0].PodName)
	require.NotEmpty(t, connected[0].Version)
}

func TestWorkspacesNeedNoConfiguredTarget(t *testing.T) {
	t.Parallel()
	token := natsauth.NewToken(natsauth.TokenAgent)
	r, echo := newRelay(t, token), newTarget(t)
	r.configure(echo.configuration(3))
	cfg := newConfig(t, token, r)
	dialed := make(chan string, 1)
	cfg.Targets.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		dialed <- address
		return new(net.Dialer).DialContext(ctx, network, echo.addr)
	}
	start(t, cfg)
	s := r.stream("hello.ws-7-hello:3000")
	require.NoError(t, s.WaitAccepted())
	require.Equal(t, "hello.ws-7-hello.svc:3000", <-dialed)
	requireEcho(t, s)
	reset := r.refused("kubernetes.default:443")
	require.Equal(t, tunnel.Refused, reset.Reason)
	require.Contains(t, reset.Text, "namespace default is not of a workspace")
}

// Streams to a target end when it is removed or its address changes.
func TestStreamsEndWhenTargetChanges(t *testing.T) {
	t.Parallel()
	token := natsauth.NewToken(natsauth.TokenAgent)
	r, echo, other := newRelay(t, token), newTarget(t), newTarget(t)
	cfg := newConfig(t, token, r)
	p := start(t, cfg)
	r.configure(echo.configuration(3))
	p.waitFor("/metrics", http.StatusOK, "lockstep_relay_agent_config_revision 3")
	first := r.stream("echo")
	requireEcho(t, first)
	r.configure(echo.configuration(4))
	p.waitFor("/metrics", http.StatusOK, "lockstep_relay_agent_config_revision 4")
	requireEcho(t, first)

	r.configure(other.configuration(5))
	_, err := first.Read(make([]byte, 1))
	var reset *tunnel.ResetError
	require.ErrorAs(t, err, &reset)
	require.Equal(t, tunnel.Refused, reset.Reason)
	want := fmt.Sprintf("the address of target %q changed to %s (was %s) in configuration revision 5",
		"echo", other.addr, echo.addr)
	require.Equal(t, want, reset.Text)
	echo.waitForConnections(t, 0)
	second := r.stream("echo")
	requireEcho(t, second)
	other.waitForConnections(t, 1)

	r.configure(`{"config_revision":6}`)
	_, err = second.Read(make([]byte, 1))
	require.ErrorAs(t, err, &reset)
	require.Equal(t, `the agent's configuration (revision 6) has no target "echo"`, reset.Text)
	other.waitForConnections(t, 0)
	p.waitFor("/metrics", http.StatusOK, "lockstep_relay_agent_streams 0")
}

// When a relay is killed, its connections to targets are closed.
func TestKilledRelay(t *testing.T) {
	t.Parallel()
	token := natsauth.NewToken(natsauth.TokenAgent)
	one, two, echo := newRelay(t, token), newRelay(t, token), newTarget(t)
	one.configure(echo.configuration(3))
	two.configure(echo.configuration(3))
	p := start(t, newConfig(t, token, one, two))
	p.waitFor("/readyz", http.StatusOK, "[ok] relays")
	before, other := one.stream("echo"), two.stream("echo")
	requireEcho(t, before)
	requireEcho(t, other)

	one.kill()
	_, err := before.Read(make([]byte, 1))
	require.ErrorIs(t, err, tunnel.ErrClosed)
	echo.waitForConnections(t, 1)
	requireEcho(t, other)
	p.waitFor("/readyz", http.StatusOK, "[ok] relays")
	two.kill()
	echo.waitForConnections(t, 0)
	p.waitFor("/readyz", http.StatusServiceUnavailable, "no connection with a relay")

	one.open(nil)
	requireEcho(t, one.stream("echo"))
	p.waitFor("/readyz", http.StatusOK, "[ok] relays")
}

// When the agent is killed, its sessions and target connections are closed.
func TestKilledAgentClosesConnections(t *testing.T) {
	t.Parallel()
	token := natsauth.NewToken(natsauth.TokenAgent)
	r, echo := newRelay(t, token), newTarget(t)
	r.configure(echo.configuration(1))
	child := startProcess(t, newConfig(t, token, r))
	session := r.session(1)
	var s *connections.Stream
	require.Eventually(t, func() bool {
		s = r.stream("echo")
		return s.WaitAccepted() == nil
	}, timeout, pollInterval)
	requireEcho(t, s)
	require.NoError(t, child.Process.Kill())
	<-session.Done()
	_, err := s.Read(make([]byte, 1))
	require.ErrorIs(t, err, tunnel.ErrClosed)
	echo.waitForConnections(t, 0)
}

func TestDrainingRelayIsReplacedWithoutFailure(t *testing.T) {
	t.Parallel()
	token := natsauth.NewToken(natsauth.TokenAgent)
	r, echo := newRelay(t, token), newTarget(t)
	r.configure(echo.configuration(1))
	p := start(t, newConfig(t, token, r))
	p.waitFor("/metrics", http.StatusOK, "lockstep_relay_agent_config_revision 1")
	first := r.session(1)
	before := r.stream("echo")
	requireEcho(t, before)
	first.Drain()
	r.session(2)
	after := r.stream("echo")
	requireEcho(t, after)
	requireEcho(t, before)
	require.NoError(t, before.CloseWrite())
	_, err := io.ReadAll(before)
	require.NoError(t, err)
	<-first.Done()
	requireEcho(t, after)
}

func TestStopWaitsForOpenStreams(t *testing.T) {
	t.Parallel()
	token := natsauth.NewToken(natsauth.TokenAgent)
	r, echo := newRelay(t, token), newTarget(t)
	r.configure(echo.configuration(1))
	p := start(t, newConfig(t, token, r))
	p.waitFor("/metrics", http.StatusOK, "lockstep_relay_agent_config_revision 1")
	s := r.stream("echo")
	requireEcho(t, s)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		p.stop()
	}()
	<-r.session(1).PeerDraining()
	requireEcho(t, s)
	require.NoError(t, s.CloseWrite())
	_, err := io.ReadAll(s)
	require.NoError(t, err)
	<-stopped
	require.Len(t, r.connections(), 1, "the agent does not reconnect")
}

func TestDrainTimeoutClosesStreams(t *testing.T) {
	t.Parallel()
	token := natsauth.NewToken(natsauth.TokenAgent)
	r, echo := newRelay(t, token), newTarget(t)
	r.configure(echo.configuration(1))
	cfg := newConfig(t, token, r)
	cfg.DrainTimeout = 100 * time.Millisecond
	listening := make(chan string, 1)
	cfg.OnListen = func(map[string]string) { close(listening) }
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- agent.Main(ctx, cfg) }()
	<-listening
	var s *connections.Stream
	require.Eventually(t, func() bool {
		s = r.stream("echo")
		return s.WaitAccepted() == nil
	}, timeout, pollInterval)
	cancel()
	require.ErrorContains(t, <-ended, "not drained within 100ms: relays")
	_, err := io.ReadAll(s)
	require.Error(t, err)
	echo.waitForConnections(t, 0)
}

func TestResetClosesTargetConnection(t *testing.T) {
	t.Parallel()
	token := natsauth.NewToken(natsauth.TokenAgent)
	r, echo := newRelay(t, token), newTarget(t)
	r.configure(echo.configuration(1))
	p := start(t, newConfig(t, token, r))
	p.waitFor("/metrics", http.StatusOK, "lockstep_relay_agent_config_revision 1")
	s := r.stream("echo")
	requireEcho(t, s)
	s.Reset(tunnel.Cancelled, "no longer needed")
	echo.waitForConnections(t, 0)
	p.waitFor("/metrics", http.StatusOK, "lockstep_relay_agent_streams 0")
}

func TestMaxStreams(t *testing.T) {
	t.Parallel()
	token := natsauth.NewToken(natsauth.TokenAgent)
	r, echo := newRelay(t, token), newTarget(t)
	r.configure(echo.configuration(1))
	cfg := newConfig(t, token, r, r) // the limit is over all connections
	cfg.MaxStreams = 2
	p := start(t, cfg)
	p.waitFor("/metrics", http.StatusOK, "lockstep_relay_agent_connections 2")
	p.waitFor("/metrics", http.StatusOK, "lockstep_relay_agent_config_revision 1")
	requireEcho(t, r.stream("echo"))
	second := r.stream("echo")
	requireEcho(t, second)
	reset := r.refused("echo")
	require.Equal(t, tunnel.Overloaded, reset.Reason)
	second.Reset(tunnel.Cancelled, "no longer needed")
	p.waitFor("/metrics", http.StatusOK, "lockstep_relay_agent_streams 1")
	requireEcho(t, r.stream("echo"))
}

func TestCredentialsAreReloaded(t *testing.T) {
	t.Parallel()
	token := natsauth.NewToken(natsauth.TokenAgent)
	r := newRelay(t, token)
	cfg := newConfig(t, natsauth.NewToken(natsauth.TokenAgent), r)
	p := start(t, cfg)
	p.waitFor("/readyz", http.StatusServiceUnavailable, "the relay responded 401")
	writeCredentials(t, cfg.CredentialsFile, token)
	p.waitFor("/readyz", http.StatusOK, "[ok] relays")
}

func TestMaxAgeReplacesConnection(t *testing.T) {
	t.Parallel()
	token := natsauth.NewToken(natsauth.TokenAgent)
	r := newRelay(t, token)
	cfg := newConfig(t, token, r)
	cfg.Relay.MaxAge = 300 * time.Millisecond
	start(t, cfg)
	first := r.session(1)
	<-first.PeerDraining()
	r.session(2)
}

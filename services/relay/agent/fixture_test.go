package agent_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/directory"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/seal"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/relay/agentlistener"
	"lockstep.internal/services/relay/connections"
	"lockstep.internal/services/relay/registry"
	"lockstep.internal/services/relay/route"
	"lockstep.internal/services/relay/tunnel"
	"lockstep.internal/tools/testkit/port"
)

const (
	agentID      = 7
	timeout      = 2 * time.Minute
	pollInterval = 5 * time.Millisecond
)

// relay is an in-process relay: agent listener and connection pool, without NATS.
type relay struct {
	t        *testing.T
	registry *registry.Registry
	pool     *connections.Pool
	sessions *tunnel.SessionGroup
	server   *httptest.Server
	addr     string

	mu            sync.Mutex
	tokenHash     natsauth.TokenHash
	config        string // of the agent, as JSON
	configChanged chan struct{}
	conns         map[net.Conn]struct{}
	connected     []registry.Connection
	added         []*tunnel.Session
}

func newRelay(t *testing.T, token string) *relay {
	t.Helper()
	held, err := port.Hold() // agents reconnect to the same port
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, held.Release()) })
	r := &relay{t: t, configChanged: make(chan struct{}), conns: map[net.Conn]struct{}{}, addr: held.Address()}
	r.setToken(token)
	r.open(nil)
	t.Cleanup(r.kill)
	return r
}

// open listens on the same address, as a restarted relay.
func (r *relay) open(tlsConfig *tls.Config) {
	r.t.Helper()
	r.registry, r.sessions = registry.New(), &tunnel.SessionGroup{}
	r.pool = connections.NewPool(connections.Config{
		Self: "a", Registry: r.registry, AgentTimeout: timeout,
		Peer: func(context.Context, registry.Relay) (*tunnel.Session, error) {
			return nil, errors.New("there is no other relay")
		},
	})
	handler := agentlistener.NewHandler(agentlistener.Config{
		RelayID: "a", Agents: r, Pool: r, Observer: r, AgentConfigs: r, Sessions: r.sessions,
		MaxConnections: 100, MaxConnectionsPerAgent: 100,
		Logger: slog.New(slog.DiscardHandler), Now: time.Now,
	})
	mux := http.NewServeMux()
	mux.Handle("GET /tunnel", handler)
	l, err := net.Listen("tcp", r.addr)
	require.NoError(r.t, err)
	r.server = httptest.NewUnstartedServer(mux)
	require.NoError(r.t, r.server.Listener.Close())
	r.server.Listener = l
	r.server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	r.server.Config.ConnState = func(conn net.Conn, state http.ConnState) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if state == http.StateHijacked {
			r.conns[conn] = struct{}{}
		}
	}
	if tlsConfig != nil {
		r.server.TLS = tlsConfig
		r.server.StartTLS()
	} else {
		r.server.Start()
	}
}

// kill closes all connections without a drain, as if the process was killed.
func (r *relay) kill() {
	_ = r.server.Listener.Close()
	r.mu.Lock()
	for conn := range r.conns {
		_ = conn.Close()
	}
	clear(r.conns)
	r.mu.Unlock()
	r.server.CloseClientConnections()
	r.server.Close()
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	r.sessions.Drain(cancelled)
}

func (r *relay) url() string { return "ws://" + r.addr }

// setToken sets the accepted agent token.
func (r *relay) setToken(token string) {
	hash, err := natsauth.HashToken(natsauth.TokenAgent, token)
	require.NoError(r.t, err)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tokenHash = hash
}

// configure sets the agent's configuration.
func (r *relay) configure(config string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.config = config
	close(r.configChanged)
	r.configChanged = make(chan struct{})
}

func (r *relay) AgentConfig(int64) ([]byte, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return []byte(r.config), r.configChanged
}

func (r *relay) Ready() bool { return true }

func (r *relay) Changed() <-chan struct{} { return nil }

func (r *relay) Agent(id int64) (directory.Agent, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return directory.Agent{ProjectID: 1, TokenHash: r.tokenHash}, id == agentID
}

func (r *relay) Connected(c registry.Connection) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.connected = append(r.connected, c)
}

func (r *relay) Disconnected(registry.Connection, time.Time, events.DisconnectReason) {}

// Add also records the session.
func (r *relay) Add(c registry.Connection, s *tunnel.Session) func() {
	remove := r.pool.Add(c, s)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.added = append(r.added, s)
	return remove
}

// session waits for the n-th session (from 1) and returns it.
func (r *relay) session(n int) *tunnel.Session {
	r.t.Helper()
	var s *tunnel.Session
	require.Eventually(r.t, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.added) < n {
			return false
		}
		s = r.added[n-1]
		return true
	}, timeout, pollInterval)
	return s
}

// connections returns all connections since the start, also closed ones.
func (r *relay) connections() []registry.Connection {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.connected
}

// stream opens a stream to a target. It waits until the agent is connected.
func (r *relay) stream(target string) *connections.Stream {
	r.t.Helper()
	s, err := r.pool.Open(r.t.Context(), &connections.RetryState{}, route.Destination{AgentID: agentID, Target: target})
	require.NoError(r.t, err)
	r.t.Cleanup(func() { s.Reset(tunnel.Cancelled, "the test is over") })
	return s
}

// dialKubernetes opens a stream to the Kubernetes API.
func (r *relay) dialKubernetes(ctx context.Context, _, _ string) (net.Conn, error) {
	return r.pool.Open(ctx, &connections.RetryState{}, route.Destination{AgentID: agentID, Target: route.KubernetesAPI})
}

// refused opens a stream that the agent resets, and returns the error.
func (r *relay) refused(target string) *tunnel.ResetError {
	r.t.Helper()
	var reset *tunnel.ResetError
	require.ErrorAs(r.t, r.stream(target).WaitAccepted(), &reset)
	return reset
}

// requireEcho checks that data is echoed.
func requireEcho(t *testing.T, s *connections.Stream) {
	t.Helper()
	sent := []byte(strings.Repeat("payload to echo ", 10_000))
	go func() { _, _ = s.Write(sent) }()
	back := make([]byte, len(sent))
	_, err := io.ReadFull(s, back)
	require.NoError(t, err)
	require.True(t, bytes.Equal(sent, back))
}

// target is a TCP server that echoes until the client half-closes, and then sends "bye".
type target struct {
	addr string
	// open connections.
	open atomic.Int64
}

// waitForConnections waits until count connections are open.
func (s *target) waitForConnections(t *testing.T, count int64) {
	t.Helper()
	require.Eventually(t, func() bool { return s.open.Load() == count }, timeout, pollInterval)
}

func newTarget(t *testing.T) *target {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &target{addr: l.Addr().String()}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			s.open.Add(1)
			serving.Go(func() {
				defer s.open.Add(-1)
				defer conn.Close()
				if _, err := io.Copy(conn, bufio.NewReader(conn)); err != nil {
					return
				}
				_, _ = io.WriteString(conn, "bye")
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		serving.Wait()
	})
	return s
}

// configuration returns an agent's configuration with this target as "echo".
func (s *target) configuration(revision int) string {
	const others = `{"name":"outside","address":"outside.example:80"},{"name":"closed","address":"127.0.0.1:1"}`
	// The relay sends one configuration per line.
	return fmt.Sprintf(`{"config_revision":%d,"relay_targets":[{"name":"echo","address":%q},%s]}`,
		revision, s.addr, others)
}

// writeCredentials writes the agent's credentials file, and returns its path. An empty file is a new one.
func writeCredentials(t *testing.T, file, token string) string {
	t.Helper()
	sealer, err := seal.GenerateKey()
	require.NoError(t, err)
	own, err := seal.GenerateKey()
	require.NoError(t, err)
	seed, err := own.Seed()
	require.NoError(t, err)
	if file == "" {
		file = filepath.Join(t.TempDir(), "credentials.json")
	}
	require.NoError(t, natsauth.WriteAgentCredentials(file, natsauth.AgentCredentials{
		ServerURLs: []string{"nats://nats.example:4222"}, Cell: "local", AgentID: agentID, Token: token,
		CurveSeed: seed.Reveal(), SealerKey: sealer.Public(),
	}))
	return file
}

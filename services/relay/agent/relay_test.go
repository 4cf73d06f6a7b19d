package agent_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
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
	agentID  = 7
	patience = 2 * time.Minute
	tick     = 5 * time.Millisecond
)

// relay is one in this process: the listener for agents with what is behind it, and no control plane.
type relay struct {
	t        *testing.T
	registry *registry.Registry
	hub      *connections.Pool
	sessions *tunnel.SessionGroup
	server   *httptest.Server
	addr     string

	mu    sync.Mutex
	hash  natsauth.TokenHash
	line  string
	told  chan struct{} // closed when line changes
	conns map[net.Conn]struct{}
	made  []registry.Connection
	held  []*tunnel.Session
}

func newRelay(t *testing.T, token string) *relay {
	t.Helper()
	held, err := port.Hold() // agents come back to it
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, held.Release()) })
	r := &relay{t: t, told: make(chan struct{}), conns: map[net.Conn]struct{}{}, addr: held.Address()}
	r.expect(token)
	r.open(nil)
	t.Cleanup(r.kill)
	return r
}

// open begins to listen, where it listened before. It is another relay then.
func (r *relay) open(secure *tls.Config) {
	r.t.Helper()
	r.registry, r.sessions = registry.New(), &tunnel.SessionGroup{}
	r.hub = connections.NewPool(connections.Config{Self: "a", Registry: r.registry, AgentTimeout: patience, Peer: func(context.Context, registry.Relay) (*tunnel.Session, error) {
		return nil, fmt.Errorf("there is no other relay")
	}})
	handler := agentlistener.NewHandler(agentlistener.Config{
		RelayID: "a", Agents: r, Pool: r, Observers: []agentlistener.Observer{r}, AgentConfigs: r, Sessions: r.sessions, MaxConnections: 100, MaxConnectionsPerAgent: 100,
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
	if secure != nil {
		r.server.TLS = secure
		r.server.StartTLS()
	} else {
		r.server.Start()
	}
}

// kill has everything end as when the process is killed: connections are just gone.
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
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	r.sessions.Drain(ended)
}

func (r *relay) url() string { return "ws://" + r.addr }

// expect a token of the agent from now on.
func (r *relay) expect(token string) {
	hash, err := natsauth.HashToken(natsauth.TokenAgent, token)
	require.NoError(r.t, err)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hash = hash
}

// configure the agent.
func (r *relay) configure(line string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.line = line
	close(r.told)
	r.told = make(chan struct{})
}

func (r *relay) AgentConfig(int64) ([]byte, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return []byte(r.line), r.told
}

func (r *relay) Ready() bool { return true }

func (r *relay) Changed() <-chan struct{} { return nil }

func (r *relay) Agent(id int64) (agentlistener.Credential, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return agentlistener.Credential{ProjectID: 1, TokenHash: r.hash}, id == agentID
}

func (r *relay) Connected(c registry.Connection) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.made = append(r.made, c)
}

func (r *relay) Disconnected(registry.Connection, time.Time, events.DisconnectReason) {}

// Hold notes the session, too.
func (r *relay) Add(c registry.Connection, s *tunnel.Session) func() {
	leave := r.hub.Add(c, s)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held = append(r.held, s)
	return leave
}

// session is the one of this number, from 1, once there are as many: on a busy machine there may be more by then.
func (r *relay) session(count int) *tunnel.Session {
	r.t.Helper()
	var one *tunnel.Session
	require.Eventually(r.t, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.held) < count {
			return false
		}
		one = r.held[count-1]
		return true
	}, patience, tick)
	return one
}

// connections that were made until now.
func (r *relay) connections() []registry.Connection {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.made
}

// stream opens one to a target, wherever the agent is.
func (r *relay) stream(target string) *connections.Stream {
	r.t.Helper()
	s, err := r.hub.Open(r.t.Context(), &connections.Attempt{}, route.Destination{AgentID: agentID, Target: target})
	require.NoError(r.t, err)
	r.t.Cleanup(func() { s.Reset(tunnel.Cancelled, "the test is over") })
	return s
}

// refused is why a stream to a target is given up by the agent.
func (r *relay) refused(target string) *tunnel.ResetError {
	r.t.Helper()
	var reset *tunnel.ResetError
	require.ErrorAs(r.t, r.stream(target).WaitAccepted(), &reset)
	return reset
}

// echoes says whether a stream comes back from a target.
func echoes(t *testing.T, s *connections.Stream) {
	t.Helper()
	sent := []byte(strings.Repeat("there and back, ", 10_000))
	go func() { _, _ = s.Write(sent) }()
	back := make([]byte, len(sent))
	_, err := io.ReadFull(s, back)
	require.NoError(t, err)
	require.True(t, bytes.Equal(sent, back))
}

// target is a server that sends back what it is sent until its caller ends.
type target struct {
	addr string
	// open connections.
	open atomic.Int64
}

// left waits until there are only as many connections.
func (e *target) left(t *testing.T, count int64) {
	t.Helper()
	require.Eventually(t, func() bool { return e.open.Load() == count }, patience, tick)
}

func newTarget(t *testing.T) *target {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	echo := &target{addr: l.Addr().String()}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			echo.open.Add(1)
			serving.Go(func() {
				defer echo.open.Add(-1)
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
	return echo
}

// configuration that names the target "echo".
func (e *target) configuration(revision int) string {
	return fmt.Sprintf(`{"config_revision":%d,"relay_targets":[{"name":"echo","address":%q},{"name":"outside","address":"outside.example:80"},{"name":"closed","address":"127.0.0.1:1"}]}`, revision, e.addr)
}

// credentials writes the agent's file.
func credentials(t *testing.T, file, token string) string {
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
		ServerURLs: []string{"nats://nats.example:4222"}, Cell: "local", AgentID: agentID, Token: token, CurveSeed: seed.Reveal(), SealerKey: sealer.Public(),
	}))
	return file
}

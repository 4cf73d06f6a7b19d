package agentlistener_test

import (
	"bufio"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/directory"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/relay/agentlistener"
	"lockstep.internal/services/relay/registry"
	"lockstep.internal/services/relay/tunnel"
	"lockstep.internal/tools/testkit/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const timeout = time.Minute

// fakeDependencies implements all dependencies of a Handler.
type fakeDependencies struct {
	mu            sync.Mutex
	ready         bool
	agents        map[int64]directory.Agent
	changed       chan struct{} // of agents
	config        string        // of each agent, as JSON
	configChanged chan struct{}
	pool          map[int64]*tunnel.Session
	events        chan string
	// disconnect is closed to unblock Disconnected.
	disconnect chan struct{}
}

func (d *fakeDependencies) Ready() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ready
}

func (d *fakeDependencies) Agent(id int64) (directory.Agent, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	a, found := d.agents[id]
	return a, found
}

func (d *fakeDependencies) Changed() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.changed
}

func (d *fakeDependencies) change(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
	close(d.changed)
	d.changed = make(chan struct{})
}

func (d *fakeDependencies) AgentConfig(int64) ([]byte, <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return []byte(d.config), d.configChanged
}

func (d *fakeDependencies) Add(c registry.Connection, s *tunnel.Session) func() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pool[c.ID] = s
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.pool, c.ID)
	}
}

func (d *fakeDependencies) Connected(c registry.Connection) {
	d.events <- "connected " + c.PodNamespace + "/" + c.PodName
}

func (d *fakeDependencies) Disconnected(_ registry.Connection, _ time.Time, reason events.DisconnectReason) {
	<-d.disconnect
	d.events <- "disconnected: " + string(reason)
}

// fixture is a Handler with fake dependencies. It knows agent 7; 8 has no token, and 9 is revoked.
type fixture struct {
	*fakeDependencies

	t        *testing.T
	token    string
	sessions tunnel.SessionGroup
	handler  *agentlistener.Handler
	url      string
	refused  []string // limits
	// unblock unblocks Disconnected.
	unblock func()
}

func newFixture(t *testing.T, change ...func(*agentlistener.Config)) *fixture {
	t.Helper()
	f := newBlockedFixture(t, change...)
	f.unblock()
	return f
}

// newBlockedFixture returns a fixture whose Disconnected blocks until unblock is called.
func newBlockedFixture(t *testing.T, change ...func(*agentlistener.Config)) *fixture {
	t.Helper()
	f := &fixture{t: t, token: natsauth.NewToken(natsauth.TokenAgent), fakeDependencies: &fakeDependencies{
		ready: true, changed: make(chan struct{}), configChanged: make(chan struct{}), pool: map[int64]*tunnel.Session{},
		events: make(chan string, 100), config: `{"config_revision":1}`, disconnect: make(chan struct{}),
	}}
	f.unblock = sync.OnceFunc(func() { close(f.disconnect) })
	hash, err := natsauth.HashToken(natsauth.TokenAgent, f.token)
	require.NoError(t, err)
	f.agents = map[int64]directory.Agent{
		7: {ProjectID: 3, TokenHash: hash}, 8: {ProjectID: 3}, 9: {ProjectID: 3, TokenHash: hash, Revoked: true},
	}
	cfg := agentlistener.Config{
		RelayID: "r", Agents: f, Pool: f, Observer: f, AgentConfigs: f, Sessions: &f.sessions,
		MaxConnections: 4, MaxConnectionsPerAgent: 2,
		Refused: func(limit string) { f.refused = append(f.refused, limit) },
		Logger:  slog.New(slog.DiscardHandler), Now: time.Now,
	}
	for _, set := range change {
		set(&cfg)
	}
	f.handler = agentlistener.NewHandler(cfg)
	server := httptest.NewServer(f.handler)
	f.url = strings.Replace(server.URL, "http", "ws", 1)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { f.handler.Run(ctx) })
	t.Cleanup(func() {
		f.unblock()
		cancel()
		running.Wait()
		cancelled, cancel := context.WithCancel(context.Background())
		cancel()
		f.sessions.Drain(cancelled)
		server.Close()
		require.Eventually(t, func() bool { return f.handler.Connections() == 0 }, timeout, time.Millisecond)
	})
	return f
}

func (f *fixture) header(agent int64, token string) http.Header {
	return http.Header{
		"Authorization": {"Bearer " + token}, agentlistener.HeaderAgent: {strconv.FormatInt(agent, 10)},
		agentlistener.HeaderPod: {"shop/agent-0"}, agentlistener.HeaderVersion: {"1.0"},
	}
}

// dial opens a tunnel as the agent does.
func (f *fixture) dial(header http.Header) (*tunnel.Session, error) {
	f.t.Helper()
	d, err := tunnel.Dialer{NoProxy: true}.Dial(f.t.Context(), f.url+"/tunnel", header)
	if err != nil {
		return nil, err
	}
	require.Equal(f.t, "r", d.Header.Get(agentlistener.HeaderRelay))
	id, err := strconv.ParseInt(d.Header.Get(agentlistener.HeaderConnection), 10, 64)
	require.NoError(f.t, err)
	require.Positive(f.t, id)
	// The stream stays open.
	s := tunnel.NewSession(d.Conn, true, d.Encrypted, tunnel.Config{}, func(s *tunnel.Stream) { _ = s.Accept() })
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.Serve() })
	f.t.Cleanup(func() {
		_ = s.Close()
		serving.Wait()
	})
	return s, nil
}

// connect dials, opens the configuration stream and returns its reader.
func (f *fixture) connect() (*tunnel.Session, *bufio.Reader) {
	f.t.Helper()
	s, err := f.dial(f.header(7, f.token))
	require.NoError(f.t, err)
	st, err := s.Open([]byte(agentlistener.ConfigStreamMetadata))
	require.NoError(f.t, err)
	lines := bufio.NewReader(st)
	f.requireConfig(lines, `{"config_revision":1}`)
	f.requireEvent("connected shop/agent-0")
	return s, lines
}

// requireConfig reads the next configuration.
func (f *fixture) requireConfig(lines *bufio.Reader, want string) {
	f.t.Helper()
	line, err := lines.ReadString('\n')
	require.NoError(f.t, err)
	require.JSONEq(f.t, want, line)
}

// requireEvent waits for the next event of the observer.
func (f *fixture) requireEvent(want string) {
	f.t.Helper()
	select {
	case event := <-f.events:
		require.Equal(f.t, want, event)
	case <-time.After(timeout):
		require.FailNow(f.t, "no event", want)
	}
}

// refusedError requires that the relay refused the tunnel with a fault.
func refusedError(t *testing.T, err error) *tunnel.HandshakeError {
	t.Helper()
	var refused *tunnel.HandshakeError
	require.ErrorAs(t, err, &refused)
	var body struct {
		Code string `json:"code"`
	}
	require.NoError(t, json.Unmarshal([]byte(refused.Text), &body))
	require.NotEmpty(t, body.Code)
	return refused
}

func TestAgentAuthentication(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	other := natsauth.NewToken(natsauth.TokenAgent)
	header := func(name string, values ...string) http.Header {
		h := f.header(7, f.token)
		if h[name] = values; len(values) == 0 {
			delete(h, name)
		}
		return h
	}
	for name, c := range map[string]struct {
		header http.Header
		status int
	}{
		"another token":               {f.header(7, other), 401},
		"no token":                    {header("Authorization"), 401},
		"an empty token":              {f.header(7, ""), 401},
		"a token of another kind":     {f.header(7, "lsp_"+strings.TrimPrefix(f.token, "lsa_")), 401},
		"token with an extra byte":    {f.header(7, f.token+"x"), 401},
		"another agent":               {f.header(8, f.token), 401},
		"unknown agent":               {f.header(10, f.token), 401},
		"no agent":                    {header(agentlistener.HeaderAgent), 401},
		"invalid agent id":            {header(agentlistener.HeaderAgent, "-7"), 401},
		"revoked":                     {f.header(9, f.token), 403},
		"revoked, with another token": {f.header(9, other), 401},
		"agent without a token":       {f.header(8, other), 401},
	} {
		_, err := f.dial(c.header)
		refused := refusedError(t, err)
		require.Equal(t, c.status, refused.Status, name)
		require.Zero(t, refused.RetryAfter, name)
		require.NotContains(t, refused.Text, strings.TrimPrefix(f.token, "lsa_"), name)
	}
	f.change(func() { f.ready = false })
	_, err := f.dial(f.header(7, f.token))
	refused := refusedError(t, err)
	require.Equal(t, http.StatusServiceUnavailable, refused.Status)
	require.Positive(t, refused.RetryAfter)
	require.Zero(t, f.handler.Connections())
}

func TestAgentReceivesConfigurationAndChanges(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s, lines := f.connect()
	require.Len(t, f.pool, 1)
	f.mu.Lock()
	before := f.configChanged
	f.config, f.configChanged = `{"config_revision":2}`, make(chan struct{})
	f.mu.Unlock()
	close(before)
	f.requireConfig(lines, `{"config_revision":2}`)
	require.NoError(t, s.Close())
	f.requireEvent("disconnected: lost")
	require.Eventually(t, func() bool { return f.handler.Connections() == 0 }, timeout, time.Millisecond)
	f.mu.Lock()
	defer f.mu.Unlock()
	require.Empty(t, f.pool)
}

// A tunnel without a configuration stream is closed after ConfigStreamTimeout and is never reported as connected.
func TestTunnelWithoutConfigStreamIsClosed(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(cfg *agentlistener.Config) { cfg.ConfigStreamTimeout = 50 * time.Millisecond })
	silent, err := f.dial(f.header(7, f.token))
	require.NoError(t, err)
	other, err := f.dial(f.header(7, f.token))
	require.NoError(t, err)
	if wrong, err := other.Open([]byte("something else")); err == nil {
		_, err = wrong.Read(make([]byte, 1))
		require.Error(t, err)
	}
	<-silent.Done()
	<-other.Done()
	require.Eventually(t, func() bool { return f.handler.Connections() == 0 }, timeout, time.Millisecond)
	require.Empty(t, f.events)
}

// Agents are untrusted: an agent may open one stream.
func TestAgentOpensOneStream(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s, _ := f.connect()
	for range 20 {
		for _, metadata := range []string{
			agentlistener.ConfigStreamMetadata, "", `{"agent_id":8,"connection_id":1,"target":"kubernetes"}`,
		} {
			st, err := s.Open([]byte(metadata))
			require.NoError(t, err)
			_, err = st.Read(make([]byte, 1))
			var reset *tunnel.ResetError
			require.ErrorAs(t, err, &reset)
		}
	}
	select {
	case <-s.Done():
		require.Fail(t, "refused streams must not end the session")
	default:
	}
}

func TestRevokedAgentIsDisconnectedAtOnce(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*directory.Agent){
		"revoked":       func(a *directory.Agent) { a.Revoked = true },
		"another token": func(a *directory.Agent) { a.TokenHash[0]++ },
		"no token":      func(a *directory.Agent) { a.TokenHash = natsauth.TokenHash{} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			s, _ := f.connect()
			f.change(func() {}) // another change
			f.change(func() {
				a := f.agents[7]
				change(&a)
				f.agents[7] = a
			})
			<-s.Done()
			f.requireEvent("disconnected: revoked")
			_, err := f.dial(f.header(7, f.token))
			require.Error(t, err)
		})
	}
}

func TestConnectionEndsWithItsToken(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s, _ := f.connect()
	token := natsauth.NewToken(natsauth.TokenAgent)
	hash, err := natsauth.HashToken(natsauth.TokenAgent, token)
	require.NoError(t, err)
	end := time.Now().Add(time.Second)
	f.change(func() {
		a := f.agents[7]
		a.TokenHash, a.PreviousTokenHash, a.PreviousTokenValidUntil = hash, a.TokenHash, end
		f.agents[7] = a
	})
	next, err := f.dial(f.header(7, token))
	require.NoError(t, err)
	select {
	case <-s.Done():
	case <-next.Done():
		require.FailNow(t, "the connection of the new token ended")
	}
	require.False(t, time.Now().Before(end), "both tokens are valid until then")
	f.requireEvent("disconnected: revoked")
	_, err = f.dial(f.header(7, f.token))
	require.Equal(t, http.StatusUnauthorized, refusedError(t, err).Status)
	require.Eventually(t, func() bool { return f.handler.Connections() == 1 }, timeout, time.Millisecond)
	_, err = f.dial(f.header(7, token))
	require.NoError(t, err)
}

func TestDrainingAgentCanBeRevoked(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s, _ := f.connect()
	f.mu.Lock()
	var relaySession *tunnel.Session
	for _, s := range f.pool {
		relaySession = s
	}
	f.mu.Unlock()
	open, err := relaySession.Open([]byte("head"))
	require.NoError(t, err)
	require.NoError(t, open.WaitAccepted())
	s.Drain()
	f.requireEvent("disconnected: agent_left")
	require.NoError(t, open.Err())
	f.change(func() { f.agents[7] = directory.Agent{} })
	<-relaySession.Done()
	<-s.Done()
	_, err = open.Read(make([]byte, 1))
	require.ErrorIs(t, err, tunnel.ErrClosed)
}

func TestConnectionsAreLimited(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.change(func() { f.agents[10], f.agents[11] = f.agents[7], f.agents[7] })
	var open []*tunnel.Session
	for _, id := range []int64{7, 7, 10, 11} {
		s, err := f.dial(f.header(id, f.token))
		require.NoError(t, err)
		if len(open) > 0 { // the first one has no configuration stream, and is counted all the same
			_, err := s.Open([]byte(agentlistener.ConfigStreamMetadata))
			require.NoError(t, err)
		}
		open = append(open, s)
		if id == 7 && len(open) == 2 {
			_, err := f.dial(f.header(7, f.token))
			require.Contains(t, refusedError(t, err).Text, "connections to this relay, the maximum")
		}
	}
	_, err := f.dial(f.header(10, f.token))
	require.Contains(t, refusedError(t, err).Text, "connections of agents, its maximum")
	require.Equal(t, []string{"agent_connections", "connections"}, f.refused)
	require.Equal(t, http.StatusServiceUnavailable, refusedError(t, err).Status)
	require.NoError(t, open[0].Close())
	require.Eventually(t, func() bool {
		_, err := f.dial(f.header(7, f.token))
		return err == nil
	}, timeout, 10*time.Millisecond, "a connection can be made again")
}

func TestDrainReportsDisconnectsAndRefusesAgents(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s, _ := f.connect()
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		f.sessions.Drain(t.Context())
	}()
	<-s.PeerDraining()
	f.requireEvent("disconnected: relay_left")
	_, err := f.dial(f.header(7, f.token))
	require.Equal(t, http.StatusServiceUnavailable, refusedError(t, err).Status)
	<-drained
	<-s.Done()
}

// The observer may stop after Drain returns, so Drain waits until every disconnection was reported.
func TestDrainWaitsForObserver(t *testing.T) {
	t.Parallel()
	f := newBlockedFixture(t)
	s, _ := f.connect()
	s2, _ := f.connect()
	f.sessions.Drain(t.Context())
	<-s.Done()
	<-s2.Done()
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	f.handler.Drain(cancelled)
	require.Empty(t, f.events)
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		f.handler.Drain(t.Context())
	}()
	select {
	case <-drained:
		require.Fail(t, "no disconnection has been reported yet")
	case <-time.After(50 * time.Millisecond):
	}
	f.unblock()
	<-drained
	require.Len(t, f.events, 2)
	f.handler.Drain(t.Context())
	require.Zero(t, f.handler.Connections())
}

func TestBrowserRequestsAreRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	h := f.header(7, f.token)
	h.Set("Origin", "https://evil.example")
	_, err := f.dial(h)
	var refused *tunnel.HandshakeError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, http.StatusForbidden, refused.Status)
	require.Zero(t, f.handler.Connections())
}

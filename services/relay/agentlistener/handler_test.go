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
	"go.uber.org/goleak"

	"lockstep.internal/libs/natsauth"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/relay/agentlistener"
	"lockstep.internal/services/relay/registry"
	"lockstep.internal/services/relay/tunnel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const soon = time.Minute

// world is all that an intake asks and tells.
type world struct {
	mu      sync.Mutex
	ready   bool
	known   map[int64]agentlistener.Credential
	changed chan struct{}
	line    string
	another chan struct{}
	held    map[int64]*tunnel.Session
	told    chan string
	// slow is how long it takes to be told of an end: until it is closed.
	slow chan struct{}
}

func (w *world) Ready() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ready
}

func (w *world) Agent(id int64) (agentlistener.Credential, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c, known := w.known[id]
	return c, known
}

func (w *world) Changed() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.changed
}

func (w *world) change(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *world) AgentConfig(int64) ([]byte, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return []byte(w.line), w.another
}

func (w *world) Add(c registry.Connection, s *tunnel.Session) func() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held[c.ID] = s
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.held, c.ID)
	}
}

func (w *world) Connected(c registry.Connection) {
	w.told <- "connected " + c.PodNamespace + "/" + c.PodName
}

func (w *world) Disconnected(_ registry.Connection, _ time.Time, why events.DisconnectReason) {
	<-w.slow
	w.told <- "disconnected: " + string(why)
}

type bed struct {
	*world

	t        *testing.T
	token    string
	sessions tunnel.SessionGroup
	handler  *agentlistener.Handler
	url      string
	// quick has everything told at once from then on.
	quick func()
}

func setup(t *testing.T, change ...func(*agentlistener.Config)) *bed {
	t.Helper()
	b := setupSlow(t, change...)
	b.quick()
	return b
}

// setupSlow is a bed where no end is told until that is quick.
func setupSlow(t *testing.T, change ...func(*agentlistener.Config)) *bed {
	t.Helper()
	b := &bed{t: t, token: natsauth.NewToken(natsauth.TokenAgent), world: &world{
		ready: true, changed: make(chan struct{}), another: make(chan struct{}), held: map[int64]*tunnel.Session{}, told: make(chan string, 100), line: `{"config_revision":1}`,
		slow: make(chan struct{}),
	}}
	b.quick = sync.OnceFunc(func() { close(b.slow) })
	hash, err := natsauth.HashToken(natsauth.TokenAgent, b.token)
	require.NoError(t, err)
	b.known = map[int64]agentlistener.Credential{7: {ProjectID: 3, TokenHash: hash}, 8: {ProjectID: 3}, 9: {ProjectID: 3, TokenHash: hash, Revoked: true}}
	cfg := agentlistener.Config{
		RelayID: "r", Agents: b, Pool: b, Observers: []agentlistener.Observer{b}, AgentConfigs: b, Sessions: &b.sessions, MaxConnections: 4, MaxConnectionsPerAgent: 2,
		Logger: slog.New(slog.DiscardHandler), Now: time.Now,
	}
	for _, f := range change {
		f(&cfg)
	}
	b.handler = agentlistener.NewHandler(cfg)
	server := httptest.NewServer(b.handler)
	b.url = strings.Replace(server.URL, "http", "ws", 1)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { b.handler.Run(ctx) })
	t.Cleanup(func() {
		b.quick()
		cancel()
		running.Wait()
		ended, end := context.WithCancel(context.Background())
		end()
		b.sessions.Drain(ended)
		server.Close()
		require.Eventually(t, func() bool { return b.handler.Connections() == 0 }, soon, time.Millisecond)
	})
	return b
}

func (b *bed) header(agent int64, token string) http.Header {
	return http.Header{"Authorization": {"Bearer " + token}, agentlistener.HeaderAgent: {strconv.FormatInt(agent, 10)}, agentlistener.HeaderPod: {"shop/agent-0"}, agentlistener.HeaderVersion: {"1.0"}}
}

// dial opens a tunnel as the agent does.
func (b *bed) dial(header http.Header) (*tunnel.Session, error) {
	b.t.Helper()
	d, err := tunnel.Dialer{NoProxy: true}.Dial(b.t.Context(), b.url+"/tunnel", header)
	if err != nil {
		return nil, err
	}
	require.Equal(b.t, "r", d.Header.Get(agentlistener.HeaderRelay))
	id, err := strconv.ParseInt(d.Header.Get(agentlistener.HeaderConnection), 10, 64)
	require.NoError(b.t, err)
	require.Positive(b.t, id)
	s := tunnel.NewSession(d.Conn, true, d.Encrypted, tunnel.Config{}, func(s *tunnel.Stream) { _ = s.Accept() }) // and keeps it
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.Serve() })
	b.t.Cleanup(func() {
		_ = s.Close()
		serving.Wait()
	})
	return s, nil
}

// connect has an agent say hello, and returns what it hears.
func (b *bed) connect() (*tunnel.Session, *bufio.Reader) {
	b.t.Helper()
	s, err := b.dial(b.header(7, b.token))
	require.NoError(b.t, err)
	st, err := s.Open([]byte(agentlistener.ConfigStreamHead))
	require.NoError(b.t, err)
	lines := bufio.NewReader(st)
	b.hears(lines, `{"config_revision":1}`)
	b.says("connected shop/agent-0")
	return s, lines
}

func (b *bed) hears(lines *bufio.Reader, want string) {
	b.t.Helper()
	line, err := lines.ReadString('\n')
	require.NoError(b.t, err)
	require.JSONEq(b.t, want, line)
}

func (b *bed) says(want string) {
	b.t.Helper()
	select {
	case said := <-b.told:
		require.Equal(b.t, want, said)
	case <-time.After(soon):
		require.FailNow(b.t, "nothing is told", want)
	}
}

func refusal(t *testing.T, err error) *tunnel.RefusedError {
	t.Helper()
	var refused *tunnel.RefusedError
	require.ErrorAs(t, err, &refused)
	var said struct {
		Code string `json:"code"`
	}
	require.NoError(t, json.Unmarshal([]byte(refused.Text), &said))
	require.NotEmpty(t, said.Code)
	return refused
}

func TestWhoIsLetIn(t *testing.T) {
	t.Parallel()
	b := setup(t)
	other := natsauth.NewToken(natsauth.TokenAgent)
	header := func(name string, values ...string) http.Header {
		h := b.header(7, b.token)
		if h[name] = values; len(values) == 0 {
			delete(h, name)
		}
		return h
	}
	for name, c := range map[string]struct {
		header http.Header
		status int
	}{
		"another token":                {b.header(7, other), 401},
		"no token":                     {header("Authorization"), 401},
		"an empty token":               {b.header(7, ""), 401},
		"a token of another kind":      {b.header(7, "lsp_"+strings.TrimPrefix(b.token, "lsa_")), 401},
		"the token with more":          {b.header(7, b.token+"x"), 401},
		"another agent":                {b.header(8, b.token), 401},
		"nobody":                       {b.header(10, b.token), 401},
		"no agent":                     {header(agentlistener.HeaderAgent), 401},
		"an agent that is none":        {header(agentlistener.HeaderAgent, "-7"), 401},
		"revoked":                      {b.header(9, b.token), 403},
		"revoked, with another token":  {b.header(9, other), 401},
		"who has no hash and no token": {b.header(8, other), 401},
	} {
		_, err := b.dial(c.header)
		refused := refusal(t, err)
		require.Equal(t, c.status, refused.Status, name)
		require.Zero(t, refused.RetryAfter, name)
		require.NotContains(t, refused.Text, strings.TrimPrefix(b.token, "lsa_"), name)
	}
	b.change(func() { b.ready = false })
	_, err := b.dial(b.header(7, b.token))
	refused := refusal(t, err)
	require.Equal(t, http.StatusServiceUnavailable, refused.Status)
	require.Positive(t, refused.RetryAfter)
	require.Zero(t, b.handler.Connections())
}

func TestAnAgentHearsItsConfigurationAndEveryChange(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s, lines := b.connect()
	require.Len(t, b.held, 1)
	b.mu.Lock()
	before := b.another
	b.line, b.another = `{"config_revision":2}`, make(chan struct{})
	b.mu.Unlock()
	close(before)
	b.hears(lines, `{"config_revision":2}`)
	require.NoError(t, s.Close())
	b.says("disconnected: lost")
	require.Eventually(t, func() bool { return b.handler.Connections() == 0 }, soon, time.Millisecond)
	b.mu.Lock()
	defer b.mu.Unlock()
	require.Empty(t, b.held)
}

// Who has a token and says nothing takes nobody's place: it is gone after a while, and was never connected.
func TestWhoDoesNotSayHelloIsClosed(t *testing.T) {
	t.Parallel()
	b := setup(t, func(cfg *agentlistener.Config) { cfg.HelloTimeout = 50 * time.Millisecond })
	silent, err := b.dial(b.header(7, b.token))
	require.NoError(t, err)
	other, err := b.dial(b.header(7, b.token))
	require.NoError(t, err)
	if wrong, err := other.Open([]byte("something else")); err == nil {
		_, err = wrong.Read(make([]byte, 1))
		require.Error(t, err)
	}
	<-silent.Done()
	<-other.Done()
	require.Eventually(t, func() bool { return b.handler.Connections() == 0 }, soon, time.Millisecond)
	require.Empty(t, b.told)
}

// An agent is somebody else's: it opens one stream, of which the relay keeps at most a window.
func TestAnAgentOpensOneStream(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s, _ := b.connect()
	for range 20 {
		for _, head := range []string{agentlistener.ConfigStreamHead, "", `{"agent_id":8,"connection_id":1,"target":"kubernetes"}`} {
			st, err := s.Open([]byte(head))
			require.NoError(t, err)
			_, err = st.Read(make([]byte, 1))
			var reset *tunnel.ResetError
			require.ErrorAs(t, err, &reset)
		}
	}
	select {
	case <-s.Done():
		require.Fail(t, "it is refused, and goes on")
	default:
	}
}

func TestWhoMayNotBeConnectedAnyMoreIsCutAtOnce(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(c *agentlistener.Credential, known map[int64]agentlistener.Credential){
		"revoked":       func(c *agentlistener.Credential, _ map[int64]agentlistener.Credential) { c.Revoked = true },
		"another token": func(c *agentlistener.Credential, _ map[int64]agentlistener.Credential) { c.TokenHash[0]++ },
		"no token": func(c *agentlistener.Credential, _ map[int64]agentlistener.Credential) {
			c.TokenHash = natsauth.TokenHash{}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			s, _ := b.connect()
			b.change(func() {}) // something else
			b.change(func() {
				c := b.known[7]
				change(&c, b.known)
				b.known[7] = c
			})
			<-s.Done()
			b.says("disconnected: revoked")
			_, err := b.dial(b.header(7, b.token))
			require.Error(t, err)
		})
	}
}

func TestWhoIsRevokedWhileItLeavesIsCut(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s, _ := b.connect()
	b.mu.Lock()
	var relays *tunnel.Session
	for _, one := range b.held {
		relays = one
	}
	b.mu.Unlock()
	open, err := relays.Open([]byte("goes on"))
	require.NoError(t, err)
	require.NoError(t, open.WaitAccepted())
	s.Drain()
	b.says("disconnected: agent_left")
	require.NoError(t, open.Err())
	b.change(func() { b.known[7] = agentlistener.Credential{} })
	<-relays.Done()
	<-s.Done()
	_, err = open.Read(make([]byte, 1))
	require.ErrorIs(t, err, tunnel.ErrClosed)
}

func TestConnectionsAreLimited(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.change(func() { b.known[10], b.known[11] = b.known[7], b.known[7] })
	var open []*tunnel.Session
	for _, id := range []int64{7, 7, 10, 11} {
		s, err := b.dial(b.header(id, b.token))
		require.NoError(t, err)
		if len(open) > 0 { // the first one has not said hello, and counts
			_, err := s.Open([]byte(agentlistener.ConfigStreamHead))
			require.NoError(t, err)
		}
		open = append(open, s)
		if id == 7 && len(open) == 2 {
			_, err := b.dial(b.header(7, b.token))
			require.Contains(t, refusal(t, err).Text, "connections to this relay, the maximum")
		}
	}
	_, err := b.dial(b.header(10, b.token))
	require.Contains(t, refusal(t, err).Text, "connections of agents, its maximum")
	require.Equal(t, http.StatusServiceUnavailable, refusal(t, err).Status)
	require.NoError(t, open[0].Close())
	require.Eventually(t, func() bool {
		_, err := b.dial(b.header(7, b.token))
		return err == nil
	}, soon, 10*time.Millisecond, "there is room again")
}

func TestADrainIsToldAndTakesNobody(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s, _ := b.connect()
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		b.sessions.Drain(t.Context())
	}()
	<-s.PeerDraining()
	b.says("disconnected: relay_left")
	_, err := b.dial(b.header(7, b.token))
	require.Equal(t, http.StatusServiceUnavailable, refusal(t, err).Status)
	<-drained
	<-s.Done()
}

// Who passes on what is told may end once the drain has: a session ends before that has been told.
func TestADrainEndsWhenItsLastEndIsTold(t *testing.T) {
	t.Parallel()
	b := setupSlow(t)
	s, _ := b.connect()
	s2, _ := b.connect()
	b.sessions.Drain(t.Context())
	<-s.Done()
	<-s2.Done()
	given, giveUp := context.WithCancel(t.Context())
	giveUp()
	b.handler.Drain(given)
	require.Empty(t, b.told)
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		b.handler.Drain(t.Context())
	}()
	select {
	case <-drained:
		require.Fail(t, "nothing has been told yet")
	case <-time.After(50 * time.Millisecond):
	}
	b.quick()
	<-drained
	require.Len(t, b.told, 2)
	b.handler.Drain(t.Context())
	require.Zero(t, b.handler.Connections())
}

func TestABrowserMakesNoTunnel(t *testing.T) {
	t.Parallel()
	b := setup(t)
	h := b.header(7, b.token)
	h.Set("Origin", "https://evil.example")
	_, err := b.dial(h)
	var refused *tunnel.RefusedError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, http.StatusForbidden, refused.Status)
	require.Zero(t, b.handler.Connections())
}

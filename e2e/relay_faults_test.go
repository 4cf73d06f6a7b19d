package e2e_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"lockstep.internal/schemas/gen/events"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/services/relay"
	"lockstep.internal/services/relay/agent"
	"lockstep.internal/tools/client"
	"lockstep.internal/tools/stack"
)

// TestRelayFaults has two relays, and two replicas of an agent, of which the relays' programs are parted from each other and from NATS, and killed under load.
func TestRelayFaults(t *testing.T) {
	t.Parallel()
	f := &relayFaults{shop: newCounter(t)}
	for range 2 {
		f.gates = append(f.gates, newPassage(t))
	}
	var mu sync.Mutex
	begun := 0
	f.system = startWith(t, stack.Options{Programs: buildServices(t), Relays: 2, RelayAgents: 2, Configure: func(_ string, config any) {
		mu.Lock()
		defer mu.Unlock()
		switch cfg := config.(type) {
		case *agent.Config:
			cfg.Targets.AllowedAddresses = append(cfg.Targets.AllowedAddresses, "127.0.0.1:*")
			cfg.Relay.RetryMin, cfg.Relay.RetryMax = 50*time.Millisecond, time.Second
			if len(cfg.Relay.URLs) > 1 && !f.both {
				cfg.Relay.URLs = cfg.Relay.URLs[:1]
			}
		case *relay.Config:
			cfg.External.Patience = patience
			if begun < len(f.gates) { // the first start of each; one that starts again is not parted
				cfg.Internal.URL = "wss://" + f.gates[begun].addr
				begun++
			}
		}
	}})
	for i, g := range f.gates {
		g.leadTo(f.Address(stack.RelayOf(i+1), stack.ListenerInternal))
	}
	mu.Lock()
	f.both = true // who comes from now on
	mu.Unlock()
	f.caller(t)
	f.commandLine().ok("agent", "configure", "local", "--relay-target", "shop="+f.shop.addr)
	f.eventually("/begin")

	f.partedRelays()
	f.awayNATS()
	f.killedRelay()
}

type relayFaults struct {
	*system

	shop  *counter
	gates []*passage
	both  bool

	client *http.Client
	api    *client.API
	token  string
}

// caller is a developer.
func (f *relayFaults) caller(t *testing.T) {
	t.Helper()
	_, cli := f.member("faults-developer", f.project, statev1.Role_ROLE_DEVELOPER)
	file := ""
	for _, v := range cli.env {
		if len(v) > 20 && v[:20] == "LOCKSTEP_TOKEN_FILE=" {
			file = v[20:]
		}
	}
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	f.api = client.New(&http.Client{Transport: transport}, f.APIURL(), string(raw))
	pem, err := os.ReadFile(f.RelayCAFile())
	require.NoError(t, err)
	trusted := x509.NewCertPool()
	require.True(t, trusted.AppendCertsFromPEM(pem))
	calling := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted, MinVersion: tls.VersionTLS12}}
	t.Cleanup(calling.CloseIdleConnections)
	f.client = &http.Client{Transport: calling}
}

// renew gives the caller an access token: one is good for minutes, which this test may take on a busy machine.
func (f *relayFaults) renew() {
	f.t.Helper()
	made, err := f.api.AccessToken(f.t.Context(), client.RelayAudience)
	require.NoError(f.t, err)
	f.token = made.Value
	f.secrets.add(f.token)
}

// ask posts to the shop through the nth relay. The answer is the path; an error is that there was no good one.
func (f *relayFaults) ask(ctx context.Context, n int, method, path string) error {
	request, err := http.NewRequestWithContext(ctx, method, fmt.Sprintf("%s/agents/%d/http/shop%s", f.RelayURLOf(stack.RelayOf(n)), f.agent, path), http.NoBody)
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+f.token)
	response, err := f.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%d: %s", response.StatusCode, body)
	}
	if string(body) != path {
		return &wrongAnswerError{path, string(body)}
	}
	return nil
}

// wrongAnswerError is what must never be.
type wrongAnswerError struct{ asked, got string }

func (e *wrongAnswerError) Error() string { return fmt.Sprintf("asked for %s, got %s", e.asked, e.got) }

// eventually asks both relays until each answers.
func (f *relayFaults) eventually(path string) {
	f.t.Helper()
	f.renew()
	for n := 1; n <= 2; n++ {
		require.Eventually(f.t, func() bool { return f.ask(f.t.Context(), n, http.MethodGet, fmt.Sprintf("%s/%d", path, n)) == nil }, patience, 100*time.Millisecond)
	}
}

func (f *relayFaults) asking(n int, path string) <-chan error {
	answered := make(chan error, 1)
	go func() { answered <- f.ask(f.t.Context(), n, http.MethodGet, path) }()
	return answered
}

// waits until a relay has begun a request, which has no answer.
func (f *relayFaults) waits(answered <-chan error) {
	f.t.Helper()
	for i := range 20 {
		require.NoError(f.t, f.ask(f.t.Context(), 1, http.MethodGet, fmt.Sprintf("/meanwhile/%d", i)))
	}
	require.Empty(f.t, answered)
}

// partedRelays: both replicas are at the first relay, and the second one does not reach that.
func (f *relayFaults) partedRelays() {
	t := f.t
	f.renew()
	f.gates[0].shut()
	waiting := f.asking(2, "/until/whole")
	f.waits(waiting)
	f.gates[0].leadTo(f.Address(stack.Relay, stack.ListenerInternal))
	require.NoError(t, <-waiting)

	f.gates[0].shut()
	waiting = f.asking(2, "/until/an/agent")
	f.waits(waiting)
	_, err := f.AddReplica(t.Context(), stack.RelayAgentOf(f.Agents()[0].Name)) // with both
	require.NoError(t, err)
	require.NoError(t, <-waiting)
	f.gates[0].leadTo(f.Address(stack.Relay, stack.ListenerInternal))
}

// awayNATS: what is connected is reached, through either relay.
func (f *relayFaults) awayNATS() {
	t := f.t
	f.renew()
	f.NATS().Down()
	for i := range 50 {
		for n := 1; n <= 2; n++ {
			require.NoError(t, f.ask(t.Context(), n, http.MethodPost, fmt.Sprintf("/without/nats/%d/%d", n, i)))
		}
	}
	require.NoError(t, f.NATS().Restart())
	f.eventually("/with/nats")
	awaitCluster(t, "all that passed is in the audit", func(context.Context) (bool, error) {
		seen := map[string]int{}
		for _, r := range f.requests(f.agent) {
			if r.Phase == events.RequestPhaseEnded {
				seen[r.RequestID]++
				seen[r.Path]++
			}
		}
		for i := range 50 {
			for n := 1; n <= 2; n++ {
				if seen[fmt.Sprintf("/without/nats/%d/%d", n, i)] != 1 {
					return false, nil
				}
			}
		}
		return true, nil
	})
}

// killedRelay: callers that ask again are answered by the other one, and what was asked once was done once.
func (f *relayFaults) killedRelay() {
	t := f.t
	const callers, answersEach = 8, 150
	f.renew()
	half, killed := make(chan struct{}, callers), make(chan struct{})
	group, ctx := errgroup.WithContext(t.Context())
	for c := range callers {
		group.Go(func() error {
			for i := range answersEach {
				if i == answersEach/3 {
					half <- struct{}{}
				}
				if i == 2*answersEach/3 {
					select {
					case <-killed:
					case <-ctx.Done():
					}
				}
				for attempt := 0; ; attempt++ {
					err := f.ask(ctx, 1+(c+attempt)%2, http.MethodPost, fmt.Sprintf("/order/%d/%d/%d", c, i, attempt))
					if err == nil {
						break
					}
					if _, wrong := err.(*wrongAnswerError); wrong || ctx.Err() != nil { //nolint:errorlint // it is returned as it is
						return err
					}
				}
			}
			return nil
		})
	}
	for range callers {
		<-half
	}
	require.NoError(t, f.Kill(stack.Relay))
	close(killed)
	require.NoError(t, group.Wait())
	require.Empty(t, f.shop.twice(), "nothing is done twice that was asked once")
	require.NoError(t, f.StartService(t.Context(), stack.Relay))
	f.eventually("/again")
	lost := map[string]int{}
	awaitCluster(t, "who was connected to it is lost", func(context.Context) (bool, error) {
		clear(lost)
		for _, d := range ofAgent[events.AgentDisconnected](f.system, f.agent, events.TypeAgentDisconnected) {
			lost[d.ConnectionID]++
		}
		return len(lost) >= 3, nil
	})
	for id, times := range lost {
		require.Equal(t, 1, times, id)
	}
}

// counter is a shop that answers with the path, and counts what it was asked.
type counter struct {
	addr string

	mu   sync.Mutex
	seen map[string]int
}

func newCounter(t *testing.T) *counter {
	t.Helper()
	c := &counter{seen: map[string]int{}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		if r.Method == http.MethodPost { // what only reads may be asked for again
			c.seen[r.URL.Path]++
		}
		c.mu.Unlock()
		_, _ = io.WriteString(w, r.URL.Path)
	}))
	t.Cleanup(server.Close)
	c.addr = server.Listener.Addr().String()
	return c
}

func (c *counter) twice() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var found []string
	for path, times := range c.seen {
		if times > 1 {
			found = append(found, path)
		}
	}
	return found
}

// passage is the way to a listener, which can be shut.
type passage struct {
	addr string

	mu    sync.Mutex
	to    string
	conns map[net.Conn]struct{}
}

func newPassage(t *testing.T) *passage {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	g := &passage{addr: listener.Addr().String(), conns: map[net.Conn]struct{}{}}
	var passing sync.WaitGroup
	passing.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			passing.Go(func() { g.pass(conn) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		g.shut()
		passing.Wait()
	})
	return g
}

func (g *passage) pass(near net.Conn) {
	defer near.Close()
	g.mu.Lock()
	to := g.to
	g.mu.Unlock()
	if to == "" {
		return
	}
	far, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer far.Close()
	g.mu.Lock()
	open := g.to == to
	g.conns[near], g.conns[far] = struct{}{}, struct{}{}
	g.mu.Unlock()
	if open {
		var other sync.WaitGroup
		other.Go(func() {
			_, _ = io.Copy(far, near)
			_ = far.Close()
		})
		_, _ = io.Copy(near, far)
		_ = near.Close()
		other.Wait()
	}
	g.mu.Lock()
	delete(g.conns, near)
	delete(g.conns, far)
	g.mu.Unlock()
}

func (g *passage) leadTo(addr string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.to = addr
}

// shut breaks what passes, and lets nothing more pass.
func (g *passage) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.to = ""
	for conn := range g.conns {
		_ = conn.Close()
	}
}

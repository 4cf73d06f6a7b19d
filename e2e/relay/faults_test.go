package relay_test

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

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/schemas/gen/events"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/services/relay"
	"lockstep.internal/services/relay/agent"
	"lockstep.internal/tools/client"
	"lockstep.internal/tools/stack"
)

// TestFaults runs two relays and two replicas of an agent. It cuts the relays off from each other
// and from NATS, and kills one under load.
func TestFaults(t *testing.T) {
	t.Parallel()
	f := &relayFaults{target: newCountingTarget(t)}
	for range 2 {
		f.links = append(f.links, newLinkProxy(t))
	}
	var mu sync.Mutex
	begun := 0
	f.System = fixture.StartWith(
		t,
		stack.Options{Programs: fixture.BuildServices(t), Relays: 2, RelayAgents: 2, Configure: func(_ string, config any) {
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
				cfg.External.AgentTimeout = fixture.Timeout
				if begun < len(f.links) { // the first start of each; one that starts again is not parted
					cfg.Internal.URL = "wss://" + f.links[begun].addr
					begun++
				}
			}
		}},
	)
	for i, g := range f.links {
		g.leadTo(f.Address(stack.RelayOf(i+1), stack.ListenerInternal))
	}
	mu.Lock()
	f.both = true // who comes from now on
	mu.Unlock()
	f.caller(t)
	f.CLI().OK("agent", "configure", "local", "--relay-target", "shop="+f.target.addr)
	f.eventually("/begin")

	f.partitionedRelays()
	f.stoppedNATS()
	f.killedRelay()
}

type relayFaults struct {
	*fixture.System

	target *countingTarget
	links  []*linkProxy
	both   bool

	client *http.Client
	api    *client.API
	token  string
}

// caller is a developer who calls through the relays.
func (f *relayFaults) caller(t testing.TB) {
	t.Helper()
	_, cli := member(f.System, "faults-developer", f.ProjectID, statev1.Role_ROLE_DEVELOPER)
	file := ""
	for _, v := range cli.Env {
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

// renew gets a new access token: one is valid for minutes, which is too short on a busy machine.
func (f *relayFaults) renew() {
	f.T.Helper()
	made, err := f.api.AccessToken(f.T.Context(), client.RelayAudience)
	require.NoError(f.T, err)
	f.token = made.Value
	f.Secrets.Add(f.token)
}

// ask posts to the target through relay n. The answer is the path; without a good answer it is an
// error.
func (f *relayFaults) ask(ctx context.Context, n int, method, path string) error {
	request, err := http.NewRequestWithContext(
		ctx,
		method,
		fmt.Sprintf("%s/agents/%d/http/shop%s", f.RelayURLOf(stack.RelayOf(n)), f.AgentID, path),
		http.NoBody,
	)
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

// wrongAnswerError is an answer that must never occur.
type wrongAnswerError struct{ asked, got string }

func (e *wrongAnswerError) Error() string { return fmt.Sprintf("asked for %s, got %s", e.asked, e.got) }

// eventually asks each relay until it answers.
func (f *relayFaults) eventually(path string) {
	f.T.Helper()
	f.renew()
	for n := 1; n <= 2; n++ {
		require.Eventually(
			f.T,
			func() bool { return f.ask(f.T.Context(), n, http.MethodGet, fmt.Sprintf("%s/%d", path, n)) == nil },
			fixture.Timeout,
			100*time.Millisecond,
		)
	}
}

func (f *relayFaults) asking(n int, path string) <-chan error {
	answered := make(chan error, 1)
	go func() { answered <- f.ask(f.T.Context(), n, http.MethodGet, path) }()
	return answered
}

// awaitPending waits until a relay reports a request that has no answer yet.
func (f *relayFaults) awaitPending(answered <-chan error) {
	f.T.Helper()
	for i := range 20 {
		require.NoError(f.T, f.ask(f.T.Context(), 1, http.MethodGet, fmt.Sprintf("/meanwhile/%d", i)))
	}
	require.Empty(f.T, answered)
}

// partitionedRelays connects both replicas to the first relay, which the second relay cannot reach.
func (f *relayFaults) partitionedRelays() {
	t := f.T
	f.renew()
	f.links[0].shut()
	waiting := f.asking(2, "/until/whole")
	f.awaitPending(waiting)
	f.links[0].leadTo(f.Address(stack.Relay, stack.ListenerInternal))
	require.NoError(t, <-waiting)

	f.links[0].shut()
	waiting = f.asking(2, "/until/an/agent")
	f.awaitPending(waiting)
	_, err := f.AddReplica(t.Context(), stack.RelayAgentOf(f.Agents()[0].Name)) // with both
	require.NoError(t, err)
	require.NoError(t, <-waiting)
	f.links[0].leadTo(f.Address(stack.Relay, stack.ListenerInternal))
}

// stoppedNATS checks that connected agents stay reachable through either relay.
func (f *relayFaults) stoppedNATS() {
	t := f.T
	f.renew()
	f.NATS().Down()
	for i := range 50 {
		for n := 1; n <= 2; n++ {
			require.NoError(t, f.ask(t.Context(), n, http.MethodPost, fmt.Sprintf("/without/nats/%d/%d", n, i)))
		}
	}
	require.NoError(t, f.NATS().Restart())
	f.eventually("/with/nats")
	fixture.AwaitCluster(t, "all that passed is in the audit", func(context.Context) (bool, error) {
		seen := map[string]int{}
		for _, r := range requests(f.System, f.AgentID) {
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

// killedRelay checks that callers who retry are answered by the other relay, and that nothing is
// done twice.
func (f *relayFaults) killedRelay() {
	t := f.T
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
	require.Empty(t, f.target.twice(), "nothing is done twice that was asked once")
	require.NoError(t, f.StartService(t.Context(), stack.Relay))
	f.eventually("/again")
	lost := map[string]int{}
	fixture.AwaitCluster(t, "who was connected to it is lost", func(context.Context) (bool, error) {
		clear(lost)
		for _, d := range ofAgent[events.AgentDisconnected](f.System, f.AgentID, events.TypeAgentDisconnected) {
			lost[d.ConnectionID]++
		}
		return len(lost) >= 3, nil
	})
	for id, times := range lost {
		require.Equal(t, 1, times, id)
	}
}

// countingTarget answers with the path and counts requests.
type countingTarget struct {
	addr string

	mu   sync.Mutex
	seen map[string]int
}

func newCountingTarget(t testing.TB) *countingTarget {
	t.Helper()
	c := &countingTarget{seen: map[string]int{}}
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

func (c *countingTarget) twice() []string {
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

// linkProxy forwards to a listener until it is shut.
type linkProxy struct {
	addr string

	mu    sync.Mutex
	to    string
	conns map[net.Conn]struct{}
}

func newLinkProxy(t testing.TB) *linkProxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	g := &linkProxy{addr: listener.Addr().String(), conns: map[net.Conn]struct{}{}}
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

func (g *linkProxy) pass(near net.Conn) {
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

func (g *linkProxy) leadTo(addr string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.to = addr
}

// shut closes all connections and refuses new ones.
func (g *linkProxy) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.to = ""
	for conn := range g.conns {
		_ = conn.Close()
	}
}

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
	"net/url"
	"os"
	"sync"
	"syscall"
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
		f.proxies = append(f.proxies, newRelayProxy(t))
	}
	var mu sync.Mutex
	started := 0
	f.System = fixture.StartWith(
		t,
		stack.Options{Programs: fixture.BuildServices(t), Relays: 2, RelayAgents: 2, Configure: func(_ string, config any) {
			mu.Lock()
			defer mu.Unlock()
			switch cfg := config.(type) {
			case *agent.Config:
				cfg.Targets.AllowedAddresses = append(cfg.Targets.AllowedAddresses, "127.0.0.1:*")
				cfg.Relay.RetryMin, cfg.Relay.RetryMax = 50*time.Millisecond, time.Second
				if len(cfg.Relay.URLs) > 1 && !f.dialAllRelays {
					cfg.Relay.URLs = cfg.Relay.URLs[:1]
				}
			case *relay.Config:
				cfg.External.AgentTimeout = fixture.Timeout
				// Only the first start of each relay: a restarted relay is not partitioned.
				if started < len(f.proxies) {
					cfg.Internal.URL = "wss://" + f.proxies[started].addr
					started++
				}
			}
		}},
	)
	for i, p := range f.proxies {
		p.setTarget(f.Address(stack.RelayOf(i+1), stack.ListenerInternal))
	}
	mu.Lock()
	f.dialAllRelays = true
	mu.Unlock()
	f.caller(t)
	f.CLI().OK("agent", "configure", "local", "--relay-target", "shop="+f.target.addr)
	f.eventually("/begin")

	f.partitionedRelays()
	f.stoppedNATS()
	f.killedRelay()
	f.relayStartsWithoutNATS()
	f.stoppedReplica()
}

type relayFaults struct {
	*fixture.System

	target  *countingTarget
	proxies []*relayProxy
	// dialAllRelays applies to agents that start from now on.
	dialAllRelays bool

	client *http.Client
	api    *client.API
	token  string
}

// caller creates a developer who sends requests through the relays.
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
	relayTransport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted, MinVersion: tls.VersionTLS12}}
	t.Cleanup(relayTransport.CloseIdleConnections)
	f.client = &http.Client{Transport: relayTransport}
}

// renew gets a new access token: one is valid for minutes, which is too short on a busy machine.
func (f *relayFaults) renew() {
	f.T.Helper()
	token, err := f.api.AccessToken(f.T.Context(), client.RelayAudience)
	require.NoError(f.T, err)
	f.token = token.Value
	f.Secrets.Add(f.token)
}

// request posts to the target through relay n. It requires a response with status 200 and the path as
// its body.
func (f *relayFaults) request(ctx context.Context, n int, method, path string) error {
	request, err := http.NewRequestWithContext(ctx, method,
		fmt.Sprintf("%s/agents/%d/http/shop%s", f.RelayURLOf(stack.RelayOf(n)), f.AgentID, path), http.NoBody)
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
		return &wrongResponseError{path, string(body)}
	}
	return nil
}

// wrongResponseError is a response that must never occur.
type wrongResponseError struct{ want, got string }

func (e *wrongResponseError) Error() string { return fmt.Sprintf("want %s, got %s", e.want, e.got) }

// eventually sends a request to each relay until it responds.
func (f *relayFaults) eventually(path string) {
	f.T.Helper()
	f.renew()
	for n := 1; n <= 2; n++ {
		require.Eventually(f.T, func() bool {
			return f.request(f.T.Context(), n, http.MethodGet, fmt.Sprintf("%s/%d", path, n)) == nil
		}, fixture.Timeout, 100*time.Millisecond)
	}
}

func (f *relayFaults) requestAsync(n int, path string) <-chan error {
	done := make(chan error, 1)
	go func() { done <- f.request(f.T.Context(), n, http.MethodGet, path) }()
	return done
}

// awaitPending waits until a relay reports a request without a response.
func (f *relayFaults) awaitPending(done <-chan error) {
	f.T.Helper()
	for i := range 20 {
		require.NoError(f.T, f.request(f.T.Context(), 1, http.MethodGet, fmt.Sprintf("/meanwhile/%d", i)))
	}
	require.Empty(f.T, done)
}

// partitionedRelays connects both replicas to the first relay, which the second relay cannot reach.
func (f *relayFaults) partitionedRelays() {
	t := f.T
	f.renew()
	f.proxies[0].close()
	waiting := f.requestAsync(2, "/until/whole")
	f.awaitPending(waiting)
	f.proxies[0].setTarget(f.Address(stack.Relay, stack.ListenerInternal))
	require.NoError(t, <-waiting)

	f.proxies[0].close()
	waiting = f.requestAsync(2, "/until/an/agent")
	f.awaitPending(waiting)
	_, err := f.AddReplica(t.Context(), stack.RelayAgentOf(f.Agents()[0].Name)) // connects to both relays
	require.NoError(t, err)
	require.NoError(t, <-waiting)
	f.proxies[0].setTarget(f.Address(stack.Relay, stack.ListenerInternal))
}

// stoppedNATS checks that connected agents stay reachable through either relay.
func (f *relayFaults) stoppedNATS() {
	t := f.T
	f.renew()
	f.NATS().Down()
	for i := range 50 {
		for n := 1; n <= 2; n++ {
			require.NoError(t, f.request(t.Context(), n, http.MethodPost, fmt.Sprintf("/without/nats/%d/%d", n, i)))
		}
	}
	require.NoError(t, f.NATS().Restart())
	f.eventually("/with/nats")
	fixture.AwaitCluster(t, "every successful request has an audit record", func(context.Context) (bool, error) {
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

// killedRelay checks that callers who retry get responses from the other relay, and that each
// request takes effect once.
func (f *relayFaults) killedRelay() {
	t := f.T
	const callers, requestsEach = 8, 150
	f.renew()
	half, killed := make(chan struct{}, callers), make(chan struct{})
	group, ctx := errgroup.WithContext(t.Context())
	for c := range callers {
		group.Go(func() error {
			for i := range requestsEach {
				if i == requestsEach/3 {
					half <- struct{}{}
				}
				if i == 2*requestsEach/3 {
					select {
					case <-killed:
					case <-ctx.Done():
					}
				}
				for attempt := 0; ; attempt++ {
					err := f.request(ctx, 1+(c+attempt)%2, http.MethodPost, fmt.Sprintf("/order/%d/%d/%d", c, i, attempt))
					if err == nil {
						break
					}
					//nolint:errorlint // request returns it unwrapped
					if _, wrong := err.(*wrongResponseError); wrong || ctx.Err() != nil {
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
	require.Empty(t, f.target.duplicates(), "each request takes effect once")
	require.NoError(t, f.StartService(t.Context(), stack.Relay))
	f.eventually("/again")
	lost := map[string]int{}
	fixture.AwaitCluster(t, "its connections are reported lost", func(context.Context) (bool, error) {
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

// relayStartsWithoutNATS checks that a request waits for a relay that has not read the directory yet.
func (f *relayFaults) relayStartsWithoutNATS() {
	t := f.T
	f.renew()
	f.NATS().Down()
	second := stack.RelayOf(2)
	require.NoError(t, f.Kill(second))
	started := make(chan error, 1)
	go func() { started <- f.StartService(t.Context(), second) }()
	address, err := url.Parse(f.RelayURLOf(second))
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", address.Host)
		return err == nil && conn.Close() == nil
	}, fixture.Timeout, 100*time.Millisecond, "it listens")
	waiting := f.requestAsync(2, "/until/nats")
	f.awaitPending(waiting)
	require.NoError(t, f.NATS().Restart())
	require.NoError(t, <-waiting)
	require.NoError(t, <-started)
}

// stoppedReplica checks that a replica of the agent that stands still blocks no request: the others answer.
func (f *relayFaults) stoppedReplica() {
	t := f.T
	f.eventually("/all/replicas")
	stopped := stack.RelayAgentOf(f.Agents()[0].Name)
	require.NoError(t, f.Signal(stopped, syscall.SIGSTOP))
	defer func() { require.NoError(t, f.Signal(stopped, syscall.SIGCONT)) }()
	for i := range 3 {
		for n := 1; n <= 2; n++ {
			for _, method := range []string{http.MethodGet, http.MethodPost} {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // a second on an idle machine
				require.NoError(t, f.request(ctx, n, method, fmt.Sprintf("/stopped/%s/%d/%d", method, n, i)))
				cancel()
			}
		}
	}
}

// countingTarget responds with the path and counts requests.
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
		if r.Method == http.MethodPost { // read requests may be repeated
			c.seen[r.URL.Path]++
		}
		c.mu.Unlock()
		_, _ = io.WriteString(w, r.URL.Path)
	}))
	t.Cleanup(server.Close)
	c.addr = server.Listener.Addr().String()
	return c
}

func (c *countingTarget) duplicates() []string {
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

// relayProxy forwards connections to a listener until it is closed.
type relayProxy struct {
	addr string

	mu    sync.Mutex
	to    string
	conns map[net.Conn]struct{}
}

func newRelayProxy(t testing.TB) *relayProxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &relayProxy{addr: listener.Addr().String(), conns: map[net.Conn]struct{}{}}
	var forwarding sync.WaitGroup
	forwarding.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			forwarding.Go(func() { p.forward(conn) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		p.close()
		forwarding.Wait()
	})
	return p
}

func (p *relayProxy) forward(near net.Conn) {
	defer near.Close()
	p.mu.Lock()
	to := p.to
	p.mu.Unlock()
	if to == "" {
		return
	}
	far, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer far.Close()
	p.mu.Lock()
	open := p.to == to
	p.conns[near], p.conns[far] = struct{}{}, struct{}{}
	p.mu.Unlock()
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
	p.mu.Lock()
	delete(p.conns, near)
	delete(p.conns, far)
	p.mu.Unlock()
}

func (p *relayProxy) setTarget(addr string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.to = addr
}

// close closes all connections and refuses new ones.
func (p *relayProxy) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.to = ""
	for conn := range p.conns {
		_ = conn.Close()
	}
}

package relay_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/relay/agent"
)

// A replica that was stopped keeps its connection for two ping intervals. Meanwhile requests use the other replica.
// When the stopped one goes on, no request has its effect twice.
func TestStoppedReplicaBlocksNoRequest(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	orders := &orderCounter{placed: map[string]int{}}
	server := httptest.NewServer(orders)
	t.Cleanup(server.Close)
	f.publishAgentConfig(2, "web", server.Listener.Addr().String())
	first, second := f.relay(), f.relay()
	proxy := newFaultProxy(t, first.addrs["agents"])
	f.replicaWith(func(cfg *agent.Config) {
		cfg.Relay.URLs, cfg.Pod = []string{"ws://" + proxy.addr}, "lockstep/stopped"
	})
	f.replica(first)
	f.waitForMetrics(first, "lockstep_relay_known_connections 2")
	f.waitForMetrics(second, "lockstep_relay_known_connections 2")
	stopped := f.connectionOf("stopped")
	for _, r := range []*running{first, second} { // the relays keep these streams
		status, body := f.get(r, agentID, "/", "Lockstep-Connection", stopped)
		require.Equal(t, http.StatusOK, status, body)
	}
	proxy.stall(true)
	for i := range 8 {
		for n, r := range []*running{first, second} {
			for _, method := range []string{http.MethodGet, http.MethodPost} {
				startedAt := time.Now()
				path := fmt.Sprintf("/agents/7/http/web/%d/%d", n, i)
				status, body := f.do(f.request(r, developer, method, path, "an order"))
				require.Equal(t, http.StatusOK, status, body)
				require.Less(t, time.Since(startedAt), 10*time.Second, "a second on an idle machine")
			}
		}
	}
	proxy.stall(false)
	for _, r := range []*running{first, second} {
		status, body := f.get(r, agentID, "/", "Lockstep-Connection", stopped)
		require.Equal(t, http.StatusOK, status, body)
	}
	orders.mu.Lock()
	defer orders.mu.Unlock()
	require.Len(t, orders.placed, 16)
	for path, times := range orders.placed {
		require.Equal(t, 1, times, path)
	}
}

// orderCounter counts POST requests by path.
type orderCounter struct {
	mu     sync.Mutex
	placed map[string]int
}

func (o *orderCounter) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	if r.Method == http.MethodPost {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.placed[r.URL.Path]++
	}
}

package relay_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"lockstep.internal/services/relay/agent"
)

// A replica that was stopped keeps its connection for two ping intervals. Meanwhile requests use the other replica.
// When the stopped one goes on, no request has its effect twice.
func TestStoppedReplicaBlocksNoRequest(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	orders := &orderCounter{placed: map[string]int{}}
	const pooled = 16
	for n := range orders.together {
		orders.together[n].Add(pooled)
	}
	server := httptest.NewServer(orders)
	t.Cleanup(server.Close)
	f.publishAgentConfig(2, "web", server.Listener.Addr().String())
	first, second := f.relay(), f.relay()
	proxy := newFaultProxy(t, first.addrs["agents"])
	f.replicaWith(func(cfg *agent.Config) {
		cfg.Relay.URLs, cfg.Pod = []string{"ws://" + proxy.addr}, "lockstep/stopped"
	})
	f.waitForMetrics(second, "lockstep_relay_known_connections 1")
	stopped := f.connectionOf("stopped")
	for n, r := range []*running{first, second} { // the relays keep these streams for the next requests
		var requests sync.WaitGroup
		for range pooled {
			requests.Go(func() {
				status, body := f.get(r, agentID, fmt.Sprintf("/together/%d", n))
				assert.Equal(t, http.StatusOK, status, body)
			})
		}
		requests.Wait()
	}
	f.replica(first)
	f.waitForMetrics(first, "lockstep_relay_known_connections 2")
	f.waitForMetrics(second, "lockstep_relay_known_connections 2")
	proxy.stall(true)
	const rounds = 4
	for i := range rounds {
		for n, r := range []*running{first, second} {
			for method, sent := range map[string]string{http.MethodGet: "", http.MethodPost: "an order"} {
				startedAt := time.Now()
				path := fmt.Sprintf("/agents/7/http/web/%d/%d", n, i)
				status, body := f.do(f.request(r, developer, method, path, sent))
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
	require.Len(t, orders.placed, 2*rounds)
	for path, times := range orders.placed {
		require.Equal(t, 1, times, path)
	}
}

// orderCounter counts POST requests by path.
type orderCounter struct {
	// together holds requests for /together/<n> until as many have arrived.
	together [2]sync.WaitGroup

	mu     sync.Mutex
	placed map[string]int
}

func (o *orderCounter) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	if n, err := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/together/")); err == nil {
		o.together[n].Done()
		o.together[n].Wait()
	}
	if r.Method == http.MethodPost {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.placed[r.URL.Path]++
	}
}

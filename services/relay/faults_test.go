package relay_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/service"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/relay"
	"lockstep.internal/services/relay/agent"
	"lockstep.internal/services/relay/tunnel"
	"lockstep.internal/tools/testkit/unreadflood"
)

// The tests of this file that measure what the process uses do not run in parallel with others.

// If an agent stops reading, memory stays bounded and requests to other connections succeed.
func TestAgentThatStopsReadingIsDisconnected(t *testing.T) { //nolint:paralleltest // measures memory
	f := newFixture(t)
	// Two intervals are longer than the healthy agent is silent on a slow machine.
	r := f.relay(func(cfg *relay.Config) { cfg.Tunnel.PingInterval = 6 * time.Second })
	proxy := newFaultProxy(t, r.addrs["agents"])
	before := measure()
	stalled := f.replicaWith(func(cfg *agent.Config) {
		cfg.Relay.URLs, cfg.Pod = []string{"ws://" + proxy.addr}, "lockstep/stalled"
	})
	f.waitForMetrics(r, "lockstep_relay_connections 1")
	const writers, size = 8, 64 << 20
	var conns []net.Conn
	for range writers {
		conn, _, response := f.connect(r, developer, "web")
		require.Equal(t, http.StatusSwitchingProtocols, response.StatusCode)
		conns = append(conns, conn)
	}
	other := f.replica(r)
	f.waitForMetrics(r, "lockstep_relay_connections 2")
	healthy := f.connectionOf("agent-0")

	proxy.stall(true)
	var writing sync.WaitGroup
	var written atomic.Int64
	for _, conn := range conns {
		writing.Go(func() {
			n, err := io.Copy(conn, io.LimitReader(zeros{}, size))
			written.Add(n)
			if err == nil { // all data may fit into the kernel's socket buffers
				_, err = conn.Read(make([]byte, 1))
			}
			if err == nil {
				t.Error("the transfer has not failed")
			}
		})
	}
	peakHeap := uint64(0)
	for range 50 {
		status, body := f.get(r, agentID, "/still", "Lockstep-Connection", healthy)
		require.Equal(t, 200, status, body)
		peakHeap = max(peakHeap, measure().heap)
	}
	writing.Wait()
	require.Less(t, written.Load(), int64(writers*size/2), "writers were blocked")
	require.Less(t, int64(peakHeap)-int64(before.heap), int64(48<<20), "buffered data is bounded")
	f.waitForMetrics(r, "lockstep_relay_connections 1", "lockstep_relay_requests 0")
	var lost events.AgentDisconnected
	f.waitForEvent(events.TypeAgentDisconnected, func(data []byte) bool {
		require.NoError(t, json.Unmarshal(data, &lost))
		return lost.PodName == "stalled"
	})
	require.Equal(t, events.DisconnectReasonLost, lost.Reason)

	proxy.closeAll()
	proxy.stall(false)
	f.waitForMetrics(r, "lockstep_relay_connections 2")
	stalled.stop()
	other.stop()
	f.waitForMetrics(r, "lockstep_relay_connections 0")
	before.requireNoLeak(t)
}

// zeros is an endless reader.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// A caller that stops reading blocks only its own response.
func TestStalledCallerBlocksNoOtherRequest(t *testing.T) { //nolint:paralleltest // measures memory
	f := newFixture(t)
	first, second := f.relay(), f.relay()
	before := f.baseline(first, second)
	replica := f.replica(first)
	f.waitForMetrics(second, "lockstep_relay_known_connections 1")
	const size = 1 << 30
	for name, r := range map[string]*running{"relay with the connection": first, "other relay": second} {
		sentBytes.Store(0)
		path := fmt.Sprintf("/agents/7/http/web/large/%d", size)
		response, err := f.client().Do(f.request(r, developer, http.MethodGet, path, ""))
		require.NoError(t, err)
		require.Equal(t, 200, response.StatusCode)
		settled := int64(-1)
		require.Eventually(t, func() bool {
			for range 20 {
				status, body := f.get(r, agentID, "/still")
				require.Equal(t, 200, status, body)
			}
			was := settled
			settled = sentBytes.Load()
			return settled > 0 && settled == was
		}, timeout, pollInterval)
		require.Less(t, settled, int64(96<<20), "%s: stream windows and kernel buffers of seven connections", name)
		now := measure()
		require.Less(t, int64(now.heap)-int64(before.heap), int64(32<<20), name)
		require.NoError(t, response.Body.Close())
		f.waitForMetrics(r, "lockstep_relay_requests 0")
	}
	replica.stop()
	f.waitForMetrics(first, "lockstep_relay_connections 0")
	before.requireNoLeak(t)
}

// Callers without a token open many streams and read no response.
func TestUnreadResponsesCostLittleMemory(t *testing.T) { //nolint:paralleltest // measures memory
	f := newFixture(t)
	r := f.relay()
	grown := unreadflood.Flood(t, r.addrs["external"], "/agents/7/http/web/", 15, 100)
	require.Less(t, grown, int64(unreadflood.MaxGrowth))
}

// Each listener closes connections with slow or oversized requests.
func TestSlowAndOversizedRequestsAreRejected(t *testing.T) { //nolint:paralleltest // measures memory
	f := newFixture(t)
	r := f.relay(func(cfg *relay.Config) {
		for _, l := range []*service.Listener{&cfg.Agents.Listener, &cfg.External.Listener, &cfg.Internal.Listener} {
			l.ReadHeaderTimeout, l.MaxHeader = 500*time.Millisecond, config.KiB
		}
	})
	before := measure()
	const tunnelRequest = "GET /tunnel HTTP/1.1\r\nHost: relay\r\n"
	const chunked = "Transfer-Encoding: chunked\r\n\r\n"
	cases := map[string]struct{ request, wantStatus string }{
		"nothing":        {"", ""},
		"half a line":    {"GET /tun", ""},
		"half a header":  {tunnelRequest + "X-Slow: ", ""},
		"a giant header": {tunnelRequest + "X-Giant: " + strings.Repeat("x", 16<<10) + "\r\n\r\n", "431"},
		"many headers":   {tunnelRequest + strings.Repeat("X-Many: x\r\n", 1<<10) + "\r\n", "431"},
		"no body":        {"POST /tunnel HTTP/1.1\r\nHost: relay\r\nContent-Length: 100\r\n\r\n", "40"},
		"a slow chunk":   {"POST /agents/7/http/web/ HTTP/1.1\r\nHost: relay\r\n" + chunked + "5\r\nab", "40"},
	}
	t.Run("listeners", func(t *testing.T) { // returns when all parallel subtests have ended
		for _, listener := range []string{"agents", "external", "internal"} {
			for what, tc := range cases {
				t.Run(listener+"/"+what, func(t *testing.T) {
					t.Parallel()
					conn, err := net.Dial("tcp", r.addrs[listener])
					require.NoError(t, err)
					defer conn.Close()
					_, err = io.WriteString(conn, tc.request)
					require.NoError(t, err)
					require.NoError(t, conn.SetReadDeadline(time.Now().Add(timeout)))
					answer, err := io.ReadAll(conn)
					require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
					if tc.wantStatus != "" && len(answer) > 0 { // a connection reset can lose the response
						require.True(t, strings.HasPrefix(string(answer), "HTTP/1.1 "+tc.wantStatus), "%s", answer)
					}
				})
			}
		}
	})
	before.requireNoLeak(t)
}

// A caller that exceeds a limit gets an error until there is capacity again. Other callers are not affected.
func TestLimitsAreReportedAndRecover(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r := f.relay(func(cfg *relay.Config) {
		cfg.External.MaxRequests, cfg.External.MaxRequestsPerCaller, cfg.Agents.MaxConnections = 3, 2, 1
	})
	f.replicaWith(func(cfg *agent.Config) {
		cfg.Relay.URLs, cfg.MaxStreams = []string{"ws://" + r.addrs["agents"]}, 2
	})
	f.waitForMetrics(r, "lockstep_relay_connections 1")
	_, err := f.dialFakeAgent(t.Context(), r.addrs["agents"], agentID)
	var refused *tunnel.HandshakeError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, 503, refused.Status)
	require.Contains(t, refused.Text, "its maximum")
	require.Positive(t, refused.RetryAfter)

	openTCP := func(user int) *net.TCPConn {
		conn, _, response := f.connect(r, user, "web")
		require.Equal(t, http.StatusSwitchingProtocols, response.StatusCode)
		return conn
	}
	requireRejected := func(user int, reason string) {
		_, _, response := f.connect(r, user, "web")
		require.Equal(t, 429, response.StatusCode)
		text, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		require.Contains(t, string(text), reason)
	}
	one, two := openTCP(developer), openTCP(developer)
	requireRejected(developer, "you have 2 requests in flight")
	requireRejected(admin, "streams")
	require.NoError(t, two.Close())
	f.waitForMetrics(r, "lockstep_relay_requests 1")
	openTCPEventually := func(user int) (opened *net.TCPConn) {
		require.Eventually(t, func() bool { // the agent may release its stream later
			conn, _, response := f.connect(r, user, "web")
			opened = conn
			return response.StatusCode == http.StatusSwitchingProtocols
		}, timeout, pollInterval)
		return opened
	}
	three := openTCPEventually(admin)
	f.waitForMetrics(r, "lockstep_relay_requests 2")
	require.NoError(t, one.Close())
	require.NoError(t, three.Close())
	f.waitForMetrics(r, "lockstep_relay_requests 0")

	// The limit for all callers: three requests wait for an agent that is not connected.
	f.publishAgent(8, false)
	require.Eventually(t, func() bool { return f.knowsAgent(r, 8) }, timeout, pollInterval)
	ctx, cancel := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	for _, user := range []int{developer, developer, admin} {
		request := f.request(r, user, http.MethodGet, "/agents/8/http/web/", "").WithContext(ctx)
		waiting.Go(func() {
			if response, err := f.client().Do(request); err == nil {
				_ = response.Body.Close()
			}
		})
	}
	f.waitForMetrics(r, "lockstep_relay_requests 3")
	requireRejected(admin, "this relay has 3 requests in flight")
	cancel()
	waiting.Wait()
	f.waitForMetrics(r, "lockstep_relay_requests 0")
	require.NoError(t, openTCPEventually(admin).Close())
}

// knowsAgent reports whether the relay's directory has an agent: a reader gets 403, not 404.
func (f *fixture) knowsAgent(r *running, id int) bool {
	status, _ := f.do(f.request(r, reader, http.MethodGet, fmt.Sprintf("/agents/%d/http/web/", id), ""))
	return status == http.StatusForbidden
}

// While NATS is unavailable, each relay serves the connections it knows and its own new ones. After that, all
// relays know all connections, and no audit record is missing.
func TestNATSOutage(t *testing.T) { //nolint:paralleltest // measures memory
	f := newFixture(t)
	first, second := f.relay(), f.relay()
	f.publishAgent(8, false)
	f.publishAgent(9, false)
	require.Eventually(t, func() bool { return f.knowsAgent(first, 9) && f.knowsAgent(second, 9) }, timeout, pollInterval)
	before := f.baseline(first, second)
	replica := f.replica(first)
	f.waitForMetrics(second, "lockstep_relay_known_connections 1")
	conn, received, response := f.connect(second, developer, "web")
	require.Equal(t, http.StatusSwitchingProtocols, response.StatusCode)

	f.server.Down()
	sent := map[string]int{}
	for i := range 20 {
		for name, r := range map[string]*running{"first": first, "second": second} {
			path := fmt.Sprintf("/away/%s/%d", name, i)
			sent[path] = 1
			status, body := f.get(r, agentID, path)
			require.Equal(t, 200, status, body)
		}
	}
	responses := map[int]chan string{8: make(chan string, 1), 9: make(chan string, 1)}
	for id, r := range map[int]*running{8: first, 9: second} {
		path := fmt.Sprintf("/waits/%d", id)
		sent[path] = 1
		request := f.request(r, developer, http.MethodGet, fmt.Sprintf("/agents/%d/http/web%s", id, path), "")
		go func() {
			response, err := f.client().Do(request)
			if err != nil {
				responses[id] <- err.Error()
				return
			}
			body, _ := io.ReadAll(response.Body)
			_ = response.Body.Close()
			responses[id] <- string(body)
		}()
	}
	f.waitForMetrics(first, "lockstep_relay_requests 1")
	f.waitForMetrics(second, "lockstep_relay_requests 2")
	agent8, agent9 := f.connectFakeAgent(first.addrs["agents"], 8), f.connectFakeAgent(first.addrs["agents"], 9)
	require.Equal(t, "8 /waits/8", <-responses[8], "the relay with the connection does not need NATS")
	require.Empty(t, responses[9], "the other relay does not know the connection yet")
	_, err := io.WriteString(conn, "GET /went/on HTTP/1.0\r\n\r\n")
	require.NoError(t, err)
	answer, err := io.ReadAll(received)
	require.NoError(t, err)
	require.Contains(t, string(answer), "GET /went/on", "open streams continue")
	require.NoError(t, conn.Close())

	require.NoError(t, f.server.Restart())
	require.Equal(t, "9 /waits/9", <-responses[9])
	f.waitForMetrics(first, "lockstep_relay_unpublished_records 0", "lockstep_relay_known_connections 3")
	f.waitForMetrics(second, "lockstep_relay_unpublished_records 0", "lockstep_relay_known_connections 3")
	require.NoError(t, agent8.Close())
	require.NoError(t, agent9.Close())
	replica.stop()
	f.waitForMetrics(first, "lockstep_relay_connections 0")
	before.requireNoLeak(t)
	first.stop() // it publishes all events before it stops
	second.stop()
	phases := map[string]int{}
	for _, batch := range allEvents[events.AuditRequests](f, events.TypeAuditRequests) {
		for _, request := range batch.Requests {
			phases[request.RequestID+" "+string(request.Phase)]++
			if request.Phase == events.RequestPhaseEnded && request.Status == 200 {
				sent[request.Path]--
			}
		}
	}
	for phase, times := range phases {
		require.Equal(t, 1, times, phase)
	}
	for path, missing := range sent {
		require.Zero(t, missing, "%s has one audit record", path)
	}
	for _, c := range allEvents[events.AgentConnected](f, events.TypeAgentConnected) {
		delete(responses, c.AgentID)
	}
	require.Empty(t, responses, "connections opened during the outage are published, too")
}

// When a relay is killed, its responses end with an error, never as complete. Its agents reconnect to other relays.
func TestKilledRelayAbortsItsRequests(t *testing.T) { //nolint:paralleltest // measures memory
	f := newFixture(t)
	// The lease is also the interval of the search for expired relays.
	longerLease := func(cfg *relay.Config) { cfg.Registry.Lease = 2 * shortLease }
	killed, second, third := f.process(), f.relay(longerLease), f.relay(longerLease)
	proxy := newFaultProxy(t, killed.addrs["agents"])
	before := f.baseline(second, third) // the agent reconnects to the second: tunnels from the third to it stay open
	replica := f.replica(proxy.running())
	f.waitForMetrics(second, "lockstep_relay_known_connections 1")
	f.waitForMetrics(third, "lockstep_relay_known_connections 1")
	lostConnection := f.connectionOf("agent-0")
	const size = 1 << 30
	var bodies []io.ReadCloser
	for _, r := range []*running{second, &killed.running} {
		for _, query := range []string{"", "?length=1"} {
			path := fmt.Sprintf("/agents/7/http/web/large/%d%s", size, query)
			response, err := f.client().Do(f.request(r, developer, http.MethodGet, path, ""))
			require.NoError(t, err)
			require.Equal(t, 200, response.StatusCode)
			bodies = append(bodies, response.Body)
		}
	}
	conn, received, response := f.connect(second, developer, "web")
	require.Equal(t, http.StatusSwitchingProtocols, response.StatusCode)
	_, err := fmt.Fprintf(conn, "GET /large/%d HTTP/1.0\r\n\r\n", size)
	require.NoError(t, err)
	_, err = received.ReadByte()
	require.NoError(t, err)

	proxy.setTarget(second.addrs["agents"])
	killed.kill()
	f.endLease(killed)
	for i, body := range bodies {
		n, err := io.Copy(io.Discard, body)
		require.Error(t, err, "response %d of %d bytes", i, n)
		require.Less(t, n, int64(size))
		require.NoError(t, body.Close())
	}
	n, err := io.Copy(io.Discard, received)
	require.Error(t, err, "a truncated stream of %d bytes must end with an error", n)
	for _, r := range []*running{second, third} {
		status, body := f.get(r, agentID, "/back")
		require.Equal(t, 200, status, body)
		require.Equal(t, "GET /back", body)
		f.waitForMetrics(r, "lockstep_relay_known_connections 1")
	}
	f.waitForEvent(events.TypeAgentDisconnected, func(data []byte) bool {
		var d events.AgentDisconnected
		require.NoError(t, json.Unmarshal(data, &d))
		return d.ConnectionID == lostConnection
	})
	times := 0
	for _, d := range allEvents[events.AgentDisconnected](f, events.TypeAgentDisconnected) {
		if d.ConnectionID == lostConnection { // on a slow machine another relay's lease may expire, too
			require.Equal(t, events.DisconnectReasonLost, d.Reason)
			times++
		}
	}
	require.Equal(t, 1, times)
	replica.stop()
	f.waitForMetrics(second, "lockstep_relay_connections 0", "lockstep_relay_requests 0")
	before.requireNoLeak(t)
}

// Two relays cannot reach each other. Requests wait until they can, or until an agent connects to the relay
// where they wait.
func TestPartitionBetweenRelays(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxies := map[string]*faultProxy{"127.0.0.2": newFaultProxy(t, ""), "127.0.0.3": newFaultProxy(t, "")}
	relays := map[string]*running{}
	for host, proxy := range proxies {
		relays[host] = f.relay(func(cfg *relay.Config) {
			for _, listen := range []*string{&cfg.Agents.Listen, &cfg.External.Listen, &cfg.Internal.Listen} {
				*listen = host + ":0"
			}
			cfg.Internal.URL, cfg.Tunnel.PingInterval = "ws://"+proxy.addr, time.Second
		})
		proxy.setTarget(relays[host].addrs["internal"])
	}
	first, second, proxyToFirst := relays["127.0.0.2"], relays["127.0.0.3"], proxies["127.0.0.2"]
	f.replica(first)
	ask := func(path string) <-chan string {
		responses := make(chan string, 1)
		request := f.request(second, developer, http.MethodGet, "/agents/7/http/web"+path, "")
		go func() {
			response, err := f.client().Do(request)
			if err != nil {
				responses <- err.Error()
				return
			}
			body, _ := io.ReadAll(response.Body)
			_ = response.Body.Close()
			responses <- string(body)
		}()
		return responses
	}
	require.Equal(t, "GET /before ", <-ask("/before"))

	target := proxyToFirst.target
	proxyToFirst.setTarget("127.0.0.1:1")
	proxyToFirst.closeAll()
	waiting := ask("/until-healed")
	f.waitForMetrics(second, "lockstep_relay_requests 1")
	status, body := f.get(first, agentID, "/here")
	require.Equal(t, 200, status, body)
	require.Empty(t, waiting)
	proxyToFirst.setTarget(target)
	require.Equal(t, "GET /until-healed ", <-waiting)

	proxyToFirst.stall(true) // no error shows the partition
	waiting = ask("/until/an/agent")
	f.waitForMetrics(second, "lockstep_relay_requests 1")
	f.replica(second)
	require.Equal(t, "GET /until/an/agent ", <-waiting, "a GET is replayable: it is retried after its tunnel is lost")
}

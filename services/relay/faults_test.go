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
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/relay"
	"lockstep.internal/services/relay/agent"
	"lockstep.internal/services/relay/tunnel"
)

// The tests of this file that measure what the process uses do not run in parallel with others.

// An agent that stops reading costs a bounded amount of memory and its own requests, and nobody else's.
func TestAnAgentThatStopsReadingIsGivenUp(t *testing.T) { //nolint:paralleltest // it measures
	b := setup(t)
	r := b.relay(func(cfg *relay.Config) { cfg.Tunnel.PingInterval = time.Second })
	w := newWall(t, r.addrs["agents"])
	before := measure()
	deaf := b.replicaWith(func(cfg *agent.Config) {
		cfg.Relay.URLs, cfg.Pod = []string{"ws://" + w.addr}, "lockstep/deaf"
	})
	b.shows(r, "lockstep_relay_connections 1")
	const writers, size = 8, 64 << 20
	var conns []net.Conn
	for range writers {
		conn, _, response := b.connect(r, developer, "shop")
		require.Equal(t, http.StatusSwitchingProtocols, response.StatusCode)
		conns = append(conns, conn)
	}
	other := b.replica(r)
	b.shows(r, "lockstep_relay_connections 2")
	good := b.connectionOf("agent-0")

	w.freeze(true)
	var writing sync.WaitGroup
	var written atomic.Int64
	for _, conn := range conns {
		writing.Go(func() {
			n, err := io.Copy(conn, io.LimitReader(nothing{}, size))
			written.Add(n)
			if err == nil { // it may be that all fitted into what the system keeps
				_, err = conn.Read(make([]byte, 1))
			}
			if err == nil {
				t.Error("the transfer has not failed")
			}
		})
	}
	most := uint64(0)
	for range 50 {
		status, body := b.get(r, agentID, "/still", "Lockstep-Connection", good)
		require.Equal(t, 200, status, body)
		most = max(most, measure().heap)
	}
	writing.Wait()
	require.Less(t, written.Load(), int64(writers*size/2), "writers were held up")
	require.Less(t, int64(most)-int64(before.heap), int64(48<<20), "what waits is bounded")
	b.shows(r, "lockstep_relay_connections 1", "lockstep_relay_requests 0")
	var lost events.AgentDisconnected
	b.events(events.TypeAgentDisconnected, func(data []byte) bool {
		require.NoError(t, json.Unmarshal(data, &lost))
		return true
	})
	require.Equal(t, []any{events.DisconnectReasonLost, "deaf"}, []any{lost.Reason, lost.PodName})

	w.cut()
	w.freeze(false)
	b.shows(r, "lockstep_relay_connections 2")
	deaf.stop()
	other.stop()
	b.shows(r, "lockstep_relay_connections 0")
	before.requireNoMore(t)
}

// nothing has no end.
type nothing struct{}

func (nothing) Read(p []byte) (int, error) { return len(p), nil }

// A caller that stops reading holds up who sends to it, and nobody else.
func TestACallerThatStopsReadingHoldsUpNobodyElse(t *testing.T) { //nolint:paralleltest // it measures
	b := setup(t)
	holds, other := b.relay(), b.relay()
	before := b.usual(holds, other)
	replica := b.replica(holds)
	b.shows(other, "lockstep_relay_known_connections 1")
	const size = 1 << 30
	for name, r := range map[string]*running{"the relay that holds the agent": holds, "the other one": other} {
		sold.Store(0)
		response, err := b.client().Do(b.request(r, developer, http.MethodGet, fmt.Sprintf("/agents/7/http/shop/large/%d", size), ""))
		require.NoError(t, err)
		require.Equal(t, 200, response.StatusCode)
		settled := int64(-1)
		require.Eventually(t, func() bool {
			for range 20 {
				status, body := b.get(r, agentID, "/still")
				require.Equal(t, 200, status, body)
			}
			was := settled
			settled = sold.Load()
			return settled > 0 && settled == was
		}, soon, tick)
		require.Less(t, settled, int64(96<<20), "%s: windows, and what the system keeps of seven connections", name)
		now := measure()
		require.Less(t, int64(now.heap)-int64(before.heap), int64(32<<20), name)
		require.NoError(t, response.Body.Close())
		b.shows(r, "lockstep_relay_requests 0")
	}
	replica.stop()
	b.shows(holds, "lockstep_relay_connections 0")
	before.requireNoMore(t)
}

// Whoever is slow to say what it wants, or says too much, is sent away by each of the listeners.
func TestSlowAndGiantRequestsAreEnded(t *testing.T) { //nolint:paralleltest // it measures
	b := setup(t)
	r := b.relay(func(cfg *relay.Config) {
		for _, l := range []*time.Duration{&cfg.Agents.ReadHeaderTimeout, &cfg.External.ReadHeaderTimeout, &cfg.Internal.ReadHeaderTimeout} {
			*l = 500 * time.Millisecond
		}
		cfg.Agents.MaxHeader, cfg.External.MaxHeader, cfg.Internal.MaxHeader = config.KiB, config.KiB, config.KiB
	})
	before := measure()
	cases := map[string]struct{ sent, answer string }{
		"nothing":        {"", ""},
		"half a line":    {"GET /tun", ""},
		"half a header":  {"GET /tunnel HTTP/1.1\r\nHost: relay\r\nX-Slow: ", ""},
		"a giant header": {"GET /tunnel HTTP/1.1\r\nHost: relay\r\nX-Giant: " + strings.Repeat("x", 16<<10) + "\r\n\r\n", "431"},
		"many headers":   {"GET /tunnel HTTP/1.1\r\nHost: relay\r\n" + strings.Repeat("X-Many: x\r\n", 1<<10) + "\r\n", "431"},
		"no body":        {"POST /tunnel HTTP/1.1\r\nHost: relay\r\nContent-Length: 100\r\n\r\n", "40"},
		"a slow chunk":   {"POST /agents/7/http/shop/ HTTP/1.1\r\nHost: relay\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", "40"},
	}
	t.Run("on", func(t *testing.T) { // returns when all have
		for _, listener := range []string{"agents", "external", "internal"} {
			for what, tc := range cases {
				t.Run(listener+"/"+what, func(t *testing.T) {
					t.Parallel()
					conn, err := net.Dial("tcp", r.addrs[listener])
					require.NoError(t, err)
					defer conn.Close()
					_, err = io.WriteString(conn, tc.sent)
					require.NoError(t, err)
					require.NoError(t, conn.SetReadDeadline(time.Now().Add(soon)))
					answer, err := io.ReadAll(conn)
					require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
					if tc.answer != "" && len(answer) > 0 { // what was said may be lost with a connection that is reset
						require.True(t, strings.HasPrefix(string(answer), "HTTP/1.1 "+tc.answer), "%s", answer)
					}
				})
			}
		}
	})
	before.requireNoMore(t)
}

// Whatever there is too much of is said so, to whom it concerns only, until there is room again.
func TestLimitsAreToldAndPass(t *testing.T) {
	t.Parallel()
	b := setup(t)
	r := b.relay(func(cfg *relay.Config) {
		cfg.External.MaxRequests, cfg.External.MaxRequestsPerCaller, cfg.Agents.MaxConnections = 3, 2, 1
	})
	b.replicaWith(func(cfg *agent.Config) {
		cfg.Relay.URLs, cfg.MaxStreams = []string{"ws://" + r.addrs["agents"]}, 2
	})
	b.shows(r, "lockstep_relay_connections 1")
	_, err := b.puppet(t.Context(), r.addrs["agents"], agentID)
	var refused *tunnel.RefusedError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, 503, refused.Status)
	require.Contains(t, refused.Text, "its maximum")
	require.Positive(t, refused.RetryAfter)

	hold := func(user int) *net.TCPConn {
		conn, _, response := b.connect(r, user, "shop")
		require.Equal(t, http.StatusSwitchingProtocols, response.StatusCode)
		return conn
	}
	turnedAway := func(user int, why string) {
		_, _, response := b.connect(r, user, "shop")
		require.Equal(t, 429, response.StatusCode)
		text, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		require.Contains(t, string(text), why)
	}
	one, two := hold(developer), hold(developer)
	turnedAway(developer, "you have 2 requests in flight")
	turnedAway(admin, "streams")
	require.NoError(t, two.Close())
	b.shows(r, "lockstep_relay_requests 1")
	holdSoon := func(user int) (held *net.TCPConn) {
		require.Eventually(t, func() bool { // the agent's own end may come a moment later
			conn, _, response := b.connect(r, user, "shop")
			held = conn
			return response.StatusCode == http.StatusSwitchingProtocols
		}, soon, tick)
		return held
	}
	three := holdSoon(admin)
	b.shows(r, "lockstep_relay_requests 2")
	require.NoError(t, one.Close())
	require.NoError(t, three.Close())
	b.shows(r, "lockstep_relay_requests 0")

	// All callers together: two wait for an agent that is not there, and one more.
	b.agent(8, false)
	require.Eventually(t, func() bool { return b.may(r, 8) }, soon, tick)
	ctx, cancel := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	for _, user := range []int{developer, developer, admin} {
		request := b.request(r, user, http.MethodGet, "/agents/8/http/shop/", "").WithContext(ctx)
		waiting.Go(func() {
			if response, err := b.client().Do(request); err == nil {
				_ = response.Body.Close()
			}
		})
	}
	b.shows(r, "lockstep_relay_requests 3")
	turnedAway(admin, "this relay has 3 requests in flight")
	cancel()
	waiting.Wait()
	b.shows(r, "lockstep_relay_requests 0")
	require.NoError(t, holdSoon(admin).Close())
}

// may says whether the relay knows of an agent: a reader of it is not told that it does not exist.
func (b *bed) may(r *running, id int) bool {
	status, _ := b.ask(b.request(r, reader, http.MethodGet, fmt.Sprintf("/agents/%d/http/shop/", id), ""))
	return status == http.StatusForbidden
}

// While NATS is away, what is known counts and what is new here is known here; afterwards it is known everywhere, and nothing is missing in the audit.
func TestNATSIsAwayForAWhile(t *testing.T) { //nolint:paralleltest // it measures
	b := setup(t)
	first, second := b.relay(), b.relay()
	b.agent(8, false)
	b.agent(9, false)
	require.Eventually(t, func() bool { return b.may(first, 9) && b.may(second, 9) }, soon, tick)
	before := b.usual(first, second)
	replica := b.replica(first)
	b.shows(second, "lockstep_relay_known_connections 1")
	conn, answers, response := b.connect(second, developer, "shop")
	require.Equal(t, http.StatusSwitchingProtocols, response.StatusCode)

	b.server.Down()
	asked := map[string]int{}
	for i := range 20 {
		for name, r := range map[string]*running{"first": first, "second": second} {
			path := fmt.Sprintf("/away/%s/%d", name, i)
			asked[path] = 1
			status, body := b.get(r, agentID, path)
			require.Equal(t, 200, status, body)
		}
	}
	answered := map[int]chan string{8: make(chan string, 1), 9: make(chan string, 1)}
	for id, r := range map[int]*running{8: first, 9: second} {
		path := fmt.Sprintf("/waits/%d", id)
		asked[path] = 1
		request := b.request(r, developer, http.MethodGet, fmt.Sprintf("/agents/%d/http/shop%s", id, path), "")
		go func() {
			response, err := b.client().Do(request)
			if err != nil {
				answered[id] <- err.Error()
				return
			}
			body, _ := io.ReadAll(response.Body)
			_ = response.Body.Close()
			answered[id] <- string(body)
		}()
	}
	b.shows(first, "lockstep_relay_requests 1")
	b.shows(second, "lockstep_relay_requests 2")
	eight, nine := b.connectPuppet(first.addrs["agents"], 8), b.connectPuppet(first.addrs["agents"], 9)
	require.Equal(t, "8 /waits/8", <-answered[8], "the same relay needs no NATS for it")
	require.Empty(t, answered[9], "and the other one cannot know")
	_, err := io.WriteString(conn, "GET /went/on HTTP/1.0\r\n\r\n")
	require.NoError(t, err)
	answer, err := io.ReadAll(answers)
	require.NoError(t, err)
	require.Contains(t, string(answer), "GET /went/on", "what is routed goes on")
	require.NoError(t, conn.Close())

	require.NoError(t, b.server.Restart())
	require.Eventually(t, func() bool { return topology.EnsureRelays(t.Context(), b.state, topology.Options{}) == nil }, soon, tick)
	require.Equal(t, "9 /waits/9", <-answered[9])
	b.shows(first, "lockstep_relay_unpublished_records 0", "lockstep_relay_known_connections 3")
	b.shows(second, "lockstep_relay_unpublished_records 0", "lockstep_relay_known_connections 3")
	require.NoError(t, eight.Close())
	require.NoError(t, nine.Close())
	replica.stop()
	b.shows(first, "lockstep_relay_connections 0")
	before.requireNoMore(t)
	first.stop() // it tells everything before it ends
	second.stop()
	phases := map[string]int{}
	for _, trail := range everything[events.AgentRequests](b, events.TypeAgentRequests) {
		for _, request := range trail.Requests {
			phases[request.RequestID+" "+string(request.Phase)]++
			if request.Phase == events.RequestPhaseEnded && request.Status == 200 {
				asked[request.Path]--
			}
		}
	}
	for phase, times := range phases {
		require.Equal(t, 1, times, phase)
	}
	for path, missing := range asked {
		require.Zero(t, missing, "%s is in the audit once", path)
	}
	for _, c := range everything[events.AgentConnected](b, events.TypeAgentConnected) {
		delete(answered, c.AgentID)
	}
	require.Empty(t, answered, "who came meanwhile is told, too")
}

// A relay that is killed breaks what it carries, so that nobody takes a part for the whole; its agents come back elsewhere.
func TestARelayIsKilledWhileItCarries(t *testing.T) { //nolint:paralleltest // it measures
	b := setup(t)
	noticing := func(cfg *relay.Config) { cfg.Registry.Lease = 2 * brief } // which is how often is looked for what the dead have left
	killed, rest, third := b.process(), b.relay(noticing), b.relay(noticing)
	w := newWall(t, killed.addrs["agents"])
	before := measure()
	replica := b.replica(w.running())
	b.shows(rest, "lockstep_relay_known_connections 1")
	b.shows(third, "lockstep_relay_known_connections 1")
	broken := b.connectionOf("agent-0")
	const size = 1 << 30
	var bodies []io.ReadCloser
	for _, r := range []*running{rest, &killed.running} {
		for _, query := range []string{"", "?length=1"} {
			response, err := b.client().Do(b.request(r, developer, http.MethodGet, fmt.Sprintf("/agents/7/http/shop/large/%d%s", size, query), ""))
			require.NoError(t, err)
			require.Equal(t, 200, response.StatusCode)
			bodies = append(bodies, response.Body)
		}
	}
	conn, answers, response := b.connect(rest, developer, "shop")
	require.Equal(t, http.StatusSwitchingProtocols, response.StatusCode)
	_, err := fmt.Fprintf(conn, "GET /large/%d HTTP/1.0\r\n\r\n", size)
	require.NoError(t, err)
	_, err = answers.ReadByte()
	require.NoError(t, err)

	w.leadTo(rest.addrs["agents"])
	killed.kill()
	for i, body := range bodies {
		n, err := io.Copy(io.Discard, body)
		require.Error(t, err, "response %d of %d bytes", i, n)
		require.Less(t, n, int64(size))
		require.NoError(t, body.Close())
	}
	n, err := io.Copy(io.Discard, answers)
	require.Error(t, err, "a stream of %d bytes that is cut ends otherwise than one that is whole", n)
	for _, r := range []*running{rest, third} {
		status, body := b.get(r, agentID, "/back")
		require.Equal(t, 200, status, body)
		require.Equal(t, "GET /back", body)
		b.shows(r, "lockstep_relay_known_connections 1")
	}
	b.events(events.TypeAgentDisconnected, func(data []byte) bool {
		var d events.AgentDisconnected
		require.NoError(t, json.Unmarshal(data, &d))
		return d.ConnectionID == broken
	})
	times := 0
	for _, d := range everything[events.AgentDisconnected](b, events.TypeAgentDisconnected) {
		if d.ConnectionID == broken { // a relay that a busy machine has held up for its lease is taken for dead, too
			require.Equal(t, events.DisconnectReasonLost, d.Reason)
			times++
		}
	}
	require.Equal(t, 1, times)
	replica.stop()
	b.shows(rest, "lockstep_relay_connections 0", "lockstep_relay_requests 0")
	before.requireNoMore(t)
}

// Two relays at addresses of their own that do not reach each other: requests wait, and are served when they do again, or when an agent comes to where they wait.
func TestRelaysArePartedForAWhile(t *testing.T) {
	t.Parallel()
	b := setup(t)
	walls := map[string]*wall{"127.0.0.2": newWall(t, ""), "127.0.0.3": newWall(t, "")}
	relays := map[string]*running{}
	for host, w := range walls {
		relays[host] = b.relay(func(cfg *relay.Config) {
			for _, listen := range []*string{&cfg.Agents.Listen, &cfg.External.Listen, &cfg.Internal.Listen} {
				*listen = host + ":0"
			}
			cfg.Internal.URL, cfg.Tunnel.PingInterval = "ws://"+w.addr, time.Second
		})
		w.leadTo(relays[host].addrs["internal"])
	}
	first, second, between := relays["127.0.0.2"], relays["127.0.0.3"], walls["127.0.0.2"]
	b.replica(first)
	ask := func(path string) <-chan string {
		answered, request := make(chan string, 1), b.request(second, developer, http.MethodGet, "/agents/7/http/shop"+path, "")
		go func() {
			response, err := b.client().Do(request)
			if err != nil {
				answered <- err.Error()
				return
			}
			body, _ := io.ReadAll(response.Body)
			_ = response.Body.Close()
			answered <- string(body)
		}()
		return answered
	}
	require.Equal(t, "GET /whole ", <-ask("/whole"))

	there := between.to
	between.leadTo("127.0.0.1:1")
	between.cut()
	waiting := ask("/until/whole")
	b.shows(second, "lockstep_relay_requests 1")
	status, body := b.get(first, agentID, "/here")
	require.Equal(t, 200, status, body)
	require.Empty(t, waiting)
	between.leadTo(there)
	require.Equal(t, "GET /until/whole ", <-waiting)

	between.freeze(true) // nothing says that it is cut
	waiting = ask("/until/an/agent")
	b.shows(second, "lockstep_relay_requests 1")
	b.replica(second)
	require.Equal(t, "GET /until/an/agent ", <-waiting, "what went into the void is lost with the tunnel, and only reads")
}

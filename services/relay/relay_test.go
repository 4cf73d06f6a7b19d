package relay_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/relay/agent"
)

func TestARequestReachesTheAgentThroughAnyRelay(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first, second := b.relay(), b.relay()
	b.replica(first)
	for name, r := range map[string]*running{"the relay that holds it": first, "another one": second} {
		request := b.request(r, developer, http.MethodPost, "/agents/7/http/shop/orders?x=1", "a book")
		request.Header.Set("Lockstep-Authorization", request.Header.Get("Authorization"))
		request.Header.Set("Authorization", "Basic of the shop")
		response, err := b.client().Do(request)
		require.NoError(t, err)
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, 200, response.StatusCode, name)
		require.Equal(t, "POST /orders?x=1 a book", string(body), name)
		require.Equal(t, "at the end", response.Trailer.Get("X-Trailer"), name)
		require.Equal(t, "Basic of the shop", response.Header.Get("X-Authorization"), "what is the target's goes there")
	}
	b.events(events.TypeAgentConnected, func(data []byte) bool {
		var c events.AgentConnected
		require.NoError(t, json.Unmarshal(data, &c))
		require.Equal(t, []any{agentID, projectID, "lockstep", "agent-0"}, []any{c.AgentID, c.ProjectID, c.PodNamespace, c.PodName})
		return true
	})
	seen := map[string]bool{}
	b.events(events.TypeAgentRequests, func(data []byte) bool {
		var trail events.AgentRequests
		require.NoError(t, json.Unmarshal(data, &trail))
		for _, r := range trail.Requests {
			require.Equal(t, events.RequestCaller{Kind: events.CallerKindUser, UserID: developer}, r.Caller)
			require.Equal(t, []any{"shop", "/orders", "POST", 200, 6, 23}, []any{r.Target, r.Path, r.Method, r.Status, r.BytesSent, r.BytesReceived})
			seen[r.RelayID] = true
		}
		return len(seen) == 2
	})
}

func TestWhoMayDoWhat(t *testing.T) {
	t.Parallel()
	b := setup(t)
	r := b.relay()
	b.replica(r)
	for name, tc := range map[string]struct {
		user         int
		method, path string
		status       int
		says         string
	}{
		"an administrator":       {admin, "GET", "/agents/7/http/shop/", 200, "GET /"},
		"a developer":            {developer, "GET", "/agents/7/http/shop", 200, "GET /"},
		"a reader":               {reader, "GET", "/agents/7/http/shop/", 403, "needs the role developer"},
		"a stranger":             {none, "GET", "/agents/7/http/shop/", 404, "agent 7 does not exist"},
		"another agent":          {developer, "GET", "/agents/8/http/shop/", 404, "agent 8 does not exist"},
		"another target":         {developer, "GET", "/agents/7/http/vault/", 403, "vault"},
		"no cluster":             {developer, "GET", "/agents/7/kubernetes/api", 403, "kubernetes.enabled is false"},
		"a path that goes up":    {developer, "GET", "/agents/7/http/shop/a/%2e%2e/b", 400, "path"},
		"something else":         {developer, "GET", "/agents/7/ftp/shop", 404, "use kubernetes, http or tcp"},
		"TCP without an upgrade": {developer, "GET", "/agents/7/tcp/shop", 400, "Upgrade: tcp"},
	} {
		status, body := b.ask(b.request(r, tc.user, tc.method, tc.path, ""))
		require.Equal(t, tc.status, status, "%s: %s", name, body)
		require.Contains(t, body, tc.says, name)
	}
	request := b.request(r, developer, http.MethodGet, "/agents/7/kubernetes/api", "")
	request.Header.Set("Impersonate-User", "system:admin")
	status, body := b.ask(request)
	require.Equal(t, 403, status)
	require.Contains(t, body, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"header Impersonate-User is not allowed`, "kubectl shows it")
	request.Header.Set("Authorization", "Bearer nonsense")
	status, _ = b.ask(request)
	require.Equal(t, 401, status)
}

func TestATargetsBytesAsTheyAre(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first, second := b.relay(), b.relay()
	b.replica(first)
	for _, r := range []*running{first, second} {
		conn, answers, response := b.connect(r, developer, "shop")
		require.Equal(t, http.StatusSwitchingProtocols, response.StatusCode)
		_, err := io.WriteString(conn, "GET /half HTTP/1.0\r\n\r\n")
		require.NoError(t, err)
		require.NoError(t, conn.CloseWrite(), "one direction ends before the other")
		answer, err := io.ReadAll(answers)
		require.NoError(t, err)
		require.Contains(t, string(answer), "GET /half")
		_, _, response = b.connect(r, developer, "vault")
		require.Equal(t, 403, response.StatusCode)
		_, _, response = b.connect(r, reader, "shop")
		require.Equal(t, 403, response.StatusCode)
	}
	b.shop.Close()
	_, _, response := b.connect(first, developer, "shop")
	require.Equal(t, 503, response.StatusCode, "a target that does not answer is told before the switch")
}

func TestARequestWaitsForItsAgent(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first, second := b.relay(), b.relay()
	answered := make(chan string, 1)
	go func() {
		_, body := b.ask(b.request(second, developer, http.MethodGet, "/agents/7/http/shop/late", ""))
		answered <- body
	}()
	require.Eventually(t, func() bool { return b.metric(second, "lockstep_relay_requests 1") }, soon, 5*time.Millisecond)
	b.replica(first)
	require.Equal(t, "GET /late ", <-answered)
}

// Where streams are, and in which direction.
func TestOpenStreamsAreCounted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first, second := b.relay(), b.relay()
	b.replica(first)
	b.shows(second, "lockstep_relay_known_connections 1")
	streams := func(direction string, count int) string {
		return fmt.Sprintf(`lockstep_relay_streams{direction="%s"} %d`, direction, count)
	}
	none := []string{streams("to_agent", 0), streams("to_relay", 0), streams("from_relay", 0)}
	b.shows(first, none...)
	b.shows(second, none...)
	here, _, response := b.connect(first, developer, "shop")
	require.Equal(t, http.StatusSwitchingProtocols, response.StatusCode)
	b.shows(first, streams("to_agent", 1), streams("to_relay", 0), streams("from_relay", 0))
	there, _, response := b.connect(second, developer, "shop")
	require.Equal(t, http.StatusSwitchingProtocols, response.StatusCode)
	b.shows(first, streams("to_agent", 2), streams("to_relay", 0), streams("from_relay", 1))
	b.shows(second, streams("to_agent", 0), streams("to_relay", 1), streams("from_relay", 0))
	require.NoError(t, here.Close())
	require.NoError(t, there.Close())
	b.shows(first, none...)
	b.shows(second, none...)
}

func TestARevokedAgentIsCutOff(t *testing.T) {
	t.Parallel()
	b := setup(t)
	r := b.relay()
	b.replica(r)
	conn, answers, response := b.connect(r, developer, "shop")
	require.Equal(t, http.StatusSwitchingProtocols, response.StatusCode)
	defer conn.Close()
	b.agent(agentID, true)
	_, err := answers.ReadByte()
	require.Error(t, err)
	b.events(events.TypeAgentDisconnected, func(data []byte) bool {
		var d events.AgentDisconnected
		require.NoError(t, json.Unmarshal(data, &d))
		return d.Reason == events.DisconnectReasonRevoked
	})
	status, body := b.ask(b.request(r, developer, http.MethodGet, "/agents/7/http/shop/", ""))
	require.Equal(t, 409, status, body)
}

// What is open to a target ends with it, and nothing goes to the old one over a connection that was kept.
func TestATargetThatMovesIsLeft(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first, second := b.relay(), b.relay()
	b.replica(first)
	moved := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "moved") }))
	t.Cleanup(moved.Close)
	for _, r := range []*running{first, second} {
		_, body := b.ask(b.request(r, developer, http.MethodGet, "/agents/7/http/shop/", ""))
		require.Equal(t, "GET / ", body)
	}
	_, answers, response := b.connect(second, developer, "shop")
	require.Equal(t, http.StatusSwitchingProtocols, response.StatusCode)
	b.configure(2, "shop", moved.Listener.Addr().String())
	_, err := answers.ReadByte()
	require.Error(t, err)
	for _, r := range []*running{first, second} {
		require.Eventually(t, func() bool { // a request that is under way meanwhile fails
			status, body := b.ask(b.request(r, developer, http.MethodGet, "/agents/7/http/shop/", ""))
			return status == http.StatusOK && body == "moved"
		}, soon, tick)
	}
}

func TestACallerWhoLosesItsRoleIsCutOff(t *testing.T) {
	t.Parallel()
	b := setup(t)
	r := b.relay()
	b.replica(r)
	_, answers, response := b.connect(r, developer, "shop")
	require.Equal(t, http.StatusSwitchingProtocols, response.StatusCode)
	b.member(developer, events.MembershipRoleReader)
	_, err := answers.ReadByte()
	require.Error(t, err)
}

// A relay that is drained hands its agents over: requests go on to be answered, by the other one.
func TestADrainFailsNoRequest(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first, second := b.relay(), b.relay()
	b.replica(first, second)
	require.Eventually(t, func() bool {
		return b.metric(first, "lockstep_relay_connections 1") && b.metric(second, "lockstep_relay_known_connections 2")
	}, soon, 5*time.Millisecond)
	conn, answers, response := b.connect(second, developer, "shop")
	require.Equal(t, http.StatusSwitchingProtocols, response.StatusCode)
	stopped, failed := make(chan struct{}), make(chan string, 1)
	go func() {
		defer close(failed)
		for done := false; !done; {
			select {
			case <-stopped:
				done = true
			default:
			}
			if status, body := b.ask(b.request(second, developer, http.MethodGet, "/agents/7/http/shop/", "")); status != 200 {
				failed <- body
				return
			}
		}
	}()
	first.stop()
	close(stopped)
	require.Empty(t, <-failed)
	_, err := io.WriteString(conn, "GET /still HTTP/1.0\r\n\r\n")
	require.NoError(t, err)
	answer, err := io.ReadAll(answers)
	require.NoError(t, err)
	require.Contains(t, string(answer), "GET /still")
}

// Its last word is about the last connection that it held.
func TestARelayThatIsDrainedTellsEveryEnd(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const connections = 40
	first := b.relay()
	b.replicaWith(func(cfg *agent.Config) {
		cfg.Relay.URLs, cfg.Relay.Connections = []string{"ws://" + first.addrs["agents"]}, connections
	})
	require.Eventually(t, func() bool { return b.metric(first, fmt.Sprintf("lockstep_relay_known_connections %d", connections)) }, soon, 5*time.Millisecond)
	first.stop()
	ended := 0
	b.events(events.TypeAgentDisconnected, func(data []byte) bool {
		var d events.AgentDisconnected
		require.NoError(t, json.Unmarshal(data, &d))
		require.Equal(t, events.DisconnectReasonRelayLeft, d.Reason)
		ended++
		return ended == connections
	})
}

package relay_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/relay/agent"
)

func TestRequestReachesAgentThroughAnyRelay(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	first, second := f.relay(), f.relay()
	f.replica(first)
	for name, r := range map[string]*running{"relay with the connection": first, "other relay": second} {
		request := f.request(r, developer, http.MethodPost, "/agents/7/http/web/orders?x=1", "a body")
		request.Header.Set("Lockstep-Authorization", request.Header.Get("Authorization"))
		request.Header.Set("Authorization", "Basic target-credentials")
		response, err := f.client().Do(request)
		require.NoError(t, err)
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, 200, response.StatusCode, name)
		require.Equal(t, "POST /orders?x=1 a body", string(body), name)
		require.Equal(t, "at the end", response.Trailer.Get("X-Trailer"), name)
		require.Equal(t, "Basic target-credentials", response.Header.Get("X-Authorization"),
			"the target's own Authorization header is forwarded")
	}
	f.waitForEvent(events.TypeAgentConnected, func(data []byte) bool {
		var c events.AgentConnected
		require.NoError(t, json.Unmarshal(data, &c))
		require.Equal(t, []any{agentID, projectID}, []any{c.AgentID, c.ProjectID})
		require.Equal(t, "lockstep/agent-0", c.PodNamespace+"/"+c.PodName)
		return true
	})
	relays := map[string]bool{}
	f.waitForEvent(events.TypeAuditRequests, func(data []byte) bool {
		var batch events.AuditRequests
		require.NoError(t, json.Unmarshal(data, &batch))
		for _, r := range batch.Requests {
			require.Equal(t, events.RequestCaller{Kind: events.CallerKindUser, UserID: developer}, r.Caller)
			require.Equal(t, []any{"web", "/orders", "POST", 200}, []any{r.Target, r.Path, r.Method, r.Status})
			require.Equal(t, []any{6, 23}, []any{r.BytesSent, r.BytesReceived})
			relays[r.RelayID] = true
		}
		return len(relays) == 2
	})
}

func TestAccessByRole(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r := f.relay()
	f.replica(r)
	for name, tc := range map[string]struct {
		user         int
		method, path string
		status       int
		wantBody     string
	}{
		"administrator":          {admin, "GET", "/agents/7/http/web/", 200, "GET /"},
		"developer":              {developer, "GET", "/agents/7/http/web", 200, "GET /"},
		"reader":                 {reader, "GET", "/agents/7/http/web/", 403, "needs the role developer"},
		"user without a role":    {outsider, "GET", "/agents/7/http/web/", 404, "agent 7 does not exist"},
		"another agent":          {developer, "GET", "/agents/8/http/web/", 404, "agent 8 does not exist"},
		"another target":         {developer, "GET", "/agents/7/http/other/", 403, "other"},
		"Kubernetes disabled":    {developer, "GET", "/agents/7/kubernetes/api", 403, "kubernetes.enabled is false"},
		"path with dot segments": {developer, "GET", "/agents/7/http/web/a/%2e%2e/b", 400, "path"},
		"unknown protocol":       {developer, "GET", "/agents/7/ftp/web", 404, "use kubernetes, http or tcp"},
		"TCP without an upgrade": {developer, "GET", "/agents/7/tcp/web", 400, "Upgrade: tcp"},
	} {
		status, body := f.do(f.request(r, tc.user, tc.method, tc.path, ""))
		require.Equal(t, tc.status, status, "%s: %s", name, body)
		require.Contains(t, body, tc.wantBody, name)
	}
	request := f.request(r, developer, http.MethodGet, "/agents/7/kubernetes/api", "")
	request.Header.Set("Impersonate-User", "system:admin")
	status, body := f.do(request)
	require.Equal(t, 403, status)
	require.Contains(t, body, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure",`+
		`"message":"header Impersonate-User is not allowed`, "kubectl prints a Status")
	request.Header.Set("Authorization", "Bearer nonsense")
	status, _ = f.do(request)
	require.Equal(t, 401, status)
}

func TestTCPStreamIsForwardedUnchanged(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	first, second := f.relay(), f.relay()
	f.replica(first)
	for _, r := range []*running{first, second} {
		conn, received, response := f.connect(r, developer, "web")
		require.Equal(t, http.StatusSwitchingProtocols, response.StatusCode)
		_, err := io.WriteString(conn, "GET /half HTTP/1.0\r\n\r\n")
		require.NoError(t, err)
		require.NoError(t, conn.CloseWrite(), "half-close")
		answer, err := io.ReadAll(received)
		require.NoError(t, err)
		require.Contains(t, string(answer), "GET /half")
		_, _, response = f.connect(r, developer, "other")
		require.Equal(t, 403, response.StatusCode)
		_, _, response = f.connect(r, reader, "web")
		require.Equal(t, 403, response.StatusCode)
	}
	f.target.Close()
	_, _, response := f.connect(first, developer, "web")
	require.Equal(t, 503, response.StatusCode, "an unreachable target is reported before the 101 response")
}

func TestRequestWaitsForAgent(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	first, second := f.relay(), f.relay()
	response := make(chan string, 1)
	go func() {
		_, body := f.do(f.request(second, developer, http.MethodGet, "/agents/7/http/web/late", ""))
		response <- body
	}()
	f.waitForMetrics(second, "lockstep_relay_requests 1")
	f.replica(first)
	require.Equal(t, "GET /late ", <-response)
}

// The metric counts streams per direction.
func TestOpenStreamsAreCounted(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	first, second := f.relay(), f.relay()
	f.replica(first)
	f.waitForMetrics(second, "lockstep_relay_known_connections 1")
	streams := func(direction string, count int) string {
		return fmt.Sprintf(`lockstep_relay_streams{direction="%s"} %d`, direction, count)
	}
	none := []string{streams("to_agent", 0), streams("to_relay", 0), streams("from_relay", 0)}
	f.waitForMetrics(first, none...)
	f.waitForMetrics(second, none...)
	local, _, response := f.connect(first, developer, "web")
	require.Equal(t, http.StatusSwitchingProtocols, response.StatusCode)
	f.waitForMetrics(first, streams("to_agent", 1), streams("to_relay", 0), streams("from_relay", 0))
	viaPeer, _, response := f.connect(second, developer, "web")
	require.Equal(t, http.StatusSwitchingProtocols, response.StatusCode)
	f.waitForMetrics(first, streams("to_agent", 2), streams("to_relay", 0), streams("from_relay", 1))
	f.waitForMetrics(second, streams("to_agent", 0), streams("to_relay", 1), streams("from_relay", 0))
	require.NoError(t, local.Close())
	require.NoError(t, viaPeer.Close())
	f.waitForMetrics(first, none...)
	f.waitForMetrics(second, none...)
}

func TestRevokedAgentIsDisconnected(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r := f.relay()
	f.replica(r)
	conn, received, response := f.connect(r, developer, "web")
	require.Equal(t, http.StatusSwitchingProtocols, response.StatusCode)
	defer conn.Close()
	f.publishAgent(agentID, true)
	_, err := received.ReadByte()
	require.Error(t, err)
	f.waitForEvent(events.TypeAgentDisconnected, func(data []byte) bool {
		var d events.AgentDisconnected
		require.NoError(t, json.Unmarshal(data, &d))
		return d.Reason == events.DisconnectReasonRevoked
	})
	status, body := f.do(f.request(r, developer, http.MethodGet, "/agents/7/http/web/", ""))
	require.Equal(t, 409, status, body)
}

// When a target's address changes, open streams to it end, and pooled streams are not reused.
func TestStreamsToReconfiguredTargetAreClosed(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	first, second := f.relay(), f.relay()
	f.replica(first)
	moved := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "moved")
	}))
	t.Cleanup(moved.Close)
	for _, r := range []*running{first, second} {
		_, body := f.do(f.request(r, developer, http.MethodGet, "/agents/7/http/web/", ""))
		require.Equal(t, "GET / ", body)
	}
	_, received, response := f.connect(second, developer, "web")
	require.Equal(t, http.StatusSwitchingProtocols, response.StatusCode)
	f.publishAgentConfig(2, "web", moved.Listener.Addr().String())
	_, err := received.ReadByte()
	require.Error(t, err)
	for _, r := range []*running{first, second} {
		require.Eventually(t, func() bool { // a request in flight during the change fails
			status, body := f.do(f.request(r, developer, http.MethodGet, "/agents/7/http/web/", ""))
			return status == http.StatusOK && body == "moved"
		}, timeout, pollInterval)
	}
}

func TestCallerThatLosesRoleIsDisconnected(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r := f.relay()
	f.replica(r)
	_, received, response := f.connect(r, developer, "web")
	require.Equal(t, http.StatusSwitchingProtocols, response.StatusCode)
	f.publishMembership(developer, events.MembershipRoleReader)
	_, err := received.ReadByte()
	require.Error(t, err)
}

// While a relay drains, its agents connect to the other relay, which serves the requests.
func TestDrainFailsNoRequest(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	first, second := f.relay(), f.relay()
	f.replica(first, second)
	f.waitForMetrics(first, "lockstep_relay_connections 1")
	f.waitForMetrics(second, "lockstep_relay_known_connections 2")
	conn, received, response := f.connect(second, developer, "web")
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
			if status, body := f.do(f.request(second, developer, http.MethodGet, "/agents/7/http/web/", "")); status != 200 {
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
	answer, err := io.ReadAll(received)
	require.NoError(t, err)
	require.Contains(t, string(answer), "GET /still")
}

// A drained relay publishes a disconnection for every connection.
func TestDrainPublishesEveryDisconnection(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const connections = 40
	first := f.relay()
	f.replicaWith(func(cfg *agent.Config) {
		cfg.Relay.URLs, cfg.Relay.Connections = []string{"ws://" + first.addrs["agents"]}, connections
	})
	f.waitForMetrics(first, fmt.Sprintf("lockstep_relay_known_connections %d", connections))
	first.stop()
	ended := 0
	f.waitForEvent(events.TypeAgentDisconnected, func(data []byte) bool {
		var d events.AgentDisconnected
		require.NoError(t, json.Unmarshal(data, &d))
		require.Equal(t, events.DisconnectReasonRelayLeft, d.Reason)
		ended++
		return ended == connections
	})
}

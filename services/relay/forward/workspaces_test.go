package forward_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/relay/policy"
)

// gatewayRequest sends a request with a token of the service gateway, and returns the connection and the status.
func (f *fixture) gatewayRequest(path string) (conn net.Conn, r *bufio.Reader, status int) {
	f.t.Helper()
	token, err := f.services.Sign("gateway")
	require.NoError(f.t, err)
	conn, r = f.sendRaw(noRole, "GET "+path+" HTTP/1.1\r\nLockstep-Authorization: Bearer "+token+
		"\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n")
	response, err := http.ReadResponse(r, nil)
	require.NoError(f.t, err)
	return conn, r, response.StatusCode
}

const hello = "/agents/7/tcp/hello.ws-7-hello:60022"

func newWorkspacesFixture(t *testing.T) *fixture {
	t.Helper()
	f := newFixture(t, newAgentAt(t, listenAndServe(t, func(conn net.Conn) { _, _ = io.Copy(conn, conn) })))
	f.handler.SetRules([]policy.Rule{
		{Subject: "gateway", All: true, Workspaces: true},
		{Subject: "ci", All: true, Targets: []string{"kubernetes", "shop"}},
	})
	return f
}

func TestGatewayReachesWorkspacesOnly(t *testing.T) {
	t.Parallel()
	f := newWorkspacesFixture(t)
	for _, path := range []string{
		"/agents/7/kubernetes/api/v1/secrets", "/agents/7/kubernetes/version", "/agents/7/tcp/kubernetes",
		"/agents/7/tcp/shop", "/agents/7/http/shop/", "/agents/7/http/hello.ws-7-hello:60022/",
		"/agents/7/tcp/127.0.0.1:6443", "/agents/7/tcp/kubernetes.default.svc:443", "/agents/7/tcp/hello.ws-7:0",
		"/agents/7/tcp/hello.ws-7%2F..%2Fkube-system:443", "/agents/7/tcp/x/../../kubernetes/version",
		"/agents/8/tcp/hello.ws-7-hello:60022",
	} {
		_, _, status := f.gatewayRequest(path)
		require.Contains(t, []int{http.StatusBadRequest, http.StatusForbidden, http.StatusNotFound}, status, path)
	}
	require.Zero(t, f.opened.Load(), "the agent has seen no attempt")

	conn, r, status := f.gatewayRequest(hello)
	require.Equal(t, http.StatusSwitchingProtocols, status)
	_, err := io.WriteString(conn, "hello")
	require.NoError(t, err)
	echo := make([]byte, len("hello"))
	_, err = io.ReadFull(r, echo)
	require.NoError(t, err)
	require.Equal(t, "hello", string(echo))
}

func TestOnlyServicesWithARuleReachWorkspaces(t *testing.T) {
	t.Parallel()
	f := newWorkspacesFixture(t)
	upgrade := http.Header{"Connection": {"Upgrade"}, "Upgrade": {"tcp"}}
	for user, want := range map[int64]int{
		reader: http.StatusForbidden, developer: http.StatusForbidden, admin: http.StatusForbidden,
		noRole: http.StatusNotFound,
	} {
		response, body := f.request(user, http.MethodGet, hello, upgrade)
		require.Equal(t, want, response.StatusCode, body)
	}
	ci, err := f.services.Sign("ci")
	require.NoError(t, err)
	upgrade.Set("Authorization", "Bearer "+ci)
	response, body := f.request(noRole, http.MethodGet, hello, upgrade)
	require.Equal(t, http.StatusForbidden, response.StatusCode, body)
	require.Zero(t, f.opened.Load())
}

func TestConnectionsToEachWorkspaceAreLimited(t *testing.T) {
	t.Parallel()
	f := newFixture(t, newAgentAt(t, listenAndServe(t, func(conn net.Conn) { _, _ = io.Copy(conn, conn) })),
		options{requestsPerAgent: 1})
	f.handler.SetRules([]policy.Rule{{Subject: "gateway", All: true, Workspaces: true}})
	_, _, status := f.gatewayRequest(hello)
	require.Equal(t, http.StatusSwitchingProtocols, status)
	_, _, status = f.gatewayRequest("/agents/7/tcp/hello.ws-7-hello:3000")
	require.Equal(t, http.StatusTooManyRequests, status, "another port of the workspace")
	_, _, status = f.gatewayRequest("/agents/7/tcp/other.ws-7-other:3000")
	require.Equal(t, http.StatusSwitchingProtocols, status, "another workspace")
}

func TestConnectionsToWorkspacesEndWithTheRule(t *testing.T) {
	t.Parallel()
	f := newWorkspacesFixture(t)
	_, r, status := f.gatewayRequest(hello)
	require.Equal(t, http.StatusSwitchingProtocols, status)
	f.handler.SetRules(nil)
	_, err := r.ReadByte()
	require.Error(t, err)
}

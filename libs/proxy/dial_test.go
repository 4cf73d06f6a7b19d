package proxy_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/proxy"
	"lockstep.internal/tools/testkit/leaktest"
	"lockstep.internal/tools/testkit/proxytest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// server returns the address of a server that answers each line.
func server(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "hello")
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// get requests / on a connection.
func get(t *testing.T, conn net.Conn) string {
	t.Helper()
	defer conn.Close()
	_, err := io.WriteString(conn, "GET / HTTP/1.0\r\n\r\n")
	require.NoError(t, err)
	all, err := io.ReadAll(conn)
	require.NoError(t, err)
	return string(all)
}

func TestDialsThroughTheProxyOfTheEnvironment(t *testing.T) { //nolint:paralleltest // sets the environment
	p := proxytest.Start(t, map[string]string{"nats.example:443": server(t)})
	proxytest.Environment(t, p.URL, "")
	conn, err := proxy.Dial(t.Context(), "nats.example:443", true)
	require.NoError(t, err)
	require.True(t, strings.HasSuffix(get(t, conn), "hello"))
	require.Equal(t, []string{"nats.example:443"}, p.Connects())

	_, err = proxy.Dial(t.Context(), "elsewhere.example:443", true)
	require.ErrorContains(t, err, "connect to elsewhere.example:443: the proxy responded 403 Forbidden")

	withPassword, err := url.Parse(p.URL)
	require.NoError(t, err)
	withPassword.User = url.UserPassword("agent", "secret")
	proxytest.Environment(t, withPassword.String(), "")
	_, err = proxy.Dial(t.Context(), "elsewhere.example:443", true)
	require.ErrorContains(t, err, "agent:xxxxx@")
	require.NotContains(t, err.Error(), "secret")
	require.Equal(t, "Basic YWdlbnQ6c2VjcmV0", p.Authorization())

	proxytest.Environment(t, withPassword.String(), ".example")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = proxy.Dial(ctx, "nats.example:443", true)
	require.Error(t, err)
	require.NotContains(t, err.Error(), "proxy", "it is dialed directly")
}

func TestDialsDirectlyWithoutAProxy(t *testing.T) { //nolint:paralleltest // sets the environment
	proxytest.Environment(t, "http://proxy.invalid:1", "")
	address := server(t)
	conn, err := proxy.Dial(t.Context(), address, false)
	require.NoError(t, err)
	require.True(t, strings.HasSuffix(get(t, conn), "hello"))
	conn, err = proxy.Dial(t.Context(), address, true)
	require.NoError(t, err, "this machine is dialed directly")
	require.NoError(t, conn.Close())
}

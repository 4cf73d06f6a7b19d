package dial_test

import (
	"bufio"
	"context"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/gateway/access"
	"lockstep.internal/services/gateway/dial"
)

var entry = access.Entry{ID: workspace, Name: "hello", Namespace: "ws-7-hello", AgentID: 7}

func token() (string, error) { return "the token", nil }

// relayThat starts a relay that answers with a handler. It returns a tunnel through it.
func relayThat(t *testing.T, secure bool, answer func(net.Conn, *bufio.ReadWriter, *http.Request)) *dial.Tunnel {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err == nil {
			defer conn.Close()
			answer(conn, buffered, r)
		}
	}))
	var pool *x509.CertPool
	if secure {
		server.StartTLS()
		pool = x509.NewCertPool()
		pool.AddCert(server.Certificate())
	} else {
		server.Start()
	}
	t.Cleanup(server.Close)
	tunnel, err := dial.NewTunnel(server.URL, pool, token)
	require.NoError(t, err)
	return tunnel
}

func TestTunnelJoinsTheConnectionWithTheWorkspace(t *testing.T) {
	t.Parallel()
	for _, secure := range []bool{false, true} {
		asked := make(chan *http.Request, 1)
		tunnel := relayThat(t, secure, func(conn net.Conn, buffered *bufio.ReadWriter, r *http.Request) {
			asked <- r
			// A server that speaks first may do so in the packet of the response.
			_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\nfirst ")
			_, _ = io.Copy(conn, buffered)
		})
		conn, err := tunnel.Dial(t.Context(), entry, 3000)
		require.NoError(t, err)
		_, err = io.WriteString(conn, "echo")
		require.NoError(t, err)
		text := make([]byte, len("first echo"))
		_, err = io.ReadFull(conn, text)
		require.NoError(t, err)
		require.Equal(t, "first echo", string(text))
		require.NoError(t, conn.Close())
		r := <-asked
		require.Equal(t, "GET /agents/7/tcp/hello.ws-7-hello:3000", r.Method+" "+r.URL.Path)
		require.Equal(t, "Bearer the token", r.Header.Get("Authorization"))
		require.Equal(t, "tcp", r.Header.Get("Upgrade"))
		require.Regexp(t, `^wait=1[45]\.\d$`, r.Header.Get("Prefer"))
	}
}

func TestTunnelReportsWhyTheRelayRefused(t *testing.T) {
	t.Parallel()
	tunnel := relayThat(t, false, func(conn net.Conn, _ *bufio.ReadWriter, _ *http.Request) {
		const reason = "service \"gateway\" has no rule"
		_, _ = io.WriteString(conn, "HTTP/1.1 403 Forbidden\r\nConnection: close\r\n\r\n"+reason+
			strings.Repeat(" and more", 10_000))
	})
	_, err := tunnel.Dial(t.Context(), entry, 3000)
	require.ErrorContains(t, err, `agent 7: it responded 403 Forbidden: service "gateway" has no rule`)
	require.Less(t, len(err.Error()), 5000)
}

func TestTunnelEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tunnel := relayThat(t, false, func(conn net.Conn, buffered *bufio.ReadWriter, _ *http.Request) {
		cancel()
		_, _ = io.Copy(io.Discard, buffered) // until the gateway closes
		_ = conn.Close()
	})
	_, err := tunnel.Dial(ctx, entry, 3000)
	require.ErrorIs(t, err, context.Canceled)
}

func TestTunnelDistrustsUnknownRelays(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	tunnel, err := dial.NewTunnel(server.URL, x509.NewCertPool(), token)
	require.NoError(t, err)
	_, err = tunnel.Dial(t.Context(), entry, 3000)
	require.ErrorContains(t, err, "unknown authority")
	for _, relay := range []string{"", "relay.example", "wss://relay.example", "https://"} {
		_, err := dial.NewTunnel(relay, nil, token)
		require.Error(t, err, relay)
	}
}

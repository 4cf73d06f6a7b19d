package tunnel_test

import (
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/relay/tunnel"
	"lockstep.internal/tools/testkit/proxytest"
)

// newRelay upgrades every request and echoes every stream.
func newRelay(t *testing.T, start func(*httptest.Server)) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Header.Get("Authorization") {
		case "busy":
			w.Header().Set("Retry-After", "7")
			http.Error(w, "too many agents at once", http.StatusServiceUnavailable)
			return
		case "not-a-relay":
			w.WriteHeader(http.StatusOK)
			return
		}
		conn, encrypted, err := tunnel.Upgrade(w, r, http.Header{"Lockstep-Relay": {"one"}})
		if err != nil {
			return
		}
		_ = tunnel.NewSession(conn, false, encrypted, tunnel.Config{}, func(s *tunnel.Stream) {
			_, _ = io.Copy(s, s)
			_ = s.Close()
		}).Serve()
	}))
	start(server)
	t.Cleanup(server.Close)
	return server
}

func TestDialAndUpgrade(t *testing.T) {
	t.Parallel()
	starts := map[string]func(*httptest.Server){
		"plain": (*httptest.Server).Start, "over TLS": (*httptest.Server).StartTLS,
	}
	for name, start := range starts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := newRelay(t, start)
			var cfg *tls.Config
			if server.TLS != nil {
				cfg = server.Client().Transport.(*http.Transport).TLSClientConfig
			}
			conn, err := tunnel.Dialer{TLS: cfg}.Dial(t.Context(), strings.Replace(server.URL, "http", "ws", 1), nil)
			require.NoError(t, err)
			require.Equal(t, server.TLS != nil, conn.Encrypted)
			require.Equal(t, "one", conn.Header.Get("Lockstep-Relay"))
			s := tunnel.NewSession(conn.Conn, true, conn.Encrypted, tunnel.Config{}, nil)
			ended := make(chan error, 1)
			go func() { ended <- s.Serve() }()
			stream, err := s.Open(nil)
			require.NoError(t, err)
			sent := strings.Repeat("payload, ", 50_000)
			go func() {
				_, _ = io.WriteString(stream, sent)
				_ = stream.CloseWrite()
			}()
			back, err := io.ReadAll(stream)
			require.NoError(t, err)
			require.Equal(t, sent, string(back))
			require.NoError(t, s.Close())
			require.ErrorIs(t, <-ended, tunnel.ErrClosed)
		})
	}
}

func TestDialsRelaysThroughAProxy(t *testing.T) { //nolint:paralleltest // sets the environment
	server := newRelay(t, (*httptest.Server).StartTLS)
	const relay = "relay.example.com:443"
	p := proxytest.Start(t, map[string]string{relay: server.Listener.Addr().String()})
	proxytest.Environment(t, p.URL, "")
	cfg := server.Client().Transport.(*http.Transport).TLSClientConfig
	conn, err := tunnel.Dialer{TLS: cfg}.Dial(t.Context(), "wss://relay.example.com/tunnel", nil)
	require.NoError(t, err)
	require.True(t, conn.Encrypted)
	require.Equal(t, []string{relay}, p.Connects())
	require.NoError(t, conn.Conn.Close())
	_, err = tunnel.Dialer{TLS: cfg, NoProxy: true}.Dial(t.Context(), "wss://relay.example.com/tunnel", nil)
	require.Error(t, err)
}

func TestHandshakeErrorHasTextAndRetryAfter(t *testing.T) {
	t.Parallel()
	server := newRelay(t, (*httptest.Server).Start)
	url := strings.Replace(server.URL, "http", "ws", 1)
	_, err := tunnel.Dialer{}.Dial(t.Context(), url, http.Header{"Authorization": {"busy"}})
	var refused *tunnel.HandshakeError
	require.ErrorAs(t, err, &refused)
	want := tunnel.HandshakeError{
		Status: http.StatusServiceUnavailable, Text: "too many agents at once", RetryAfter: 7 * time.Second,
	}
	require.Equal(t, want, *refused)
	_, err = tunnel.Dialer{}.Dial(t.Context(), url, http.Header{"Authorization": {"not-a-relay"}})
	require.ErrorAs(t, err, &refused)
	_, err = tunnel.Dialer{}.Dial(t.Context(), url, http.Header{"Origin": {"https://page.example"}})
	require.ErrorContains(t, err, "403")
	server.Close()
	_, err = tunnel.Dialer{}.Dial(t.Context(), url, nil)
	require.ErrorContains(t, err, "connect to the relay at "+url)
}

func TestInvalidUpgradeIsRejected(t *testing.T) {
	t.Parallel()
	server := newRelay(t, (*httptest.Server).Start)
	for name, header := range map[string]http.Header{
		"plain": {},
		"another subprotocol": {
			"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-WebSocket-Version": {"13"},
			"Sec-WebSocket-Key": {"AAAAAAAAAAAAAAAAAAAAAA=="}, "Sec-WebSocket-Protocol": {"chat"},
		},
		"no WebSocket headers": {"Sec-WebSocket-Protocol": {tunnel.Subprotocol}},
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
		require.NoError(t, err)
		request.Header = header
		response, err := server.Client().Do(request)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, http.StatusBadRequest, response.StatusCode, name)
	}
}

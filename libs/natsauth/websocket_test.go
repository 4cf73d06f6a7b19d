package natsauth_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/natsconn"
	"lockstep.internal/tools/testkit/proxytest"
)

// TestAgentConnectsWithWebSocketsThroughAProxy has a server whose name only the proxy knows.
func TestAgentConnectsWithWebSocketsThroughAProxy(t *testing.T) { //nolint:paralleltest // sets the environment
	certFile, keyFile := proxytest.Certificate(t)
	c := &cell{
		dir: initDir(t, natsauth.Options{
			TLS: &natsauth.TLS{CertFile: certFile, KeyFile: keyFile}, WebSocketPort: -1,
		}),
		directory: newDirectory(),
	}
	c.server = startServer(t, c.dir)
	c.startResponderWith(t, []nats.Option{nats.RootCAs(certFile)})

	const server = "nats.example.com:443"
	p := proxytest.Start(t, map[string]string{server: strings.TrimPrefix(c.server.WebsocketURL(), "wss://")})
	ca, err := os.ReadFile(certFile)
	require.NoError(t, err)

	credentials := someCredentials(t)
	credentials.ServerURLs, credentials.CA = []string{"wss://nats.example.com"}, string(ca)
	c.directory.admit(credentials.AgentID, credentials.Token)

	path := filepath.Join(t.TempDir(), "agent.json")
	require.NoError(t, natsauth.WriteAgentCredentials(path, credentials))

	options, err := credentials.ConnectOptionsFrom(path, slog.New(slog.DiscardHandler))
	require.NoError(t, err)

	cfg := natsconn.DefaultConfig()
	cfg.URL = config.URL(credentials.ServerURLs[0])
	connect := func() *natsconn.Conn {
		t.Helper()

		conn, err := natsconn.Connect(t.Context(), cfg, slog.New(slog.DiscardHandler), options...)
		require.NoError(t, err)
		t.Cleanup(conn.Close)

		return conn
	}

	proxytest.Environment(t, "", "")
	require.False(t, connect().IsConnected(), "without the proxy there is no way to the server")

	proxytest.Environment(t, p.URL, "")

	conn := connect()
	require.Eventually(t, conn.IsConnected, timeout, 10*time.Millisecond)
	require.NoError(t, conn.Flush())
	_, err = conn.RequestWithContext(testContext(t), "lockstep.local.secret.17.w", nil)
	require.ErrorIs(t, err, nats.ErrNoResponders, "it has the permissions of an agent")

	p.CloseAll()
	require.Eventually(t, func() bool { return conn.Stats().Reconnects > 0 }, timeout, 10*time.Millisecond)

	for _, target := range p.Connects() {
		require.Equal(t, server, target)
	}
}

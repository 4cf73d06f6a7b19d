package dispatcher_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/natsauth"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/tools/testkit/proxytest"
)

// TestDispatcherAppliesThroughAnHTTPProxy has a server whose name only the proxy knows.
func TestDispatcherAppliesThroughAnHTTPProxy(t *testing.T) { //nolint:paralleltest // sets the environment
	certFile, keyFile := proxytest.Certificate(t)
	p := newFixtureWith(t, natsauth.Options{
		TLS: &natsauth.TLS{CertFile: certFile, KeyFile: keyFile}, WebSocketPort: -1,
	})
	const server = "nats.example.com:443"
	proxy := proxytest.Start(t, map[string]string{server: strings.TrimPrefix(p.server.WebSocketURL(), "wss://")})
	proxytest.Environment(t, proxy.URL, "")
	credentials, err := natsauth.ReadAgentCredentials(p.file)
	require.NoError(t, err)
	ca, err := os.ReadFile(certFile)
	require.NoError(t, err)
	credentials.ServerURLs, credentials.CA = []string{"wss://nats.example.com"}, string(ca)
	require.NoError(t, natsauth.WriteAgentCredentials(p.file, credentials))
	cfg := p.config()
	cfg.PublishTimeout = 0 // the acknowledgement of a result may be lost with the connection
	p.start(cfg)

	w := p.workspace()
	w.Manifests = []map[string]any{p.configMap(w, "files", "1")}
	w.Secrets = []events.SecretReference{{Name: "variables", Digest: "d1"}}
	p.secret("d1", "hunter2")
	p.desire(w)
	require.Equal(t, 1, next[events.Applied](p, "applied").DesiredRevision)

	proxy.CloseAll()
	w.DesiredRevision = 2
	p.desire(w)
	for next[events.Applied](p, "applied").DesiredRevision != 2 { // after a reconnection
		continue // the first result, again
	}
	require.Greater(t, len(proxy.Connects()), 1)
	for _, target := range proxy.Connects() {
		require.Equal(t, server, target)
	}
}

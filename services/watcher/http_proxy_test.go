package watcher_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/natsauth"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/tools/testkit/proxytest"
)

// TestWatcherReportsThroughAnHTTPProxy has a server whose name only the proxy knows.
func TestWatcherReportsThroughAnHTTPProxy(t *testing.T) { //nolint:paralleltest // sets the environment
	certFile, keyFile := proxytest.Certificate(t)
	f := newFixtureWith(t, natsauth.Options{
		TLS: &natsauth.TLS{CertFile: certFile, KeyFile: keyFile}, WebSocketPort: -1,
	})
	const server = "nats.example.com:443"
	p := proxytest.Start(t, map[string]string{server: strings.TrimPrefix(f.server.WebSocketURL(), "wss://")})
	proxytest.Environment(t, p.URL, "")
	credentials, err := natsauth.ReadAgentCredentials(f.credentials)
	require.NoError(t, err)
	ca, err := os.ReadFile(certFile)
	require.NoError(t, err)
	credentials.ServerURLs, credentials.CA = []string{"wss://nats.example.com"}, string(ca)
	require.NoError(t, natsauth.WriteAgentCredentials(f.credentials, credentials))

	w := f.workspace(t)
	w.create(t, "first", 0)
	start(t, f.config(t))
	recorder := f.record(t)
	_, members := recorder.resynced(t)
	require.NotEmpty(t, of(members, events.TypeObservedWorkload, "first"))

	p.CloseAll()
	w.create(t, "second", 0)
	recorder.until(t, "a change after a reconnection", func(h recorded) bool { return h.Object.Name == "second" })
	require.Greater(t, len(p.Connects()), 1)
	for _, target := range p.Connects() {
		require.Equal(t, server, target)
	}
}

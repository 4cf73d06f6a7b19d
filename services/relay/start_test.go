package relay_test

import (
	"context"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/natsauth"
	"lockstep.internal/services/relay"
)

// NATS is away when a relay starts. Requests wait for it, and then for their agent.
func TestRequestWaitsForRelayThatStartsWithoutNATS(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.server.Down()
	cfg := relayConfig(f.server.ClientURL(), natsauth.SeedFile(f.dir, natsauth.PrincipalRelay), f.secret())
	r := run(t, "relay", func(ctx context.Context, listening func(map[string]string)) error {
		cfg.OnListen = listening
		return relay.Main(ctx, cfg)
	})
	request := f.request(r, developer, http.MethodGet, "/agents/7/kubernetes/api/v1/pods?timeout=1s", "")
	status, body := f.do(request)
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.Contains(t, body, `"kind":"Status"`)
	require.Contains(t, body, "this relay has just started and has not read the directory")

	response := make(chan string, 1)
	go func() {
		_, body := f.do(f.request(r, developer, http.MethodGet, "/agents/7/http/web/early", ""))
		response <- body
	}()
	f.waitForMetrics(r, "lockstep_relay_waiting_requests 1")
	require.NoError(t, f.server.Restart())
	f.replica(r)
	require.Equal(t, "GET /early ", <-response)
}

package dispatcher_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
)

func TestInvalidDesiredStateIsReported(t *testing.T) {
	t.Parallel()
	p := newFixture(t)
	addrs, _ := p.start(p.config())
	w := p.workspace()
	w.Manifests = []map[string]any{{"no": "metadata"}}
	p.desire(w)
	failed := next[events.ApplyFailed](p, "apply_failed")
	require.Equal(t, "Malformed", failed.Reason)
	require.Equal(t, 1, failed.DesiredRevision)
	require.Zero(t, failed.RetryAfterMs)

	// Without a revision the message is dropped and does not block others.
	_, err := p.js.Publish(p.context(), cell.Desired(p.agent, "garbage"), []byte("no event"))
	require.NoError(t, err)
	w.DesiredRevision, w.Manifests = 2, []map[string]any{p.configMap(w, "files", "1")}
	p.desire(w)
	require.Equal(t, 2, next[events.Applied](p, "applied").DesiredRevision)
	var metrics string
	for _, line := range []string{
		"\nlockstep_dispatcher_dropped_total 1\n", "\nlockstep_dispatcher_failed_total{reason=\"Malformed\"} 1\n",
		"\nlockstep_dispatcher_applied_total 1\n", "\nlockstep_dispatcher_leading 1\n",
	} {
		require.Eventually(t, func() bool { // the metric is updated after the event is published
			metrics = get(t, "http://"+addrs["ops"]+"/metrics")
			return strings.Contains(metrics, line)
		}, timeout, tick, line)
	}
	require.NotContains(t, strings.ToLower(metrics), w.WorkspaceID, "no label grows with the number of workspaces")
}

func get(t *testing.T, url string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	require.NoError(t, err)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	require.NoError(t, err)
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	return string(body)
}

package forward_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// kubectl prints warnings, and does not read the body of a failed discovery.
func TestFailedDiscoveryHasAWarning(t *testing.T) {
	t.Parallel()
	f := newFixture(t, newAgent(t, &recordingTarget{}))
	for path, warned := range map[string]bool{
		"/api": true, "/apis?timeout=32s": true, "/version": true, "/openapi/v3": true,
		"/api/v1/pods": false, "/apis/apps/v1/namespaces/a/deployments": false,
	} {
		response, body := f.request(developer, http.MethodGet, "/agents/7/kubernetes"+path,
			http.Header{"Impersonate-User": {`a "user"`}})
		require.Equal(t, http.StatusForbidden, response.StatusCode, path)
		reason := "header Impersonate-User is not allowed: the relay sets impersonation"
		require.Contains(t, body, `"message":"`+reason+`"`, path)
		want := ""
		if warned {
			want = `299 lockstep "` + reason + `"`
		}
		require.Equal(t, want, response.Header.Get("Warning"), path)
	}
}

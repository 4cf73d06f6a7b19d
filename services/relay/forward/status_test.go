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

// The connection to the agent is lost: clients of the Kubernetes API receive a Status, others a fault.
func TestFailedForwardingIsExplained(t *testing.T) {
	t.Parallel()
	f := newFixture(t, newAgent(t, &recordingTarget{}))
	require.NoError(t, f.session.Close())
	const reason = "the connection to the agent was lost: the request may have had an effect"
	for path, want := range map[string]string{
		"/kubernetes/api": `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"` + reason +
			`","reason":"ServiceUnavailable","code":503}`,
		"/kubernetes/api/v1/pods": `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"` +
			reason + `","reason":"ServiceUnavailable","code":503}`,
		"/http/shop/api/v1/pods":     `{"code":"unavailable","message":"` + reason + `"}`,
		"/http/shop/kubernetes/api/": `{"code":"unavailable","message":"` + reason + `"}`,
	} {
		response, body := f.request(developer, http.MethodGet, "/agents/7"+path, nil)
		require.Equal(t, http.StatusServiceUnavailable, response.StatusCode, path)
		require.JSONEq(t, want, body, path)
		require.Equal(t, path == "/kubernetes/api", response.Header.Get("Warning") != "", path)
	}
}

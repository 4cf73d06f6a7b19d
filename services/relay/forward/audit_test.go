package forward_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/relay/audit"
)

func TestAuditRecords(t *testing.T) {
	t.Parallel()
	f := newFixture(t, newAgent(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		if strings.HasPrefix(r.URL.Path, "/broken") {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, strings.Repeat("x", int(n)+5))
	})))
	_, r := f.sendRaw(developer,
		"POST /agents/7/http/shop/path?token=hidden HTTP/1.1\r\nContent-Length: 3\r\nX-Secret: hidden\r\n\r\nabc")
	response, err := http.ReadResponse(r, nil)
	require.NoError(t, err)
	require.Equal(t, "xxxxxxxx", read(t, response))
	all := f.auditRecords()
	require.Len(t, all, 1)
	got := all[0]
	require.NotEmpty(t, got.RequestID)
	require.NotZero(t, got.StartedAt)
	require.Positive(t, got.Duration)
	got.RequestID, got.StartedAt, got.Duration = "", time.Time{}, 0
	require.Equal(t, audit.Record{
		UserID: developer, AgentID: agentID, ConnectionID: 1, Target: "shop", Protocol: audit.HTTP, Phase: audit.Ended,
		Method: "POST", Path: "/path", Status: http.StatusTeapot, BytesSent: 3, BytesReceived: 8,
	}, got)

	for name, c := range map[string]struct {
		user                      int64
		method, path              string
		status                    int
		verb, wantPath, wantError string
	}{
		"refused": {
			reader, "DELETE", "/agents/7/kubernetes/api/v1/nodes/a?hidden", 403, "delete", "", "permission_denied",
		},
		"no role":             {noRole, "GET", "/agents/7/kubernetes/version", 404, "", "/version", "not_found"},
		"connection aborted":  {developer, "GET", "/agents/7/http/shop/broken?hidden", 503, "", "/broken", "unavailable"},
		"tcp without upgrade": {developer, "GET", "/agents/7/tcp/shop", 400, "", "", "invalid_argument"},
	} {
		response, body := f.request(c.user, c.method, c.path, nil)
		require.Equal(t, c.status, response.StatusCode, body)
		all := f.auditRecords()
		last := all[len(all)-1]
		require.Equal(t, audit.Ended, last.Phase, name)
		require.Equal(t, c.status, last.Status, name)
		require.Equal(t, c.verb, last.Verb, name)
		require.Equal(t, c.wantPath, last.Path, name)
		require.Contains(t, last.Error, c.wantError, name)
		require.Zero(t, last.BytesReceived, "%s: an error of the relay itself is not counted", name)
		require.NotContains(t, fmt.Sprint(all), "hidden", name)
	}
}

func TestCallerDisconnectIsAudited(t *testing.T) {
	t.Parallel()
	f := newFixture(t, newAgent(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "begun")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})))
	conn, r := f.sendRaw(developer, "GET /agents/7/kubernetes/api/v1/pods?watch HTTP/1.1\r\n\r\n")
	response, err := http.ReadResponse(r, nil)
	require.NoError(t, err)
	_, err = io.ReadFull(response.Body, make([]byte, 5))
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	all := f.auditRecords()
	require.Len(t, all, 2, "a watch has two records")
	require.Equal(t, audit.Begun, all[0].Phase)
	require.Zero(t, all[0].Status)
	require.Equal(t, audit.Ended, all[1].Phase)
	require.Equal(t, all[0].RequestID, all[1].RequestID)
	require.Equal(t, "watch", all[1].Verb)
	require.EqualValues(t, 5, all[1].BytesReceived)
	require.Equal(t, "the caller has gone", all[1].Error)
}

// A caller above its budget of records may not change a cluster unseen. Its other requests are summed up.
func TestRequestsAboveTheAuditBudget(t *testing.T) {
	t.Parallel()
	f := newFixture(t, newAgent(t, &recordingTarget{}), options{auditBurst: 2})
	pods := "/agents/7/kubernetes/api/v1/namespaces/a/pods"
	for range 2 {
		response, body := f.request(developer, http.MethodDelete, pods+"/x", nil)
		require.Equal(t, http.StatusOK, response.StatusCode, body)
	}
	response, body := f.request(developer, http.MethodDelete, pods+"/x", nil)
	require.Equal(t, http.StatusTooManyRequests, response.StatusCode, body)
	require.Equal(t, "1", response.Header.Get("Retry-After"))
	require.Contains(t, body, "than the audit log records of one caller")
	for range 3 {
		response, body := f.request(developer, http.MethodGet, pods, nil)
		require.Equal(t, http.StatusOK, response.StatusCode, body)
	}
	response, body = f.request(admin, http.MethodDelete, pods+"/x", nil)
	require.Equal(t, http.StatusOK, response.StatusCode, "another caller: "+body)
	requests := map[string]int{}
	for _, r := range f.auditRecords() {
		requests[fmt.Sprintf("user %d %s %d", r.UserID, r.Verb, r.Status)] += max(1, r.Count)
	}
	require.Equal(t, map[string]int{
		"user 8 delete 200": 2, "user 8 delete 429": 1, "user 8 list 200": 3, "user 5 delete 200": 1,
	}, requests)
}

// The subject of a service's token is free.
func TestInventedSubjectsShareABudgetOfAuditRecords(t *testing.T) {
	t.Parallel()
	f := newFixture(t, newAgent(t, &recordingTarget{}), options{auditBurst: 2})
	get := func(subject string) int {
		token, err := f.services.Sign(subject)
		require.NoError(t, err)
		response, _ := f.request(0, http.MethodGet, "/agents/7/kubernetes/api/v1/pods", http.Header{
			"Authorization": {"Bearer " + token},
		})
		return response.StatusCode
	}
	for i := range 6 {
		require.Equal(t, http.StatusForbidden, get(fmt.Sprint("invented", i)))
	}
	require.Equal(t, http.StatusOK, get("ci"))
	counts := map[string]int{}
	for _, r := range f.auditRecords() {
		counts[r.Subject] += max(1, r.Count)
	}
	require.Equal(t, map[string]int{"invented0": 1, "invented1": 1, "": 4, "ci": 1}, counts)
}

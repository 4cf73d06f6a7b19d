package gitlab_test

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/runners/gitlab"
	"lockstep.internal/tools/testkit/runnerclient"
)

// newSlowServer starts a server with little patience for bodies.
func newSlowServer(t *testing.T, timeout time.Duration) (*memory, string) {
	t.Helper()
	m := newMemory()
	server := httptest.NewServer(gitlab.NewHandler(gitlab.Config{
		Runners: m, Queue: m, Jobs: m, Artifacts: m, Hold: 10 * timeout, BodyTimeout: timeout,
		Logger: slog.New(slog.DiscardHandler),
	}))
	t.Cleanup(server.Close)
	return m, strings.TrimPrefix(server.URL, "http://")
}

// TestBodyThatStopsIsRefused is about clients that keep a request open.
func TestBodyThatStopsIsRefused(t *testing.T) {
	t.Parallel()
	m, address := newSlowServer(t, 20*time.Millisecond)
	m.jobs[1] = &job{id: 1, status: "running"}
	for _, request := range []string{
		"POST /api/v4/jobs/request", "PATCH /api/v4/jobs/1/trace", "POST /api/v4/jobs/1/artifacts",
	} {
		var dialer net.Dialer
		conn, err := dialer.DialContext(t.Context(), "tcp", address)
		require.NoError(t, err)
		_, err = fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: x\r\nJOB-TOKEN: glcbt-0123456789-1\r\nContent-Range: 0-99\r\n"+
			"Content-Type: multipart/form-data; boundary=b\r\nContent-Length: 100\r\n\r\n--b\r\n", request)
		require.NoError(t, err)
		answer, err := io.ReadAll(conn) // the server also closes the connection
		require.NoError(t, err)
		require.NoError(t, conn.Close())
		require.Regexp(t, `^HTTP/1.1 (504|400) `, string(answer), request)
		require.Contains(t, string(answer), `"message":"`, request)
	}
}

// TestWaitingRequestOutlivesTheTimeOfItsBody is about the deadline of a connection, which must end with the body.
func TestWaitingRequestOutlivesTheTimeOfItsBody(t *testing.T) {
	t.Parallel()
	_, address := newSlowServer(t, 20*time.Millisecond)
	client := runnerclient.New(runnerclient.Config{URL: "http://" + address, Token: "glrt-one"})
	defer client.Close()
	started := time.Now()
	j, err := client.RequestJob(t.Context())
	require.NoError(t, err)
	require.Nil(t, j)
	require.GreaterOrEqual(t, time.Since(started), 200*time.Millisecond)
}

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

// newTimedServer starts a server and returns its address.
func newTimedServer(t *testing.T, hold, bodyTimeout time.Duration) (*memory, string) {
	t.Helper()
	m := newMemory()
	server := httptest.NewServer(gitlab.NewHandler(gitlab.Config{
		Runners: m, Queue: m, Jobs: m, Artifacts: m, Hold: hold, BodyTimeout: bodyTimeout,
		Logger: slog.New(slog.DiscardHandler),
	}))
	t.Cleanup(server.Close)
	return m, strings.TrimPrefix(server.URL, "http://")
}

// TestBodyThatStopsIsRefused is about clients that keep a request open.
func TestBodyThatStopsIsRefused(t *testing.T) {
	t.Parallel()
	m, address := newTimedServer(t, time.Minute, 20*time.Millisecond)
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
	const hold = 3 * time.Second
	_, address := newTimedServer(t, hold, 2*time.Second) // the body has enough time on a busy machine
	client := runnerclient.New(runnerclient.Config{URL: "http://" + address, Token: "glrt-one"})
	defer client.Close()
	started := time.Now()
	j, err := client.RequestJob(t.Context())
	require.NoError(t, err)
	require.Nil(t, j)
	require.GreaterOrEqual(t, time.Since(started), hold)
}

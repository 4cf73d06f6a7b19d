package forward_test

import (
	"context"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestHeadersForwardedToHTTPTarget(t *testing.T) {
	t.Parallel()
	target := &recordingTarget{}
	f := newFixture(t, newAgent(t, target))
	response, body := f.request(0, http.MethodGet, "/agents/7/http/shop/a%2Fb?c=d&e=%20f", http.Header{
		"Lockstep-Authorization": {f.token(developer)}, "Authorization": {"Basic x"}, "Connection": {"X-Hop"}, "X-Hop": {"1"},
		"Te": {"trailers"}, "X-Forwarded-For": {"10.9.8.7"}, "Impersonate-User": {"x"},
	})
	require.Equal(t, http.StatusOK, response.StatusCode)
	require.Equal(t, "response", body)
	require.Equal(t, "8", response.Trailer.Get("Sum"))
	require.Empty(t, response.Header.Get("Keep-Alive"))
	got := target.lastRequest()
	require.Equal(t, "/a%2Fb?c=d&e=%20f", got.RequestURI)
	require.Equal(t, "Basic x", got.Header.Get("Authorization"), "the Authorization header is for the target")
	require.Equal(t, "x", got.Header.Get("Impersonate-User"), "HTTP targets do not interpret it")
	require.Equal(t, "127.0.0.1", got.Header.Get("X-Forwarded-For"))
	for _, removed := range []string{"X-Hop", "Lockstep-Authorization", "Lockstep-Connection"} {
		require.Empty(t, got.Header.Get(removed), removed)
	}
	response, body = f.request(developer, http.MethodHead, "/agents/7/http/shop/", nil)
	require.Equal(t, http.StatusOK, response.StatusCode)
	require.Empty(t, body)
}

// endless writes the start of a response and blocks until the request is cancelled.
func endless(w http.ResponseWriter, r *http.Request) {
	_, _ = io.WriteString(w, "begun")
	_ = http.NewResponseController(w).Flush()
	<-r.Context().Done()
}

func TestDrainEndsWatchesAndWaitsForOthers(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	f := newFixture(t, newAgent(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/slow" {
			endless(w, r)
			return
		}
		_, _ = io.WriteString(w, "begun")
		_ = http.NewResponseController(w).Flush()
		<-release
		_, _ = io.WriteString(w, ", ended")
	})))
	responses := map[string]*http.Response{}
	for _, path := range []string{"/kubernetes/api/v1/pods?watch=1", "/http/shop/slow", "/http/shop/events"} {
		_, r := f.sendRaw(developer, "GET /agents/7"+path+" HTTP/1.1\r\n\r\n")
		response, err := http.ReadResponse(r, nil)
		require.NoError(t, err)
		_, err = io.ReadFull(response.Body, make([]byte, 5))
		require.NoError(t, err)
		responses[path] = response
	}
	drainCtx, cancel := context.WithCancel(t.Context())
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		f.handler.Drain(drainCtx)
	}()
	require.Empty(t, read(t, responses["/kubernetes/api/v1/pods?watch=1"]), "a watch ends with EOF")
	close(release)
	require.Equal(t, ", ended", read(t, responses["/http/shop/slow"]))
	select {
	case <-drained:
		require.Fail(t, "a request is in flight")
	default:
	}
	cancel()
	<-drained
	_, err := io.ReadAll(responses["/http/shop/events"].Body)
	require.Error(t, err, "a cancelled response must not be complete")
	require.Len(t, f.auditRecords(), 4)
}

func TestRequestsAreLimited(t *testing.T) {
	t.Parallel()
	f := newFixture(t, newAgent(t, http.HandlerFunc(endless)))
	for range 3 {
		_, r := f.sendRaw(developer, "GET /agents/7/http/shop/ HTTP/1.1\r\n\r\n")
		_, err := http.ReadResponse(r, nil)
		require.NoError(t, err)
	}
	response, _ := f.request(developer, http.MethodGet, "/agents/7/http/shop/", nil)
	require.Equal(t, http.StatusTooManyRequests, response.StatusCode)
	_, r := f.sendRaw(admin, "GET /agents/7/http/shop/ HTTP/1.1\r\n\r\n")
	response, err := http.ReadResponse(r, nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, response.StatusCode, "another user is not limited")
	require.Equal(t, 4, f.handler.Requests())
	require.Equal(t, []string{"caller_requests"}, f.refused)
}

// One caller leaves streams of an agent to the others.
func TestRequestsOfOneCallerToOneAgentAreLimited(t *testing.T) {
	t.Parallel()
	f := newFixture(t, newAgent(t, http.HandlerFunc(endless)), options{requestsPerAgent: 1})
	conn, r := f.sendRaw(developer, "GET /agents/7/http/shop/ HTTP/1.1\r\n\r\n")
	_, err := http.ReadResponse(r, nil)
	require.NoError(t, err)
	response, body := f.request(developer, http.MethodGet, "/agents/7/http/other/", nil)
	require.Equal(t, http.StatusTooManyRequests, response.StatusCode)
	require.Contains(t, body, "you have 1 requests in flight to agent 7 at this relay, its maximum")
	require.Equal(t, []string{"agent_requests"}, f.refused)
	response, _ = f.request(developer, http.MethodGet, "/agents/8/http/shop/", nil)
	require.Equal(t, http.StatusNotFound, response.StatusCode, "another agent")
	_, r = f.sendRaw(admin, "GET /agents/7/http/shop/ HTTP/1.1\r\n\r\n")
	_, err = http.ReadResponse(r, nil)
	require.NoError(t, err, "another user")
	require.NoError(t, conn.Close())
	require.Eventually(t, func() bool { return f.handler.Requests() == 1 }, timeout, time.Millisecond)
	_, r = f.sendRaw(developer, "GET /agents/7/http/shop/ HTTP/1.1\r\n\r\n")
	response, err = http.ReadResponse(r, nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, response.StatusCode)
}

// A caller that has sent only part of its body still receives the response.
func TestEarlyResponseDoesNotWaitForRequestBody(t *testing.T) {
	t.Parallel()
	f := newFixture(t, newAgent(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadFull(r.Body, make([]byte, 5))
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		if r.URL.Path == "/early" {
			_, _ = io.WriteString(conn, "HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
		}
	})))
	for path, status := range map[string]int{
		"/broken": http.StatusServiceUnavailable, "/early": http.StatusRequestEntityTooLarge,
	} {
		_, r := f.sendRaw(developer,
			"POST /agents/7/http/shop"+path+" HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nbegun\r\n")
		response, err := http.ReadResponse(r, nil)
		require.NoError(t, err, path)
		require.Equal(t, status, response.StatusCode, path)
		require.True(t, response.Close, "the rest of the body must not be parsed as the next request")
		_, err = io.ReadAll(response.Body)
		require.NoError(t, err)
		_, err = r.ReadByte()
		require.ErrorIs(t, err, io.EOF)
	}
	require.Len(t, f.auditRecords(), 2)
}

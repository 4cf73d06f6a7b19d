package kube_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"lockstep.internal/services/relay/agent/kube"
	"lockstep.internal/services/relay/tunnel"
)

func TestRequestsUseAgentCredentials(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = fmt.Fprintf(w, "%s %s %s %q %q %q %s %s", r.Proto, r.Method, r.RequestURI, r.Header["Authorization"],
			r.Header["Impersonate-User"], r.Header["Impersonate-Group"], r.UserAgent(), body)
	})
	c := f.caller()
	status, body := c.do("GET /api/v1/pods?labelSelector=a%3Db;c&watch=0",
		asUser+"Impersonate-Group: lockstep:role:reader\r\nUser-Agent: kubectl\r\nAuthorization: Bearer callers-own\r\n")
	require.Equal(t, http.StatusOK, status)
	require.Equal(t,
		`HTTP/2.0 GET /api/v1/pods?labelSelector=a%3Db;c&watch=0 ["Bearer own"] ["lockstep:user:7"] ["lockstep:role:reader"] kubectl `,
		body)
	status, body = c.do("PATCH /apis/apps/v1/namespaces/a%2Fb/x", asUser+"Transfer-Encoding: chunked\r\n",
		"5\r\nhello\r\n0\r\n\r\n")
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, `HTTP/2.0 PATCH /apis/apps/v1/namespaces/a%2Fb/x ["Bearer own"] ["lockstep:user:7"] []  hello`,
		body)
	require.EqualValues(t, 1, f.open.Load())
}

// Identity headers of the caller are removed; those of the relay are kept.
func TestOtherIdentityHeadersAreRemoved(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(w http.ResponseWriter, r *http.Request) {
		for _, key := range []string{
			"Authorization", "Proxy-Authorization", "Impersonate-User", "Impersonate-Group", "X-Remote-User", "X-Remote-Group",
			"X-Remote-Extra-A", "X-Forwarded-For",
		} {
			if values := r.Header[key]; len(values) > 0 {
				_, _ = fmt.Fprintln(w, key, strings.Join(values, "|"))
			}
		}
	})
	for name, header := range map[string]string{
		"identity headers": "Authorization: Bearer x\r\nProxy-Authorization: Basic x\r\nX-Remote-User: root\r\n" +
			"X-Remote-Group: system:masters\r\nX-Remote-Extra-A: b\r\nX-Forwarded-For: 1.2.3.4\r\n",
		"Connection header": "Connection: Impersonate-User, Impersonate-Group, Authorization\r\n" +
			"Authorization: Bearer x\r\n",
		"Trailer header": "Trailer: Impersonate-User\r\n",
	} {
		status, body := f.caller().do("GET /", asUser+"Impersonate-Group: lockstep:role:reader\r\n"+header)
		require.Equal(t, http.StatusOK, status, name)
		require.Equal(t,
			"Authorization Bearer own\nImpersonate-User lockstep:user:7\nImpersonate-Group lockstep:role:reader\n", body, name)
	}
}

func TestRefusedRequestsDoNotReachAPIServer(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(_ http.ResponseWriter, r *http.Request) { t.Errorf("%s %s", r.Method, r.RequestURI) })
	for requestLine, c := range map[string]struct {
		header string
		status int
	}{
		"GET /no-user": {"", http.StatusForbidden},
		"GET /system":  {"Impersonate-User: system:admin\r\n", http.StatusForbidden},
		"GET /extra":   {asUser + "Impersonate-Extra-A: b\r\n", http.StatusForbidden},
		"GET /token": {
			asUser + "Connection: Upgrade\r\nUpgrade: websocket\r\n" +
				"Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.x\r\n",
			http.StatusForbidden,
		},
		"CONNECT other:443":                      {asUser, http.StatusBadRequest},
		"GET /api/v1/namespaces/a/../b":          {asUser, http.StatusBadRequest},
		"GET /api/v1/namespaces/a/%2e%2E/b":      {asUser, http.StatusBadRequest},
		"OPTIONS *":                              {asUser, http.StatusBadRequest},
		"GET /" + strings.Repeat("long", 20<<10): {asUser, http.StatusRequestHeaderFieldsTooLarge},
	} {
		status, body := f.caller().do(requestLine, c.header)
		require.Equal(t, c.status, status, "%.100s: %s", requestLine, body)
		if status == http.StatusForbidden {
			var refusal metav1.Status
			require.NoError(t, json.Unmarshal([]byte(body), &refusal))
			require.Equal(t, metav1.StatusReasonForbidden, refusal.Reason)
			require.Equal(t, "Status", refusal.Kind)
		}
	}
}

func TestWatchEventsAreFlushed(t *testing.T) {
	t.Parallel()
	next, ended := make(chan string), make(chan struct{})
	f := newFixture(t, func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		for {
			select {
			case line := <-next:
				_, _ = io.WriteString(w, line)
				_ = http.NewResponseController(w).Flush()
			case <-r.Context().Done():
				return
			}
		}
	})
	c := f.caller()
	c.send("GET /api/v1/pods?watch=1", asUser)
	next <- "one\n"
	lines := bufio.NewReader(c.receive().Body)
	for _, want := range []string{"one\n", "two\n", "three\n"} {
		line, err := lines.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, want, line)
		if want != "three\n" {
			next <- map[string]string{"one\n": "two\n", "two\n": "three\n"}[want]
		}
	}
	c.Reset(tunnel.Cancelled, "no longer needed")
	<-ended
}

// A truncated response must not look complete.
func TestTruncatedResponseIsError(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "partial")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	c := f.caller()
	c.send("GET /", asUser)
	_, err := io.ReadAll(c.receive().Body)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
}

func TestStreamEndsAfterRequestDuringDrain(t *testing.T) {
	t.Parallel()
	started, release := make(chan struct{}), make(chan struct{})
	f := newFixture(t, func(w http.ResponseWriter, _ *http.Request) {
		close(started)
		<-release
		_, _ = io.WriteString(w, "complete")
	})
	c := f.caller()
	c.send("GET /", asUser)
	<-started
	f.agent.Drain()
	<-f.session.PeerDraining()
	close(release)
	response := c.receive()
	require.True(t, response.Close)
	require.Equal(t, "complete", c.body(response))
	_, err := c.lines.ReadByte()
	require.ErrorIs(t, err, io.EOF)
	require.NoError(t, c.CloseWrite())
	<-f.session.Done()
}

// If a caller does not read, the agent buffers a bounded amount and applies backpressure to the API server.
func TestBackpressureReachesAPIServer(t *testing.T) {
	t.Parallel()
	var sent atomic.Int64
	f := newFixture(t, func(w http.ResponseWriter, _ *http.Request) {
		for {
			n, err := w.Write(make([]byte, 32<<10))
			if err != nil {
				return
			}
			sent.Add(int64(n))
		}
	})
	stalled := f.caller()
	stalled.send("GET /", asUser)
	before := int64(-1)
	require.Eventually(t, func() bool {
		now := sent.Load()
		stopped := now == before && now > 0
		before = now
		return stopped
	}, time.Minute, 500*time.Millisecond)
	require.Less(t, before, int64(2<<20))
	// Other requests continue.
	other := f.caller()
	other.send("GET /", asUser)
	_, err := io.CopyN(io.Discard, other.receive().Body, 8<<20)
	require.NoError(t, err)
	stalled.Reset(tunnel.Cancelled, "no longer needed")
	other.Reset(tunnel.Cancelled, "no longer needed")
}

func TestStoppedProxyResetsStreams(t *testing.T) {
	t.Parallel()
	p, err := kube.New(&rest.Config{Host: "http://127.0.0.1:1"}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, p.Run(ctx))
	near, far := net.Pipe()
	released := make(chan struct{})
	s := tunnel.NewSession(near, false, true, tunnel.Config{}, nil)
	agent := tunnel.NewSession(far, true, true, tunnel.Config{}, func(s *tunnel.Stream) {
		p.ServeStream(s, nil, func() { close(released) })
	})
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.Serve() })
	serving.Go(func() { _ = agent.Serve() })
	st, err := s.Open([]byte("head"))
	require.NoError(t, err)
	<-released
	_, err = st.Read(make([]byte, 1))
	var reset *tunnel.ResetError
	require.ErrorAs(t, err, &reset)
	require.Equal(t, tunnel.NotAccepted, reset.Reason)
	_, _ = s.Close(), agent.Close()
	serving.Wait()
}

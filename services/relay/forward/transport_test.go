package forward_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/relay/connections"
	"lockstep.internal/services/relay/forward"
	"lockstep.internal/services/relay/route"
	"lockstep.internal/tools/testkit/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func TestStreamIsReused(t *testing.T) {
	t.Parallel()
	a := newAgent(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Method+" "+r.URL.Path)
	}))
	for range 5 {
		require.Equal(t, "GET /a", a.get("/a"))
	}
	response, err := a.do(http.MethodHead, "/a", nil)
	require.NoError(t, err)
	require.Empty(t, read(t, response))
	require.EqualValues(t, 1, a.opened.Load())
}

func TestFullDuplexBodies(t *testing.T) {
	t.Parallel()
	a := newAgent(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		w.Header().Set("Trailer", "Sum")
		n, _ := io.Copy(w, r.Body)
		w.Header().Set("Sum", fmt.Sprint(n))
	}))
	sent := strings.Repeat("both directions, ", 300_000)
	for range 2 {
		response, err := a.do(http.MethodPost, "/", io.MultiReader(strings.NewReader(sent))) // of unknown length
		require.NoError(t, err)
		require.Equal(t, sent, read(t, response))
		require.Equal(t, fmt.Sprint(len(sent)), response.Trailer.Get("Sum"))
	}
}

func TestUpgradedConnection(t *testing.T) {
	t.Parallel()
	a := newAgent(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nwelcome\n")
		_ = rw.Flush()
		_, _ = io.Copy(conn, rw)
	}))
	request, err := http.NewRequestWithContext(toShop(t.Context()), http.MethodGet, "http://shop/", nil)
	require.NoError(t, err)
	request.Header = http.Header{"Connection": {"Upgrade"}, "Upgrade": {"echo"}}
	response, err := a.transport.RoundTrip(request)
	require.NoError(t, err)
	require.Equal(t, http.StatusSwitchingProtocols, response.StatusCode)
	conn := response.Body.(io.ReadWriteCloser)
	lines := bufio.NewReader(conn)
	for _, line := range []string{"welcome\n", "one\n", "two\n"} {
		if line != "welcome\n" {
			_, err := io.WriteString(conn, line)
			require.NoError(t, err)
		}
		got, err := lines.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, line, got)
	}
	require.NoError(t, conn.Close())
}

func TestRequestThatWasNotAcceptedIsRetried(t *testing.T) {
	t.Parallel()
	a := newAgent(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }))
	a.refuseFirst.Store(3)
	require.Empty(t, a.get("/"))
	require.EqualValues(t, 4, a.opened.Load())
}

// The target closes an idle pooled connection; the next request is retried on a new stream.
func TestClosedPooledStreamIsReplaced(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var serving sync.WaitGroup
	defer serving.Wait()
	defer l.Close()
	closeFirst := make(chan struct{})
	serving.Go(func() {
		for n := 0; ; n++ {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			request, err := http.ReadRequest(bufio.NewReader(conn))
			if err == nil {
				_, _ = fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(request.URL.Path), request.URL.Path)
			}
			if n == 0 {
				<-closeFirst
			}
			_ = conn.Close()
		}
	})
	a := newAgentAt(t, l.Addr().String())
	require.Equal(t, "/first", a.get("/first"))
	close(closeFirst)
	require.Equal(t, "/second", a.get("/second"))
	require.EqualValues(t, 2, a.opened.Load())
}

// silentReplica is an agent with two connections, of which the first becomes silent.
type silentReplica struct {
	*agentFixture

	silent atomic.Bool
	// leftFirst counts requests that left the first connection.
	leftFirst atomic.Int64
}

func (s *silentReplica) Open(
	ctx context.Context, state *connections.RetryState, to route.Destination,
) (*connections.Stream, error) {
	stream, err := s.agentFixture.Open(ctx, state, to)
	if err == nil {
		stream.Connection.ID = 1
		if s.silent.Load() {
			stream.Connection.ID = 2
		}
	}
	return stream, err
}

func (s *silentReplica) AwaitAnswer(
	_ *connections.RetryState, on *connections.Stream, _ route.Destination, wait func() error,
) error {
	if on.Connection.ID == 1 && s.silent.Load() {
		s.leftFirst.Add(1)
		return connections.ErrSilent
	}
	return wait()
}

// A request that leaves a silent replica does not try each of its pooled streams.
func TestStreamsOfSilentReplicaAreNotReused(t *testing.T) {
	t.Parallel()
	const pooled = 3
	var together sync.WaitGroup
	together.Add(pooled)
	s := &silentReplica{agentFixture: newAgent(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/together" {
			together.Done()
			together.Wait()
		}
	}))}
	s.transport = forward.NewTransport(s)
	t.Cleanup(s.transport.Close)
	var requests sync.WaitGroup
	for range pooled {
		requests.Go(func() { _ = s.get("/together") })
	}
	requests.Wait()
	s.silent.Store(true)
	require.Empty(t, s.get("/"))
	require.Empty(t, s.get("/"))
	require.EqualValues(t, 1, s.leftFirst.Load())
	require.EqualValues(t, pooled+1, s.opened.Load())
}

func TestUnreachableTargetIsNotRetried(t *testing.T) {
	t.Parallel()
	a := newAgentAt(t, "127.0.0.1:1")
	_, err := a.do(http.MethodGet, "/", nil)
	require.ErrorContains(t, err, "refused")
	require.EqualValues(t, 1, a.opened.Load(), "another connection would not reach it either")
}

func TestCancellationReachesTarget(t *testing.T) {
	t.Parallel()
	started, ended := make(chan struct{}), make(chan struct{})
	a := newAgent(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(started)
		<-r.Context().Done()
		close(ended)
	}))
	ctx, cancel := context.WithCancel(toShop(t.Context()))
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://shop/", nil)
	require.NoError(t, err)
	failed := make(chan error)
	go func() {
		_, err := a.transport.RoundTrip(request)
		failed <- err
	}()
	<-started
	cancel()
	require.Error(t, <-failed)
	<-ended
}

// A response belongs to its request or is dropped. No byte of it reaches the next request.
func TestResponsesAreNotMixedUp(t *testing.T) {
	t.Parallel()
	const good = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood"
	for name, c := range map[string]struct {
		first   string
		body    string // of the response; empty means an error
		streams int64
	}{
		"plain": {good, "good", 1},
		"interim responses": {
			"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" + good, "good", 1,
		},
		"too many interim responses": {strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 9) + good, "", 2},
		"two responses":              {good + good, "good", 2},
		"more than Content-Length":   {good + "evil", "good", 2},
		"chunked and Content-Length": {
			"HTTP/1.1 200 OK\r\nContent-Length: 40\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngood\r\n0\r\n\r\n", "good", 1,
		},
		"two Content-Lengths":    {"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\ngood", "", 2},
		"invalid Content-Length": {"HTTP/1.1 200 OK\r\nContent-Length: +4\r\n\r\ngood", "", 2},
		"unsupported encoding": {
			"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n4\r\ngood\r\n0\r\n\r\n", "", 2,
		},
		"bare line feeds":    {"HTTP/1.1 200 OK\nContent-Length: 4\n\ngood", "good", 1},
		"folded line":        {"HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 4\r\n\r\ngood", "good", 1},
		"space before colon": {"HTTP/1.1 200 OK\r\nContent-Length : 4\r\n\r\ngood", "", 2},
		"body until close":   {"HTTP/1.0 200 OK\r\n\r\ngood", "", 2}, // the target does not close
		"not HTTP":           {"SSH-2.0-OpenSSH_9\r\n", "", 2},
		"unrequested 101": {
			"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n", "", 2,
		},
		"unrequested 101 without Upgrade": {"HTTP/1.1 101 Switching Protocols\r\n\r\n", "", 2},
		"invalid status":                  {"HTTP/1.1 0 OK\r\nContent-Length: 4\r\n\r\ngood", "", 2},
		"head too large": {
			"HTTP/1.1 200 OK\r\n" + strings.Repeat("X: "+strings.Repeat("x", 1000)+"\r\n", 1100), "", 2,
		},
		"status line too large": {"HTTP/1.1 200 " + strings.Repeat("x", 1<<21), "", 2},
		"malformed chunks": {
			"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngoodxx\r\n0\r\n\r\n", "", 2,
		},
		"204 with body": {"HTTP/1.1 204 No Content\r\n\r\nevil", "-", 2},
		"Connection: close": {
			"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 4\r\n\r\ngood", "good", 2,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newScriptedAgent(t, c.first, good)
			ctx, cancel := context.WithCancel(toShop(t.Context()))
			defer cancel()
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://shop/", nil)
			require.NoError(t, err)
			response, err := a.transport.RoundTrip(request)
			switch {
			case err != nil:
				require.Empty(t, c.body, "%v", err)
			case c.body == "" && response.ContentLength < 0 && !strings.Contains(c.first, "chunked"):
				_ = response.Body.Close() // the body does not end
			default:
				got, errRead := io.ReadAll(response.Body)
				_ = response.Body.Close()
				if c.body == "" {
					require.Error(t, errRead)
					break
				}
				require.NoError(t, errRead)
				require.Equal(t, strings.Trim(c.body, "-"), string(got))
			}
			if c.streams == 2 && c.body != "" && c.body != "-" && !strings.Contains(c.first, "close") {
				// Excess bytes may arrive later; the stream must not be reused then.
				require.Eventually(t, func() bool {
					body := a.nextBody()
					return body == "good" || body == ""
				}, time.Minute, time.Millisecond)
				return
			}
			if c.streams == 1 {
				require.Equal(t, "good", a.nextBody())
				require.EqualValues(t, 1, a.opened.Load())
			} else {
				_ = a.nextBody()
				require.EqualValues(t, 2, a.opened.Load(), "the stream is not reused")
			}
		})
	}
}

// A request that may have had an effect is not retried.
func TestOnlyReplayableRequestsAreRetried(t *testing.T) {
	t.Parallel()
	const good = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood"
	for method, retried := range map[string]bool{
		http.MethodGet: true, http.MethodHead: true, http.MethodDelete: false, http.MethodPost: false,
	} {
		var requests atomic.Int64
		a := newAgent(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if requests.Add(1) == 2 {
				panic(http.ErrAbortHandler)
			}
			_, _ = io.WriteString(w, good)
		}))
		require.NotEmpty(t, a.get("/"))
		response, err := a.do(method, "/", nil)
		if retried {
			require.NoError(t, err, method)
			_ = read(t, response)
			require.EqualValues(t, 3, requests.Load(), method)
		} else {
			require.Error(t, err, method)
			require.EqualValues(t, 2, requests.Load(), method)
		}
		a.transport.Close()
	}
}

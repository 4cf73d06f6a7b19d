package forward_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"lockstep.internal/services/relay/connections"
	"lockstep.internal/services/relay/forward"
	"lockstep.internal/services/relay/registry"
	"lockstep.internal/services/relay/route"
	"lockstep.internal/services/relay/tunnel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// agentFixture is an agent in front of a target, and the tunnel to it.
type agentFixture struct {
	t         *testing.T
	transport *forward.Transport
	session   *tunnel.Session
	// opened counts streams; the first of them are refused as not taken, as many as elsewhere says.
	opened, elsewhere atomic.Int64
	// connections that were named, one for each stream.
	connections atomic.Int64
	target      string
	// absent, where it is there, is closed when the agent comes.
	absent chan struct{}
}

func newAgent(t *testing.T, target http.Handler) *agentFixture {
	t.Helper()
	server := httptest.NewServer(target)
	t.Cleanup(server.Close)
	return newAgentAt(t, server.Listener.Addr().String())
}

func newAgentAt(t *testing.T, target string) *agentFixture {
	t.Helper()
	b := &agentFixture{t: t, target: target}
	near, far := net.Pipe()
	b.session = tunnel.NewSession(near, false, true, tunnel.Config{}, nil)
	agent := tunnel.NewSession(far, true, true, tunnel.Config{}, b.serve)
	var serving sync.WaitGroup
	for _, s := range []*tunnel.Session{b.session, agent} {
		serving.Go(func() { _ = s.Serve() })
	}
	t.Cleanup(func() {
		_, _ = b.session.Close(), agent.Close()
		serving.Wait()
	})
	b.transport = forward.NewTransport(b)
	return b
}

// serve is the agent: it joins each stream with the target.
func (b *agentFixture) serve(s *tunnel.Stream) {
	if b.opened.Add(1) <= b.elsewhere.Load() {
		s.Reset(tunnel.NotHere, "not here")
		return
	}
	conn, err := net.Dial("tcp", b.target)
	if err != nil {
		s.Reset(tunnel.Unreachable, err.Error())
		return
	}
	_ = s.Accept()
	_, _, _ = tunnel.Join(s, conn.(*net.TCPConn)) //nolint:dogsled // both ends know why
}

func (b *agentFixture) Open(ctx context.Context, _ *connections.Attempt, to route.Destination) (*connections.Stream, error) {
	if b.absent != nil {
		select {
		case <-b.absent:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	s, err := b.session.Open(to.Encode())
	if err != nil {
		return nil, err
	}
	return &connections.Stream{Stream: s, Connection: registry.Connection{ID: b.connections.Add(1)}}, nil
}

func (b *agentFixture) do(method, path string, body io.Reader) (*http.Response, error) {
	b.t.Helper()
	request, err := http.NewRequestWithContext(forward.WithRoute(b.t.Context(), &forward.RequestRoute{To: route.Destination{AgentID: 7, Target: "shop"}}), method, "http://shop"+path, body)
	require.NoError(b.t, err)
	return b.transport.RoundTrip(request)
}

func (b *agentFixture) get(path string) string {
	b.t.Helper()
	response, err := b.do(http.MethodGet, path, nil)
	require.NoError(b.t, err)
	return read(b.t, response)
}

func read(t *testing.T, response *http.Response) string {
	t.Helper()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	return string(text)
}

func TestRequestsShareAStream(t *testing.T) {
	t.Parallel()
	b := newAgent(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Method+" "+r.URL.Path) }))
	for range 5 {
		require.Equal(t, "GET /a", b.get("/a"))
	}
	response, err := b.do(http.MethodHead, "/a", nil)
	require.NoError(t, err)
	require.Empty(t, read(t, response))
	require.EqualValues(t, 1, b.opened.Load())
}

func TestBodiesGoBothWaysAtOnce(t *testing.T) {
	t.Parallel()
	b := newAgent(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		w.Header().Set("Trailer", "Sum")
		n, _ := io.Copy(w, r.Body)
		w.Header().Set("Sum", fmt.Sprint(n))
	}))
	sent := strings.Repeat("both ways, ", 300_000)
	for range 2 {
		response, err := b.do(http.MethodPost, "/", io.MultiReader(strings.NewReader(sent))) // of unknown length
		require.NoError(t, err)
		require.Equal(t, sent, read(t, response))
		require.Equal(t, fmt.Sprint(len(sent)), response.Trailer.Get("Sum"))
	}
}

func TestAConnectionThatIsUpgradedIsTheCallers(t *testing.T) {
	t.Parallel()
	b := newAgent(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nwelcome\n")
		_ = rw.Flush()
		_, _ = io.Copy(conn, rw)
	}))
	request, err := http.NewRequestWithContext(forward.WithRoute(t.Context(), &forward.RequestRoute{To: route.Destination{AgentID: 7, Target: "shop"}}), http.MethodGet, "http://shop/", nil)
	require.NoError(t, err)
	request.Header = http.Header{"Connection": {"Upgrade"}, "Upgrade": {"echo"}}
	response, err := b.transport.RoundTrip(request)
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

func TestWhatWasNotTakenIsTriedElsewhere(t *testing.T) {
	t.Parallel()
	b := newAgent(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }))
	b.elsewhere.Store(3)
	require.Empty(t, b.get("/"))
	require.EqualValues(t, 4, b.opened.Load())
}

// A target ends a connection that it was to be asked over once more: nothing was asked, so it can be asked again.
func TestAStreamThatWasLetGoOfIsNoFailure(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var serving sync.WaitGroup
	defer serving.Wait()
	defer l.Close()
	let := make(chan struct{})
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
				<-let
			}
			_ = conn.Close()
		}
	})
	b := newAgentAt(t, l.Addr().String())
	require.Equal(t, "/first", b.get("/first"))
	close(let)
	require.Equal(t, "/second", b.get("/second"))
	require.EqualValues(t, 2, b.opened.Load())
}

func TestATargetThatDoesNotAnswerIsAnError(t *testing.T) {
	t.Parallel()
	b := newAgentAt(t, "127.0.0.1:1")
	_, err := b.do(http.MethodGet, "/", nil)
	require.ErrorContains(t, err, "refused")
	require.EqualValues(t, 1, b.opened.Load(), "it would not be reached from elsewhere in another way")
}

func TestACallerThatLeavesEndsTheRequestAtTheTarget(t *testing.T) {
	t.Parallel()
	began, ended := make(chan struct{}), make(chan struct{})
	b := newAgent(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(began)
		<-r.Context().Done()
		close(ended)
	}))
	ctx, cancel := context.WithCancel(forward.WithRoute(t.Context(), &forward.RequestRoute{To: route.Destination{AgentID: 7, Target: "shop"}}))
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://shop/", nil)
	require.NoError(t, err)
	failed := make(chan error)
	go func() {
		_, err := b.transport.RoundTrip(request)
		failed <- err
	}()
	<-began
	cancel()
	require.Error(t, <-failed)
	<-ended
}

// served is the address of a target whose connections are each served by a function, and closed after it.
func served(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var serving sync.WaitGroup
	t.Cleanup(func() {
		_ = l.Close()
		serving.Wait()
	})
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer conn.Close()
				serve(conn)
			})
		}
	})
	return l.Addr().String()
}

// answers is a target that says what the test wants to each request, however it is asked.
func answers(t *testing.T, said ...string) *agentFixture {
	t.Helper()
	return newAgentAt(t, served(t, func(conn net.Conn) {
		asked := bufio.NewReader(conn)
		for _, answer := range said {
			request, err := http.ReadRequest(asked)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, request.Body)
			if _, err := io.WriteString(conn, answer); err != nil {
				return
			}
		}
		_, _ = io.Copy(io.Discard, asked)
	}))
}

// What a target says is the answer to what it was asked, or none: nothing of it is left for who comes next.
func TestAnswersAreToldApart(t *testing.T) {
	t.Parallel()
	const good = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood"
	for name, c := range map[string]struct {
		first   string
		body    string // of the answer; none is that there is an error
		streams int64
	}{
		"plain":                           {good, "good", 1},
		"interim answers before it":       {"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" + good, "good", 1},
		"too many interim answers":        {strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 9) + good, "", 2},
		"two answers":                     {good + good, "good", 2},
		"more than its length":            {good + "evil", "good", 2},
		"chunked and a length":            {"HTTP/1.1 200 OK\r\nContent-Length: 40\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngood\r\n0\r\n\r\n", "good", 1},
		"two lengths":                     {"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\ngood", "", 2},
		"a length that is none":           {"HTTP/1.1 200 OK\r\nContent-Length: +4\r\n\r\ngood", "", 2},
		"an encoding that is none":        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n4\r\ngood\r\n0\r\n\r\n", "", 2},
		"line feeds alone":                {"HTTP/1.1 200 OK\nContent-Length: 4\n\ngood", "good", 1},
		"a folded line":                   {"HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 4\r\n\r\ngood", "good", 1},
		"a space before a colon":          {"HTTP/1.1 200 OK\r\nContent-Length : 4\r\n\r\ngood", "", 2},
		"until the end":                   {"HTTP/1.0 200 OK\r\n\r\ngood", "", 2}, // it does not end
		"no HTTP":                         {"SSH-2.0-OpenSSH_9\r\n", "", 2},
		"a switch that nobody asked for":  {"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n", "", 2},
		"such a switch, without its name": {"HTTP/1.1 101 Switching Protocols\r\n\r\n", "", 2},
		"a status that is none":           {"HTTP/1.1 0 OK\r\nContent-Length: 4\r\n\r\ngood", "", 2},
		"a head that does not end":        {"HTTP/1.1 200 OK\r\n" + strings.Repeat("X: "+strings.Repeat("x", 1000)+"\r\n", 1100), "", 2},
		"a line that does not end":        {"HTTP/1.1 200 " + strings.Repeat("x", 1<<21), "", 2},
		"chunks that are none":            {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngoodxx\r\n0\r\n\r\n", "", 2},
		"what is said to no content":      {"HTTP/1.1 204 No Content\r\n\r\nevil", "-", 2},
		"a close in so many words":        {"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 4\r\n\r\ngood", "good", 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := answers(t, c.first, good)
			ctx, cancel := context.WithCancel(forward.WithRoute(t.Context(), &forward.RequestRoute{To: route.Destination{AgentID: 7, Target: "shop"}}))
			defer cancel()
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://shop/", nil)
			require.NoError(t, err)
			response, err := b.transport.RoundTrip(request)
			switch {
			case err != nil:
				require.Empty(t, c.body, "%v", err)
			case c.body == "" && response.ContentLength < 0 && !strings.Contains(c.first, "chunked"):
				_ = response.Body.Close() // there is no end of it
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
				// What is too much may come a moment later: the stream is not used then, either.
				require.Eventually(t, func() bool {
					again := b.answer(t)
					return again == "good" || again == ""
				}, time.Minute, time.Millisecond)
				return
			}
			if c.streams == 1 {
				require.Equal(t, "good", b.answer(t))
				require.EqualValues(t, 1, b.opened.Load())
			} else {
				_ = b.answer(t)
				require.EqualValues(t, 2, b.opened.Load(), "the stream is used no more")
			}
		})
	}
}

// answer to one more request, empty where there is none.
func (b *agentFixture) answer(t *testing.T) string {
	t.Helper()
	response, err := b.do(http.MethodGet, "/", nil)
	if err != nil {
		return ""
	}
	defer response.Body.Close()
	buffer := make([]byte, 4)
	n, _ := io.ReadFull(response.Body, buffer)
	return string(buffer[:n])
}

// What may have had an effect is not done twice because nobody said so.
func TestOnlyWhatReadsIsSentTwice(t *testing.T) {
	t.Parallel()
	const good = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood"
	for method, again := range map[string]bool{http.MethodGet: true, http.MethodHead: true, http.MethodDelete: false, http.MethodPost: false} {
		var asked atomic.Int64
		b := newAgent(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if asked.Add(1) == 2 {
				panic(http.ErrAbortHandler)
			}
			_, _ = io.WriteString(w, good)
		}))
		require.NotEmpty(t, b.get("/"))
		response, err := b.do(method, "/", nil)
		if again {
			require.NoError(t, err, method)
			_ = read(t, response)
			require.EqualValues(t, 3, asked.Load(), method)
		} else {
			require.Error(t, err, method)
			require.EqualValues(t, 2, asked.Load(), method)
		}
		b.transport.Close()
	}
}

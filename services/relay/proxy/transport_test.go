package proxy_test

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

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"lockstep.internal/services/relay/hub"
	"lockstep.internal/services/relay/proxy"
	"lockstep.internal/services/relay/registry"
	"lockstep.internal/services/relay/route"
	"lockstep.internal/services/relay/tunnel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bed is an agent in front of a target.
type bed struct {
	t         *testing.T
	transport *proxy.Transport
	session   *tunnel.Session
	// opened counts streams; the first of them are refused as not taken, as many as elsewhere says.
	opened, elsewhere atomic.Int64
	target            string
}

func setup(t *testing.T, target http.Handler) *bed {
	t.Helper()
	server := httptest.NewServer(target)
	t.Cleanup(server.Close)
	return setupAt(t, server.Listener.Addr().String())
}

func setupAt(t *testing.T, target string) *bed {
	t.Helper()
	b := &bed{t: t, target: target}
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
	b.transport = proxy.NewTransport(b)
	return b
}

// serve is the agent: it joins each stream with the target.
func (b *bed) serve(s *tunnel.Stream) {
	if b.opened.Add(1) <= b.elsewhere.Load() {
		s.Reset(tunnel.Elsewhere, "not here")
		return
	}
	conn, err := net.Dial("tcp", b.target)
	if err != nil {
		s.Reset(tunnel.Unreachable, err.Error())
		return
	}
	_, _, _ = tunnel.Join(s, conn.(*net.TCPConn))
}

func (b *bed) Open(_ context.Context, _ *hub.Attempt, to route.Instruction) (*hub.Route, error) {
	s, err := b.session.Open(to.Encode())
	if err != nil {
		return nil, err
	}
	return &hub.Route{Stream: s, Connection: registry.Connection{ID: b.opened.Load()}}, nil
}

func (b *bed) do(method, path string, body io.Reader) (*http.Response, error) {
	b.t.Helper()
	request, err := http.NewRequestWithContext(proxy.With(b.t.Context(), &proxy.Way{To: route.Instruction{AgentID: 7, Target: "shop"}}), method, "http://shop"+path, body)
	require.NoError(b.t, err)
	return b.transport.RoundTrip(request)
}

func (b *bed) get(path string) string {
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
	b := setup(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Method+" "+r.URL.Path) }))
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
	b := setup(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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
	b := setup(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nwelcome\n")
		_ = rw.Flush()
		_, _ = io.Copy(conn, rw)
	}))
	request, err := http.NewRequestWithContext(proxy.With(t.Context(), &proxy.Way{To: route.Instruction{AgentID: 7, Target: "shop"}}), http.MethodGet, "http://shop/", nil)
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
	b := setup(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }))
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
	b := setupAt(t, l.Addr().String())
	require.Equal(t, "/first", b.get("/first"))
	close(let)
	require.Equal(t, "/second", b.get("/second"))
	require.EqualValues(t, 2, b.opened.Load())
}

func TestATargetThatDoesNotAnswerIsAnError(t *testing.T) {
	t.Parallel()
	b := setupAt(t, "127.0.0.1:1")
	_, err := b.do(http.MethodGet, "/", nil)
	require.ErrorContains(t, err, "refused")
	require.EqualValues(t, 1, b.opened.Load(), "it would not be reached from elsewhere in another way")
}

func TestACallerThatLeavesEndsTheRequestAtTheTarget(t *testing.T) {
	t.Parallel()
	began, ended := make(chan struct{}), make(chan struct{})
	b := setup(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(began)
		<-r.Context().Done()
		close(ended)
	}))
	ctx, cancel := context.WithCancel(proxy.With(t.Context(), &proxy.Way{To: route.Instruction{AgentID: 7, Target: "shop"}}))
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://shop/", nil)
	require.NoError(t, err)
	failed := make(chan error)
	go func() {
		_, err := b.transport.RoundTrip(request) //nolint:bodyclose // there is none
		failed <- err
	}()
	<-began
	cancel()
	require.Error(t, <-failed)
	<-ended
}

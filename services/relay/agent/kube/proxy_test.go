package kube_test

import (
	"bufio"
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"lockstep.internal/services/relay/agent/kube"
	"lockstep.internal/services/relay/tunnel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bed is a proxy in front of a server that stands in for an API server, and a session that leads to it.
type bed struct {
	t       *testing.T
	api     *httptest.Server
	proxy   *kube.Proxy
	session *tunnel.Session
	agent   *tunnel.Session
	token   string // file
	open    atomic.Int64
}

func setup(t *testing.T, handler http.HandlerFunc) *bed {
	t.Helper()
	b := &bed{t: t, api: httptest.NewUnstartedServer(handler), token: filepath.Join(t.TempDir(), "token")}
	b.api.EnableHTTP2 = true
	b.api.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	b.api.StartTLS()
	t.Cleanup(b.api.Close)
	require.NoError(t, os.WriteFile(b.token, []byte("own"), 0o600))
	b.start(&rest.Config{
		Host: b.api.URL, BearerTokenFile: b.token,
		TLSClientConfig: rest.TLSClientConfig{CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: b.api.Certificate().Raw})},
	})
	return b
}

func (b *bed) start(cfg *rest.Config) {
	b.t.Helper()
	var err error
	b.proxy, err = kube.New(cfg, slog.New(slog.DiscardHandler))
	require.NoError(b.t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.t.Context()))
	near, far := net.Pipe()
	b.session = tunnel.NewSession(near, false, true, tunnel.Config{}, nil)
	b.agent = tunnel.NewSession(far, true, true, tunnel.Config{}, func(s *tunnel.Stream) {
		b.open.Add(1)
		b.proxy.ServeStream(s, b.agent.LocalDraining(), func() { b.open.Add(-1) })
	})
	var serving sync.WaitGroup
	for _, s := range []*tunnel.Session{b.session, b.agent} {
		serving.Go(func() { _ = s.Serve() })
	}
	serving.Go(func() { require.NoError(b.t, b.proxy.Run(ctx)) })
	b.t.Cleanup(func() {
		_, _ = b.session.Close(), b.agent.Close()
		require.Eventually(b.t, func() bool { return b.open.Load() == 0 }, time.Minute, time.Millisecond, "streams are given back")
		cancel()
		serving.Wait()
	})
}

// caller is one who sends requests over one stream.
type caller struct {
	*tunnel.Stream

	t     *testing.T
	lines *bufio.Reader
}

func (b *bed) caller() *caller {
	b.t.Helper()
	s, err := b.session.Open([]byte("head"))
	require.NoError(b.t, err)
	return &caller{Stream: s, t: b.t, lines: bufio.NewReader(s)}
}

const asUser = "Impersonate-User: lockstep:user:7\r\n"

// send a request as it is written.
func (c *caller) send(first, header string, body ...string) {
	c.t.Helper()
	_, err := io.WriteString(c, first+" HTTP/1.1\r\nHost: cluster\r\n"+header+"\r\n"+strings.Join(body, ""))
	require.NoError(c.t, err)
}

func (c *caller) receive() *http.Response {
	c.t.Helper()
	response, err := http.ReadResponse(c.lines, nil)
	require.NoError(c.t, err)
	return response
}

func (c *caller) body(response *http.Response) string {
	c.t.Helper()
	text, err := io.ReadAll(response.Body)
	require.NoError(c.t, err)
	return string(text)
}

func (c *caller) ask(first, header string, body ...string) (status int, answer string) {
	c.t.Helper()
	c.send(first, header, body...)
	response := c.receive()
	return response.StatusCode, c.body(response)
}

func TestAStreamCarriesRequestsWithTheAgentsOwnCredentials(t *testing.T) {
	t.Parallel()
	b := setup(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = fmt.Fprintf(w, "%s %s %s %q %q %q %s %s", r.Proto, r.Method, r.RequestURI, r.Header["Authorization"], r.Header["Impersonate-User"], r.Header["Impersonate-Group"], r.UserAgent(), body)
	})
	c := b.caller()
	status, answer := c.ask("GET /api/v1/pods?labelSelector=a%3Db;c&watch=0", asUser+"Impersonate-Group: lockstep:role:reader\r\nUser-Agent: kubectl\r\nAuthorization: Bearer of a caller\r\n")
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, `HTTP/2.0 GET /api/v1/pods?labelSelector=a%3Db;c&watch=0 ["Bearer own"] ["lockstep:user:7"] ["lockstep:role:reader"] kubectl `, answer)
	status, answer = c.ask("PATCH /apis/apps/v1/namespaces/a%2Fb/x", asUser+"Transfer-Encoding: chunked\r\n", "5\r\nhello\r\n0\r\n\r\n")
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, `HTTP/2.0 PATCH /apis/apps/v1/namespaces/a%2Fb/x ["Bearer own"] ["lockstep:user:7"] []  hello`, answer)
	require.EqualValues(t, 1, b.open.Load())
}

// What a caller says of itself by other means than those that the relay has must not reach the API server, and what the relay says must not be lost on the way there.
func TestNothingElseSaysWhoACallerIs(t *testing.T) {
	t.Parallel()
	b := setup(t, func(w http.ResponseWriter, r *http.Request) {
		for _, key := range []string{"Authorization", "Proxy-Authorization", "Impersonate-User", "Impersonate-Group", "X-Remote-User", "X-Remote-Group", "X-Remote-Extra-A", "X-Forwarded-For"} {
			if values := r.Header[key]; len(values) > 0 {
				_, _ = fmt.Fprintln(w, key, strings.Join(values, "|"))
			}
		}
	})
	for name, header := range map[string]string{
		"headers":                     "Authorization: Bearer x\r\nProxy-Authorization: Basic x\r\nX-Remote-User: root\r\nX-Remote-Group: system:masters\r\nX-Remote-Extra-A: b\r\nX-Forwarded-For: 1.2.3.4\r\n",
		"headers of the connection":   "Connection: Impersonate-User, Impersonate-Group, Authorization\r\nAuthorization: Bearer x\r\n",
		"trailers that are announced": "Trailer: Impersonate-User\r\n",
	} {
		status, answer := b.caller().ask("GET /", asUser+"Impersonate-Group: lockstep:role:reader\r\n"+header)
		require.Equal(t, http.StatusOK, status, name)
		require.Equal(t, "Authorization Bearer own\nImpersonate-User lockstep:user:7\nImpersonate-Group lockstep:role:reader\n", answer, name)
	}
}

func TestWhatIsNotAdmittedDoesNotReachTheAPIServer(t *testing.T) {
	t.Parallel()
	b := setup(t, func(_ http.ResponseWriter, r *http.Request) { t.Errorf("%s %s", r.Method, r.RequestURI) })
	for first, c := range map[string]struct {
		header string
		status int
	}{
		"GET /nobody":                            {"", http.StatusForbidden},
		"GET /system":                            {"Impersonate-User: system:admin\r\n", http.StatusForbidden},
		"GET /extra":                             {asUser + "Impersonate-Extra-A: b\r\n", http.StatusForbidden},
		"GET /token":                             {asUser + "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.x\r\n", http.StatusForbidden},
		"CONNECT other:443":                      {asUser, http.StatusBadRequest},
		"GET /api/v1/namespaces/a/../b":          {asUser, http.StatusBadRequest},
		"GET /api/v1/namespaces/a/%2e%2E/b":      {asUser, http.StatusBadRequest},
		"OPTIONS *":                              {asUser, http.StatusBadRequest},
		"GET /" + strings.Repeat("long", 20<<10): {asUser, http.StatusRequestHeaderFieldsTooLarge},
	} {
		status, answer := b.caller().ask(first, c.header)
		require.Equal(t, c.status, status, "%.100s: %s", first, answer)
		if status == http.StatusForbidden {
			var said metav1.Status
			require.NoError(t, json.Unmarshal([]byte(answer), &said))
			require.Equal(t, metav1.StatusReasonForbidden, said.Reason)
			require.Equal(t, "Status", said.Kind)
		}
	}
}

// pipes is a listener that is dialled in memory.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	if conn, open := <-p; open {
		return conn, nil
	}
	return nil, net.ErrClosed
}

func (p pipes) Close() error   { return nil }
func (p pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes"} }

// The token of a pod is replaced in its file within the hour.
func TestTokensAreReadAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		token := filepath.Join(t.TempDir(), "token")
		require.NoError(t, os.WriteFile(token, []byte("old"), 0o600))
		dialled := make(pipes)
		api := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "Bearer new" {
				w.WriteHeader(http.StatusUnauthorized)
			}
		})}
		var serving sync.WaitGroup
		serving.Go(func() { _ = api.Serve(dialled) })
		p, err := kube.New(&rest.Config{Host: "http://api", BearerTokenFile: token, Dial: func(context.Context, string, string) (net.Conn, error) {
			near, far := net.Pipe()
			dialled <- far
			return near, nil
		}}, slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		require.ErrorContains(t, p.Check(t.Context()), "401")
		require.NoError(t, os.WriteFile(token, []byte("new"), 0o600))
		time.Sleep(time.Minute)
		require.NoError(t, p.Check(t.Context()))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.NoError(t, p.Run(ctx)) // lets go of its connections
		close(dialled)
		serving.Wait()
		require.NoError(t, api.Close())
	})
}

func TestWhatIsWatchedComesAtOnce(t *testing.T) {
	t.Parallel()
	next, ended := make(chan string), make(chan struct{})
	b := setup(t, func(w http.ResponseWriter, r *http.Request) {
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
	c := b.caller()
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
	c.Reset(tunnel.Cancelled, "enough")
	<-ended
}

// echo upgrades, greets, and sends back what it is sent until the caller ends its direction.
func echo(upgrade string, ended chan<- error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != upgrade || r.Header.Get("Authorization") != "Bearer own" || r.Header.Get("Impersonate-User") != "lockstep:user:7" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			ended <- err
			return
		}
		defer conn.Close()
		_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + upgrade + "\r\n\r\nwelcome\n")
		_ = rw.Flush()
		_, err = io.Copy(conn, rw)
		_, _ = io.WriteString(conn, "bye\n")
		ended <- err
	}
}

func TestWhatIsUpgradedIsOneConnection(t *testing.T) {
	t.Parallel()
	for _, upgrade := range []string{"SPDY/3.1", "websocket"} {
		t.Run(upgrade, func(t *testing.T) {
			t.Parallel()
			ended := make(chan error, 1)
			b := setup(t, echo(upgrade, ended))
			c := b.caller()
			c.send("POST /api/v1/namespaces/a/pods/b/exec?command=sh", asUser+"Connection: Upgrade\r\nUpgrade: "+upgrade+"\r\n")
			response := c.receive()
			require.Equal(t, http.StatusSwitchingProtocols, response.StatusCode)
			require.Equal(t, upgrade, response.Header.Get("Upgrade"))
			line, err := c.lines.ReadString('\n')
			require.NoError(t, err)
			require.Equal(t, "welcome\n", line)
			sent := strings.Repeat("both ways, ", 100_000)
			go func() {
				_, _ = io.WriteString(c, sent)
				_ = c.CloseWrite()
			}()
			back, err := io.ReadAll(c.lines)
			require.NoError(t, err)
			require.Equal(t, sent+"bye\n", string(back), "what comes after the caller's end comes, too")
			require.NoError(t, <-ended)
		})
	}
}

// An API server that neither reads nor writes must not keep what its caller has given up.
func TestAnAPIServerThatIsStuckHoldsNobody(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		header string
		give   func(*bed, *caller)
	}{
		"a body, given up":                {"Content-Length: 100000000\r\n", func(_ *bed, c *caller) { c.Reset(tunnel.Cancelled, "enough") }},
		"a body, the session is lost":     {"Content-Length: 100000000\r\n", func(b *bed, _ *caller) { _ = b.session.Close() }},
		"an upgrade, given up":            {"Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n", func(_ *bed, c *caller) { c.Reset(tunnel.Cancelled, "enough") }},
		"an upgrade, the session is lost": {"Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n", func(b *bed, _ *caller) { _ = b.session.Close() }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			began, look, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
			b := setup(t, func(w http.ResponseWriter, r *http.Request) {
				defer close(ended)
				if r.Header.Get("Upgrade") == "" {
					close(began)
					<-r.Context().Done()
					return
				}
				conn, rw, err := http.NewResponseController(w).Hijack()
				if err != nil {
					return
				}
				defer conn.Close()
				_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n")
				_ = rw.Flush()
				close(began)
				<-look
				_, _ = io.Copy(io.Discard, conn)
			})
			call := b.caller()
			call.send("POST /", asUser+c.header)
			<-began
			require.NoError(t, call.SetWriteDeadline(time.Now().Add(500*time.Millisecond)))
			var err error
			for err == nil {
				_, err = call.Write(make([]byte, 64<<10))
			}
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			c.give(b, call)
			require.Eventually(t, func() bool { return b.open.Load() == 0 }, time.Minute, time.Millisecond)
			close(look)
			<-ended
		})
	}
}

func TestAnAPIServerThatDoesNotAnswerIsSaid(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	})
	b := &bed{t: t}
	b.start(&rest.Config{Host: "http://" + l.Addr().String()})
	status, answer := b.caller().ask("GET /", asUser)
	require.Equal(t, http.StatusBadGateway, status)
	require.Contains(t, answer, "the API server of the cluster gave no answer to the agent")
	require.ErrorContains(t, b.proxy.Check(t.Context()), "does not answer")
	require.NoError(t, l.Close())
	accepting.Wait()
	status, answer = b.caller().ask("GET /", asUser)
	require.Equal(t, http.StatusServiceUnavailable, status)
	var said metav1.Status
	require.NoError(t, json.Unmarshal([]byte(answer), &said))
	require.Equal(t, metav1.StatusReasonServiceUnavailable, said.Reason)
	require.Contains(t, said.Message, "cannot reach the API server of its cluster: dial tcp")
}

// A caller must not take what came before a failure for all there was.
func TestAnAnswerThatBreaksOffIsNoWholeOne(t *testing.T) {
	t.Parallel()
	b := setup(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "half of i")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	c := b.caller()
	c.send("GET /", asUser)
	_, err := io.ReadAll(c.receive().Body)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
}

func TestAStreamEndsWithItsRequestWhenTheSessionIsLeft(t *testing.T) {
	t.Parallel()
	began, let := make(chan struct{}), make(chan struct{})
	b := setup(t, func(w http.ResponseWriter, _ *http.Request) {
		close(began)
		<-let
		_, _ = io.WriteString(w, "whole")
	})
	c := b.caller()
	c.send("GET /", asUser)
	<-began
	b.agent.Drain()
	<-b.session.PeerDraining()
	close(let)
	response := c.receive()
	require.True(t, response.Close)
	require.Equal(t, "whole", c.body(response))
	_, err := c.lines.ReadByte()
	require.ErrorIs(t, err, io.EOF)
	require.NoError(t, c.CloseWrite())
	<-b.session.Done()
}

// A caller that does not read costs a bounded amount of memory at the agent, and stops the API server.
func TestACallerThatDoesNotReadStopsTheAPIServer(t *testing.T) {
	t.Parallel()
	var sent atomic.Int64
	b := setup(t, func(w http.ResponseWriter, _ *http.Request) {
		for {
			n, err := w.Write(make([]byte, 32<<10))
			if err != nil {
				return
			}
			sent.Add(int64(n))
		}
	})
	slow := b.caller()
	slow.send("GET /", asUser)
	before := int64(-1)
	require.Eventually(t, func() bool {
		now := sent.Load()
		stopped := now == before && now > 0
		before = now
		return stopped
	}, time.Minute, 500*time.Millisecond)
	require.Less(t, before, int64(2<<20))
	// Others go on.
	quick := b.caller()
	quick.send("GET /", asUser)
	_, err := io.CopyN(io.Discard, quick.receive().Body, 8<<20)
	require.NoError(t, err)
	slow.Reset(tunnel.Cancelled, "enough")
	quick.Reset(tunnel.Cancelled, "enough")
}

func TestAProxyThatHasStoppedTakesNothing(t *testing.T) {
	t.Parallel()
	p, err := kube.New(&rest.Config{Host: "http://127.0.0.1:1"}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, p.Run(ctx))
	near, far := net.Pipe()
	over := make(chan struct{})
	s := tunnel.NewSession(near, false, true, tunnel.Config{}, nil)
	agent := tunnel.NewSession(far, true, true, tunnel.Config{}, func(s *tunnel.Stream) { p.ServeStream(s, nil, func() { close(over) }) })
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.Serve() })
	serving.Go(func() { _ = agent.Serve() })
	st, err := s.Open([]byte("head"))
	require.NoError(t, err)
	<-over
	_, err = st.Read(make([]byte, 1))
	var reset *tunnel.ResetError
	require.ErrorAs(t, err, &reset)
	require.True(t, reset.Retryable())
	_, _ = s.Close(), agent.Close()
	serving.Wait()
}

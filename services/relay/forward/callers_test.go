package forward_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
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

	"lockstep.internal/libs/directory"
	"lockstep.internal/services/relay/audit"
)

// caller has one connection to the relay, and sends requests over it.
type caller struct {
	f    *fixture
	conn net.Conn
	r    *bufio.Reader
}

func (f *fixture) connect() *caller {
	f.t.Helper()
	conn, err := net.Dial("tcp", f.server.Listener.Addr().String())
	require.NoError(f.t, err)
	if f.server.TLS != nil {
		roots := f.server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
		conn = tls.Client(conn, &tls.Config{RootCAs: roots, ServerName: "example.com"})
	}
	f.t.Cleanup(func() { _ = conn.Close() })
	require.NoError(f.t, conn.SetDeadline(time.Now().Add(soon)))
	return &caller{f, conn, bufio.NewReader(conn)}
}

// send text, with a developer's token for {token}.
func (c *caller) send(text string) {
	c.f.t.Helper()
	_, err := io.WriteString(c.conn, strings.ReplaceAll(text, "{token}", c.f.token(developer)))
	require.NoError(c.f.t, err)
}

// getRequest is a GET request for a path of the target.
func getRequest(path string) string {
	return "GET /agents/7/http/shop" + path + " HTTP/1.1\r\nHost: relay\r\nAuthorization: {token}\r\n\r\n"
}

// postRequest is a POST request for a path of the target.
func postRequest(path, body string) string {
	return fmt.Sprintf("POST /agents/7/http/shop%s HTTP/1.1\r\nHost: relay\r\nAuthorization: {token}\r\n"+
		"Content-Length: %d\r\n\r\n%s", path, len(body), body)
}

// receive reads a response to its end.
func (c *caller) receive() (*http.Response, string) {
	c.f.t.Helper()
	response, err := http.ReadResponse(c.r, nil)
	require.NoError(c.f.t, err)
	return response, read(c.f.t, response)
}

func (c *caller) get(path string) string {
	c.f.t.Helper()
	c.send(getRequest(path))
	response, body := c.receive()
	require.Equal(c.f.t, http.StatusOK, response.StatusCode, body)
	return body
}

// lastRecord is the last audit record.
func (f *fixture) lastRecord() audit.Record {
	f.t.Helper()
	all := f.publish()
	require.NotEmpty(f.t, all)
	return all[len(all)-1]
}

// echo responds with the request.
func echo(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	_, _ = fmt.Fprintf(w, "%s %s %s %s", r.Method, r.URL.Path, body, r.Header.Get("X-Forwarded-Proto"))
}

// blockingTarget holds each request until the test releases it, or the request is cancelled.
// Paths below /free are answered at once.
type blockingTarget struct {
	started, cancelled chan string
	release            chan struct{}
	begin              string // of the body, sent before the target blocks
}

func newBlockingTarget(begin string) *blockingTarget {
	return &blockingTarget{
		started: make(chan string, 9), cancelled: make(chan string, 9), release: make(chan struct{}), begin: begin,
	}
}

func (b *blockingTarget) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.URL.Path, "/free") {
		echo(w, r)
		return
	}
	if b.begin != "" {
		_, _ = io.WriteString(w, b.begin)
		_ = http.NewResponseController(w).Flush()
	}
	b.started <- r.URL.Path
	select {
	case <-b.release:
		_, _ = io.WriteString(w, "released")
	case <-r.Context().Done():
		b.cancelled <- r.URL.Path
	}
}

func TestPipelinedRequestsAreAnsweredInOrder(t *testing.T) {
	t.Parallel()
	f := newFixture(t, newAgent(t, http.HandlerFunc(echo)))
	c := f.connect()
	var requests strings.Builder
	for n := range 60 {
		path := fmt.Sprintf("/%d", n)
		if n%7 == 3 {
			requests.WriteString(postRequest(path, "text"))
		} else {
			requests.WriteString(getRequest(path))
		}
	}
	c.send(requests.String())
	for n := range 60 {
		_, body := c.receive()
		want := fmt.Sprintf("GET /%d  http", n)
		if n%7 == 3 {
			want = fmt.Sprintf("POST /%d text http", n)
		}
		require.Equal(t, want, body)
	}
	all := f.publish()
	require.Len(t, all, 60)
	for _, r := range all {
		require.Empty(t, r.Error)
	}
}

func TestRequestIsCancelledWhenCallerDisconnects(t *testing.T) {
	t.Parallel()
	halfClose := func(conn net.Conn) error {
		if secure, is := conn.(*tls.Conn); is {
			return secure.CloseWrite()
		}
		return conn.(*net.TCPConn).CloseWrite()
	}
	for name, c := range map[string]struct {
		begin string
		leave func(net.Conn) error
	}{
		"before the response":              {"", net.Conn.Close},
		"half-closed, before the response": {"", halfClose},
		"during the response":              {"begun", net.Conn.Close},
		"half-closed, during the response": {"begun", halfClose},
	} {
		for _, secure := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, TLS %t", name, secure), func(t *testing.T) {
				t.Parallel()
				target := newBlockingTarget(c.begin)
				f := newFixture(t, newAgent(t, target), options{secure: secure})
				call := f.connect()
				_ = call.get("/free")
				call.send(getRequest("/blocked"))
				<-target.started
				if c.begin != "" {
					response, err := http.ReadResponse(call.r, nil)
					require.NoError(t, err)
					_, err = io.ReadFull(response.Body, make([]byte, len(c.begin)))
					require.NoError(t, err)
				}
				require.NoError(t, c.leave(call.conn))
				require.Equal(t, "/blocked", <-target.cancelled)
				last := f.lastRecord()
				require.Contains(t, last.Error, "the caller has gone")
				if c.begin != "" {
					require.EqualValues(t, len(c.begin), last.BytesReceived)
				}
			})
		}
	}
}

func TestCallerMaySendNextRequestBeforeResponse(t *testing.T) {
	t.Parallel()
	target := newBlockingTarget("")
	f := newFixture(t, newAgent(t, target))
	c := f.connect()
	c.send(getRequest("/blocked"))
	<-target.started
	next := getRequest("/free/next")
	c.send(next[:20])
	close(target.release)
	_, body := c.receive()
	require.Equal(t, "released", body)
	c.send(next[20:])
	_, body = c.receive()
	require.Equal(t, "GET /free/next  http", body)
}

func TestRequestEndsWhenCallerStopsReading(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		secure bool
		length string
	}{"Content-Length": {false, "1073741824"}, "chunked": {false, ""}, "TLS": {true, "1073741824"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			gone := make(chan struct{})
			f := newFixture(t, newAgent(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				defer close(gone)
				if c.length != "" {
					w.Header().Set("Content-Length", c.length)
				}
				for part := make([]byte, 1<<16); ; {
					if _, err := w.Write(part); err != nil {
						return
					}
				}
			})), options{secure: c.secure, stall: 200 * time.Millisecond})
			f.connect().send(getRequest("/large"))
			<-gone
			last := f.lastRecord()
			require.Equal(t, http.StatusOK, last.Status)
			require.NotEmpty(t, last.Error)
		})
	}
}

func TestRequestIsRetriedOnceWhenTargetClosesConnection(t *testing.T) {
	t.Parallel()
	for name, reset := range map[string]bool{"FIN": false, "RST": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			var served atomic.Int64
			target := &http.Server{
				ReadHeaderTimeout: soon,
				Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					served.Add(1)
					conn, _, err := http.NewResponseController(w).Hijack()
					if err != nil {
						return
					}
					_, _ = fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(r.URL.Path), r.URL.Path)
					if reset {
						_ = conn.(*net.TCPConn).SetLinger(0)
					}
					_ = conn.Close()
				}),
			}
			var serving sync.WaitGroup
			serving.Go(func() { _ = target.Serve(l) })
			t.Cleanup(func() {
				_ = target.Close()
				serving.Wait()
			})
			f := newFixture(t, newAgentAt(t, l.Addr().String()))
			c := f.connect()
			for n := range 300 {
				path := fmt.Sprintf("/%d", n)
				c.send(getRequest(path))
				response, err := http.ReadResponse(c.r, nil)
				require.NoError(t, err)
				body, err := io.ReadAll(response.Body)
				if reset && (err != nil || response.StatusCode == http.StatusServiceUnavailable) { // the reset overtook the response
					if response.Close || err != nil {
						c = f.connect()
					}
					continue
				}
				require.NoError(t, err)
				require.Equal(t, path, string(body))
			}
			require.EqualValues(t, 300, served.Load(), "the target served each request exactly once")
		})
	}
}

func TestInterruptedResponseIsNotComplete(t *testing.T) {
	t.Parallel()
	for name, head := range map[string]string{
		"Content-Length":         "HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n",
		"chunked":                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n",
		"until the end":          "HTTP/1.1 200 OK\r\n\r\n",
		"HTTP/1.0 until the end": "HTTP/1.0 200 OK\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			target := &scriptedTarget{response: head + "begun"}
			agent := newAgentAt(t, target.start(t))
			f := newFixture(t, agent)
			c := f.connect()
			c.send(getRequest("/case"))
			response, err := http.ReadResponse(c.r, nil)
			require.NoError(t, err)
			_, err = io.ReadFull(response.Body, make([]byte, 5))
			require.NoError(t, err)
			require.NoError(t, agent.session.Close())
			_, err = io.ReadAll(response.Body)
			require.ErrorIs(t, err, io.ErrUnexpectedEOF)
			last := f.lastRecord()
			require.Equal(t, "the answer was not completed", last.Error)
			require.EqualValues(t, 5, last.BytesReceived)
		})
	}
}

func block(p *fakeDirectory) { p.users[developer] = directory.User{ID: developer, Blocked: true} }

func TestRequestOfBlockedUserIsCancelled(t *testing.T) {
	t.Parallel()
	t.Run("before the response", func(t *testing.T) {
		t.Parallel()
		target := newBlockingTarget("")
		f := newFixture(t, newAgent(t, target))
		c := f.connect()
		c.send(getRequest("/blocked"))
		<-target.started
		f.people.change(func() { block(f.people) })
		response, body := c.receive()
		require.Equal(t, http.StatusForbidden, response.StatusCode, body)
		require.Equal(t, "/blocked", <-target.cancelled)
		require.Contains(t, f.lastRecord().Error, "permission_denied")
	})
	t.Run("during the response", func(t *testing.T) {
		t.Parallel()
		target := newBlockingTarget("begun")
		f := newFixture(t, newAgent(t, target))
		c := f.connect()
		c.send(getRequest("/blocked"))
		<-target.started
		response, err := http.ReadResponse(c.r, nil)
		require.NoError(t, err)
		f.people.change(func() { block(f.people) })
		_, err = io.ReadAll(response.Body)
		require.ErrorIs(t, err, io.ErrUnexpectedEOF, "the response must not look complete")
		require.Equal(t, "/blocked", <-target.cancelled)
		require.Contains(t, f.lastRecord().Error, "permission_denied")
	})
	t.Run("between requests", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, newAgent(t, http.HandlerFunc(echo)))
		c := f.connect()
		_ = c.get("/free")
		token := f.token(developer)
		f.people.change(func() { block(f.people) })
		c.send(strings.ReplaceAll(getRequest("/free"), "{token}", token))
		response, body := c.receive()
		require.Equal(t, http.StatusForbidden, response.StatusCode, body)
		f.people.change(func() { f.people.users[developer] = directory.User{ID: developer} })
		require.Contains(t, c.get("/again"), "/again", "the connection stays usable")
		require.Len(t, f.publish(), 2, "a request of an unknown caller has no record")
	})
}

// A connection may carry requests of several callers.
func TestBlockedUserDoesNotCancelNextRequestOnConnection(t *testing.T) {
	t.Parallel()
	target := newBlockingTarget("")
	f := newFixture(t, newAgent(t, target))
	c := f.connect()
	checking, proceed, checkedNext := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var once, onceNext sync.Once
	c.send(getRequest("/blocked"))
	<-target.started
	f.people.change(func() {
		block(f.people)
		f.people.onUser = func(id int64) {
			if id == developer {
				once.Do(func() {
					close(checking)
					<-proceed
				})
			}
		}
	})
	<-checking
	target.release <- struct{}{}
	_, body := c.receive()
	require.Equal(t, "released", body)
	c.send(strings.ReplaceAll(getRequest("/next"), "{token}", f.token(admin)))
	<-target.started
	f.people.change(func() {
		f.people.onUser = func(id int64) {
			if id == admin {
				onceNext.Do(func() { close(checkedNext) })
			}
		}
	})
	close(proceed)
	<-checkedNext
	target.release <- struct{}{}
	response, body := c.receive()
	require.Equal(t, http.StatusOK, response.StatusCode, body)
	require.Equal(t, "released", body)
}

func TestDrainCancelsRequestsAfterTimeout(t *testing.T) {
	t.Parallel()
	target := newBlockingTarget("")
	f := newFixture(t, newAgent(t, target))
	c := f.connect()
	c.send(getRequest("/blocked"))
	<-target.started
	finish, cancel := context.WithCancel(t.Context())
	cancel()
	f.handler.Drain(finish)
	<-target.cancelled
	response, body := c.receive()
	require.Equal(t, http.StatusServiceUnavailable, response.StatusCode, body)
	require.Contains(t, f.lastRecord().Error, "drained")
}

func TestRequestWaitsForRoomInAuditTrail(t *testing.T) {
	t.Parallel()
	f := newFixture(t, newAgent(t, http.HandlerFunc(echo)), options{room: 2})
	c := f.connect()
	_, _ = c.get("/1"), c.get("/2")
	require.Eventually(t, func() bool { return f.handler.Requests() == 0 }, soon, time.Millisecond)
	c.send(getRequest("/3"))
	require.Eventually(t, func() bool { return f.handler.Requests() == 1 }, soon, time.Millisecond)
	f.flush()
	_, body := c.receive()
	require.Contains(t, body, "/3")
	require.Contains(t, c.get("/4"), "/4")
}

func TestRequestWaitsForAgentToConnect(t *testing.T) {
	t.Parallel()
	agent := newAgent(t, http.HandlerFunc(echo))
	agent.absent = make(chan struct{})
	f := newFixture(t, agent)
	waits, leaves := f.connect(), f.connect()
	waits.send(getRequest("/waits"))
	leaves.send(getRequest("/leaves"))
	require.Eventually(t, func() bool { return f.handler.Requests() == 2 }, soon, time.Millisecond)
	require.NoError(t, leaves.conn.Close())
	require.Eventually(t, func() bool { return f.handler.Requests() == 1 }, soon, time.Millisecond)
	close(agent.absent)
	_, body := waits.receive()
	require.Contains(t, body, "/waits")
	all := f.publish()
	require.Len(t, all, 2)
	require.Contains(t, all[0].Error, "the caller has gone")
	require.EqualValues(t, 1, agent.opened.Load())
}

var errTimeout = errors.New("no response")

// readResponse reads a response to its end; failed is that it ended early.
func (c *caller) readResponse(method string) (response *http.Response, body []byte, failed bool) {
	c.f.t.Helper()
	response, err := http.ReadResponse(c.r, &http.Request{Method: method})
	if err == nil {
		body, err = io.ReadAll(response.Body)
	}
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		require.NoError(c.f.t, errTimeout)
	}
	return response, body, err != nil
}

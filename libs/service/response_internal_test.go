package service

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/config"
	"lockstep.internal/tools/testkit/unreadflood"
)

// pipeListener accepts pipes. They have no buffers: each write waits for its reader. The time of [synctest] passes
// meanwhile.
type pipeListener struct {
	conns chan net.Conn
	close func()
	done  <-chan struct{}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.close()
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{} }

// servedPipe is the server's end. closed is closed with it.
type servedPipe struct {
	net.Conn

	once   sync.Once
	closed chan struct{}
}

func (p *servedPipe) Close() error {
	p.once.Do(func() { close(p.closed) })
	return p.Conn.Close()
}

// dial returns a connection, and a channel that is closed when the server closes it.
func (l *pipeListener) dial(t *testing.T) (net.Conn, <-chan struct{}) {
	t.Helper()
	client, server := net.Pipe()
	served := &servedPipe{Conn: server, closed: make(chan struct{})}
	l.conns <- served
	t.Cleanup(func() { _ = client.Close() })
	return client, served.closed
}

// servePipes serves the handler until the test ends.
func servePipes(t *testing.T, cfg Listener, handler http.HandlerFunc) *pipeListener {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &pipeListener{conns: make(chan net.Conn), close: cancel, done: ctx.Done()}
	part := HTTPServer("api", cfg, handler, HTTPOptions{Logger: slog.New(slog.DiscardHandler)})
	var running sync.WaitGroup
	running.Go(func() {
		_ = part.Run(ctx, &Handle{
			listener: l, drain: ctx, set: func(bool, string) {}, refused: func(string) {},
		})
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return l
}

var protocols = map[string]func(*http.Protocols){
	"HTTP/1.1": func(p *http.Protocols) { p.SetHTTP1(true) },
	"HTTP/2.0": func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) },
}

// get returns the body of a response, and the error with which it ends.
func (l *pipeListener) get(t *testing.T, set func(*http.Protocols)) (string, error) {
	t.Helper()
	transport := &http.Transport{
		Protocols: new(http.Protocols), DisableKeepAlives: true,
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			conn, _ := l.dial(t)
			return conn, nil
		},
	}
	set(transport.Protocols)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://api", http.NoBody)
	require.NoError(t, err)
	response, err := transport.RoundTrip(request)
	require.NoError(t, err)
	body, err := io.ReadAll(response.Body)
	require.NoError(t, response.Body.Close())
	return string(body), err
}

// stallingConn reads a byte every 5 s when it is stalled.
type stallingConn struct {
	net.Conn

	stalled atomic.Bool
}

const stallingRead = 5 * time.Second

func (c *stallingConn) Read(data []byte) (int, error) {
	if c.stalled.Load() {
		time.Sleep(stallingRead)
		data = data[:1]
	}
	return c.Conn.Read(data)
}

// requestStalled requests a path on a connection of its own, grants a window for the response and reads a byte of it
// now and then.
func requestStalled(t *testing.T, l *pipeListener, path string) {
	t.Helper()
	conn, _ := l.dial(t)
	stalling := &stallingConn{Conn: conn}
	c := unreadflood.On(t, stalling, "api")
	synctest.Wait()
	stalling.stalled.Store(true)
	c.Grant(c.Get(path), 16<<20)
	synctest.Wait()
}

// largeResponses is a handler whose responses have 1 MiB. It sends the path of each that has ended.
func largeResponses(ended chan<- string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write(make([]byte, 1<<20))
		ended <- r.URL.Path
	}
}

func TestResponseIsCutWhenTheClientReadsAByteNowAndThen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultListener("")
		cfg.WriteTimeout = 10 * time.Second
		ended := make(chan string, 1)
		requestStalled(t, servePipes(t, cfg, largeResponses(ended)), "/")
		time.Sleep(cfg.WriteTimeout + resetTimeout)
		synctest.Wait()
		require.Len(t, ended, 1)
	})
}

func TestResponsesThatWereCutHoldMemoryForFewSecondsAndUpToMaxResponses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultListener("")
		cfg.MaxResponses = config.MiB
		ended := make(chan string, 3)
		l := servePipes(t, cfg, largeResponses(ended))
		requestStalled(t, l, "/first")
		requestStalled(t, l, "/second")
		require.Empty(t, ended)
		requestStalled(t, l, "/third")
		require.Len(t, ended, 1)
		require.Equal(t, "/second", <-ended)
		time.Sleep(resetTimeout)
		synctest.Wait()
		require.Len(t, ended, 1)
		require.Equal(t, "/first", <-ended)
	})
}

func TestSlowClientGetsItsWholeResponse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultListener("")
		const part = 64 << 10
		const parts = 12
		conn, _ := servePipes(t, cfg, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(make([]byte, parts*part))
		}).dial(t)
		c := unreadflood.On(t, conn, "api")
		id := c.Get("/")
		for i := range parts {
			time.Sleep(cfg.WriteTimeout - time.Second)
			c.Grant(id, part)
			c.Await(func(s unreadflood.Seen) bool { return s.Bytes[id] == (i+1)*part || s.Reset[id] })
		}
		c.Await(func(s unreadflood.Seen) bool { return s.Ended[id] || s.Reset[id] })
		c.Await(func(s unreadflood.Seen) bool { return !s.Reset[id] })
	})
}

func TestStreamWithoutEventsOutlivesTheWriteTimeout(t *testing.T) {
	t.Parallel()
	for name, set := range protocols {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg := DefaultListener("")
				l := servePipes(t, cfg, func(w http.ResponseWriter, _ *http.Request) {
					for range 2 {
						_, _ = w.Write([]byte("x"))
						_ = http.NewResponseController(w).Flush()
						time.Sleep(3 * cfg.WriteTimeout)
					}
				})
				body, err := l.get(t, set)
				require.NoError(t, err)
				require.Equal(t, "xx", body)
			})
		})
	}
}

func TestAbortedResponseIsNotTakenForAWholeOne(t *testing.T) {
	t.Parallel()
	for name, set := range protocols {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				body, err := servePipes(t, DefaultListener(""), func(w http.ResponseWriter, _ *http.Request) {
					assert.NoError(t, http.NewResponseController(w).Flush())
					aborted, ok := w.(*response)
					assert.True(t, ok)
					aborted.mu.Lock()
					aborted.aborted = true // as if the write had succeeded meanwhile
					aborted.mu.Unlock()
					_, err := w.Write([]byte("x"))
					assert.ErrorIs(t, err, os.ErrDeadlineExceeded)
				}).get(t, set)
				require.Error(t, err)
				require.Empty(t, body)
			})
		})
	}
}

func TestRefusalIsCutWhenTheClientReadsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultListener("")
		cfg.MaxHTTPRequests = 1
		release := make(chan struct{})
		defer close(release)
		l := servePipes(t, cfg, func(http.ResponseWriter, *http.Request) { <-release })
		request := func() <-chan struct{} {
			conn, closed := l.dial(t)
			_, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: api\r\n\r\n")
			require.NoError(t, err)
			synctest.Wait()
			return closed
		}
		request()
		closed := request()
		time.Sleep(errorTimeout)
		synctest.Wait()
		select {
		case <-closed:
		default:
			require.Fail(t, "the refusal still waits for its client")
		}
	})
}

func TestRefusedRequestsOfOneHostLeaveRequestsToOthers(t *testing.T) {
	t.Parallel()
	cfg := DefaultListener("")
	cfg.MaxHTTPRequests, cfg.MaxHTTPRequestsPerHost = 4, 2
	limits := limitRequests(cfg, nil)
	first, second := netip.MustParsePrefix("192.0.2.1/32"), netip.MustParsePrefix("192.0.2.2/32")
	var decisions []admission
	var releases []func()
	add := func(host netip.Prefix, times int) {
		for range times {
			release, decision := limits.add(host, true)
			decisions, releases = append(decisions, decision), append(releases, release)
		}
	}
	add(first, 5)
	add(second, 2)
	require.Equal(t, []admission{admit, admit, refuse, refuse, reset, admit, admit}, decisions)
	for _, release := range releases {
		release()
	}
	require.Empty(t, limits.hosts)
	require.Zero(t, limits.open)
	require.Zero(t, limits.refusing)
}

package forward_test

import (
	"context"
	"crypto/tls"
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

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/directory"
	"lockstep.internal/services/relay/auth"
)

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
	c.sendRaw(requests.String())
	for n := range 60 {
		_, body := c.receive()
		want := fmt.Sprintf("GET /%d  http", n)
		if n%7 == 3 {
			want = fmt.Sprintf("POST /%d text http", n)
		}
		require.Equal(t, want, body)
	}
	all := f.auditRecords()
	require.Len(t, all, 60)
	for _, r := range all {
		require.Empty(t, r.Error)
	}
}

func TestRequestIsCancelledWhenCallerDisconnects(t *testing.T) {
	t.Parallel()
	halfClose := func(conn net.Conn) error {
		if secure, ok := conn.(*tls.Conn); ok {
			return secure.CloseWrite()
		}
		return conn.(*net.TCPConn).CloseWrite()
	}
	for name, c := range map[string]struct {
		begin      string
		disconnect func(net.Conn) error
	}{
		"before the response":              {"", net.Conn.Close},
		"half-closed, before the response": {"", halfClose},
		"during the response":              {"begun", net.Conn.Close},
		"half-closed, during the response": {"begun", halfClose},
	} {
		for _, overTLS := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, TLS %t", name, overTLS), func(t *testing.T) {
				t.Parallel()
				target := newBlockingTarget(c.begin)
				f := newFixture(t, newAgent(t, target), options{tls: overTLS})
				caller := f.connect()
				_ = caller.get("/plain")
				caller.sendRaw(getRequest("/blocked"))
				<-target.started
				if c.begin != "" {
					response, err := http.ReadResponse(caller.r, nil)
					require.NoError(t, err)
					_, err = io.ReadFull(response.Body, make([]byte, len(c.begin)))
					require.NoError(t, err)
				}
				require.NoError(t, c.disconnect(caller.conn))
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
	c.sendRaw(getRequest("/blocked"))
	<-target.started
	next := getRequest("/plain/next")
	c.sendRaw(next[:20])
	close(target.release)
	_, body := c.receive()
	require.Equal(t, "released", body)
	c.sendRaw(next[20:])
	_, body = c.receive()
	require.Equal(t, "GET /plain/next  http", body)
}

func TestRequestEndsWhenCallerStopsReading(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		tls    bool
		length string
	}{"Content-Length": {false, "1073741824"}, "chunked": {false, ""}, "TLS": {true, "1073741824"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			targetDone := make(chan struct{})
			f := newFixture(t, newAgent(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				defer close(targetDone)
				if c.length != "" {
					w.Header().Set("Content-Length", c.length)
				}
				for part := make([]byte, 1<<16); ; {
					if _, err := w.Write(part); err != nil {
						return
					}
				}
			})), options{tls: c.tls, writeTimeout: 200 * time.Millisecond})
			f.connect().sendRaw(getRequest("/large"))
			<-targetDone
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
				ReadHeaderTimeout: timeout,
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
				c.sendRaw(getRequest(path))
				response, err := http.ReadResponse(c.r, nil)
				require.NoError(t, err)
				body, err := io.ReadAll(response.Body)
				// The reset overtook the response.
				if reset && (err != nil || response.StatusCode == http.StatusServiceUnavailable) {
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
		"Content-Length":            "HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n",
		"chunked":                   "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n",
		"body until close":          "HTTP/1.1 200 OK\r\n\r\n",
		"HTTP/1.0 body until close": "HTTP/1.0 200 OK\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			target := &scriptedTarget{response: head + "begun"}
			agent := newAgentAt(t, target.start(t))
			f := newFixture(t, agent)
			c := f.connect()
			c.sendRaw(getRequest("/case"))
			response, err := http.ReadResponse(c.r, nil)
			require.NoError(t, err)
			_, err = io.ReadFull(response.Body, make([]byte, 5))
			require.NoError(t, err)
			require.NoError(t, agent.session.Close())
			_, err = io.ReadAll(response.Body)
			require.ErrorIs(t, err, io.ErrUnexpectedEOF)
			last := f.lastRecord()
			require.Equal(t, "the response was not completed", last.Error)
			require.EqualValues(t, 5, last.BytesReceived)
		})
	}
}

// block blocks the developer.
func block(d *fakeDirectory) { d.users[developer] = directory.User{ID: developer, Blocked: true} }

func TestRequestOfRevokedTokenIsCancelled(t *testing.T) {
	t.Parallel()
	target := newBlockingTarget("begun")
	f := newFixture(t, newAgent(t, target))
	revoked := f.token(developer, func(g *access.Grant) { g.TokenID = 11 })
	c := f.connect()
	c.sendRaw(strings.ReplaceAll(getRequest("/revoked"), "{token}", revoked))
	<-target.started
	response, err := http.ReadResponse(c.r, nil)
	require.NoError(t, err)
	f.directory.change(func() {
		f.directory.users[developer] = directory.User{ID: developer, RevokedTokens: []int64{11}}
	})
	_, err = io.ReadAll(response.Body)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF, "the response must not look complete")
	require.Equal(t, "/revoked", <-target.cancelled)
	require.Contains(t, f.lastRecord().Error, "token 11, from which the access token was made, is revoked")

	response, body := f.request(developer, http.MethodGet, "/agents/7/http/shop/", http.Header{"Authorization": {revoked}})
	require.Equal(t, http.StatusUnauthorized, response.StatusCode, body)
}

func TestRequestEndsAfterItsLifetime(t *testing.T) {
	t.Parallel()
	user := func(f *fixture) string { return f.token(developer) }
	for name, c := range map[string]struct {
		path, reason string
		lifetime     time.Duration
		token        func(*fixture) string
		err          error
	}{
		"maximum": {
			"/agents/7/http/shop/x", "unavailable: the stream reached its maximum lifetime of 2s: reconnect", 2 * time.Second,
			user, io.ErrUnexpectedEOF,
		},
		"a watch ends as clients expect it": {
			"/agents/7/kubernetes/api/v1/pods?watch=1", "unavailable: the stream reached its maximum lifetime of 2s: reconnect",
			2 * time.Second, user, nil,
		},
		"its token": {
			"/agents/7/http/shop/x", "the token has expired", 0, func(f *fixture) string {
				return f.token(developer, func(g *access.Grant) { g.TokenExpiresAt = time.Now().Add(3 * time.Second) })
			}, io.ErrUnexpectedEOF,
		},
		"the token of a service": {
			"/agents/7/kubernetes/api/v1/pods", "the token has expired", 0, func(f *fixture) string {
				signer, err := auth.NewSigner(auth.Config{
					Issuer: "gitlab", Audience: "gitlab-kas", Secrets: [][]byte{serviceSecret}, Lifetime: time.Second,
					Now: func() time.Time { return time.Now().Add(3*time.Second - auth.MaxSkew) },
				})
				require.NoError(f.t, err)
				token, err := signer.Sign("ci")
				require.NoError(f.t, err)
				return "Bearer " + token
			}, io.ErrUnexpectedEOF,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			target := newBlockingTarget("begun")
			f := newFixture(t, newAgent(t, target), options{streamLifetime: c.lifetime})
			connection := f.connect()
			connection.sendRaw("GET " + c.path + " HTTP/1.1\r\nHost: relay\r\nAuthorization: " +
				c.token(f) + "\r\n\r\n")
			<-target.started
			response, err := http.ReadResponse(connection.r, nil)
			require.NoError(t, err)
			_, err = io.ReadAll(response.Body)
			require.ErrorIs(t, err, c.err)
			<-target.cancelled
			require.Contains(t, f.lastRecord().Error, c.reason)
		})
	}
}

func TestRequestOfBlockedUserIsCancelled(t *testing.T) {
	t.Parallel()
	t.Run("before the response", func(t *testing.T) {
		t.Parallel()
		target := newBlockingTarget("")
		f := newFixture(t, newAgent(t, target))
		c := f.connect()
		c.sendRaw(getRequest("/blocked"))
		<-target.started
		f.directory.change(func() { block(f.directory) })
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
		c.sendRaw(getRequest("/blocked"))
		<-target.started
		response, err := http.ReadResponse(c.r, nil)
		require.NoError(t, err)
		f.directory.change(func() { block(f.directory) })
		_, err = io.ReadAll(response.Body)
		require.ErrorIs(t, err, io.ErrUnexpectedEOF, "the response must not look complete")
		require.Equal(t, "/blocked", <-target.cancelled)
		require.Contains(t, f.lastRecord().Error, "permission_denied")
	})
	t.Run("between requests", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, newAgent(t, http.HandlerFunc(echo)))
		c := f.connect()
		_ = c.get("/plain")
		token := f.token(developer)
		f.directory.change(func() { block(f.directory) })
		c.sendRaw(strings.ReplaceAll(getRequest("/plain"), "{token}", token))
		response, body := c.receive()
		require.Equal(t, http.StatusForbidden, response.StatusCode, body)
		f.directory.change(func() { f.directory.users[developer] = directory.User{ID: developer} })
		require.Contains(t, c.get("/again"), "/again", "the connection stays usable")
		require.Len(t, f.auditRecords(), 2, "a request with a refused token has no record")
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
	c.sendRaw(getRequest("/blocked"))
	<-target.started
	f.directory.change(func() {
		block(f.directory)
		f.directory.onUser = func(id int64) {
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
	c.sendRaw(strings.ReplaceAll(getRequest("/next"), "{token}", f.token(admin)))
	<-target.started
	f.directory.change(func() {
		f.directory.onUser = func(id int64) {
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
	c.sendRaw(getRequest("/blocked"))
	<-target.started
	drainCtx, cancel := context.WithCancel(t.Context())
	cancel()
	f.handler.Drain(drainCtx)
	<-target.cancelled
	response, body := c.receive()
	require.Equal(t, http.StatusServiceUnavailable, response.StatusCode, body)
	require.Contains(t, f.lastRecord().Error, "draining")
}

func TestRequestWaitsForAuditCapacity(t *testing.T) {
	t.Parallel()
	f := newFixture(t, newAgent(t, http.HandlerFunc(echo)), options{auditCapacity: 2})
	c := f.connect()
	_, _ = c.get("/1"), c.get("/2")
	require.Eventually(t, func() bool { return f.handler.Requests() == 0 }, timeout, time.Millisecond)
	c.sendRaw(getRequest("/3"))
	require.Eventually(t, func() bool { return f.handler.Requests() == 1 }, timeout, time.Millisecond)
	f.flushAudit()
	_, body := c.receive()
	require.Contains(t, body, "/3")
	require.Contains(t, c.get("/4"), "/4")
}

func TestRequestWaitsForAgentToConnect(t *testing.T) {
	t.Parallel()
	agent := newAgent(t, http.HandlerFunc(echo))
	agent.connected = make(chan struct{})
	f := newFixture(t, agent)
	waiting, disconnecting := f.connect(), f.connect()
	waiting.sendRaw(getRequest("/waits"))
	disconnecting.sendRaw(getRequest("/leaves"))
	require.Eventually(t, func() bool { return f.handler.Requests() == 2 }, timeout, time.Millisecond)
	require.NoError(t, disconnecting.conn.Close())
	require.Eventually(t, func() bool { return f.handler.Requests() == 1 }, timeout, time.Millisecond)
	close(agent.connected)
	_, body := waiting.receive()
	require.Contains(t, body, "/waits")
	all := f.auditRecords()
	require.Len(t, all, 2)
	require.Contains(t, all[0].Error, "the caller has gone")
	require.EqualValues(t, 1, agent.opened.Load())
}

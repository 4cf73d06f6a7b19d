package service_test

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/internal/testcert"
	"lockstep.internal/libs/service"
	"lockstep.internal/tools/testkit/unreadflood"
)

// remoteListener says that its connections come from other hosts.
type remoteListener struct {
	net.Listener

	host *atomic.Pointer[net.TCPAddr]
}

func (l remoteListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return remoteConn{conn, l.host.Load()}, err
}

type remoteConn struct {
	net.Conn

	remote net.Addr
}

func (c remoteConn) RemoteAddr() net.Addr { return c.remote }

// from returns the part with connections that come from host.
func from(host *atomic.Pointer[net.TCPAddr], part service.Part) service.Part {
	listen := part.Listen
	part.Listen = func(ctx context.Context) (net.Listener, error) {
		l, err := listen(ctx)
		return remoteListener{l, host}, err
	}
	return part
}

func host(last byte) *net.TCPAddr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, last), Port: 1} }

// serve starts a listener and returns its address.
func serve(t *testing.T, cfg service.Listener, handler http.HandlerFunc) string {
	t.Helper()
	p := start(t, nil, api(cfg, handler))
	<-p.ready
	return p.addrs["api"]
}

// No other test runs meanwhile: the memory is measured.
func TestOneHostThatReadsNoResponsesCostsLittleMemoryAndLeavesRequestsToOthers(t *testing.T) {
	var attacker atomic.Pointer[net.TCPAddr]
	attacker.Store(host(1))
	cfg := service.DefaultListener("127.0.0.1:0")
	cfg.MaxConnectsPerHost = 1000
	p := start(t, nil, from(&attacker, api(cfg, func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no token", http.StatusUnauthorized)
	})))
	<-p.ready
	grown := unreadflood.Flood(t, p.addrs["api"], "/", 100, cfg.MaxConcurrentStreams)
	t.Logf("%d streams cost %d MiB", 100*cfg.MaxConcurrentStreams, grown>>20)
	require.Less(t, grown, int64(unreadflood.MaxGrowth))

	attacker.Store(host(2))
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+p.addrs["api"]+"/", http.NoBody)
	require.NoError(t, err)
	response, err := newClient(t).Do(request)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusUnauthorized, response.StatusCode)
}

func TestRequestsAboveTheLimitAreRefusedWithoutABody(t *testing.T) {
	t.Parallel()
	cfg := service.DefaultListener("127.0.0.1:0")
	cfg.MaxHTTPRequests = 2
	release := make(chan struct{})
	address := serve(t, cfg, func(http.ResponseWriter, *http.Request) { <-release })
	c := unreadflood.Open(t, address)
	for range 3 {
		c.Get("/")
	}
	c.Await(func(s unreadflood.Seen) bool { return len(s.Status) == 1 })
	close(release)
	c.Await(func(s unreadflood.Seen) bool {
		found := map[int]int{}
		for id, status := range s.Status {
			if s.Ended[id] {
				found[status]++
			}
		}
		return found[http.StatusServiceUnavailable] == 1 && found[http.StatusOK] == 2
	})
	id := c.Get("/")
	c.Await(func(s unreadflood.Seen) bool { return s.Status[id] == http.StatusOK })
}

func TestResponseIsCutWhenTheClientStopsReading(t *testing.T) {
	t.Parallel()
	for name, size := range map[string]int{"small": 1, "large": 1 << 20} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := service.DefaultListener("127.0.0.1:0")
			cfg.WriteTimeout = 100 * time.Millisecond
			c := unreadflood.Open(t, serve(t, cfg, func(w http.ResponseWriter, _ *http.Request) {
				_, _ = w.Write(make([]byte, size))
			}))
			id := c.Get("/")
			c.Await(func(s unreadflood.Seen) bool { return s.Reset[id] })
		})
	}
}

func TestResponseOfHTTP1IsCutWhenTheClientStopsReading(t *testing.T) {
	t.Parallel()
	authority := testcert.New(t)
	for name, secure := range map[string]bool{"plain": false, "TLS": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := service.DefaultListener("127.0.0.1:0")
			cfg.WriteTimeout = 100 * time.Millisecond
			dial := func(address string) (net.Conn, error) { return net.Dial("tcp", address) }
			if secure {
				cfg.TLS.CertFile, cfg.TLS.KeyFile = authority.Issue(t, t.TempDir(), "api")
				dial = func(address string) (net.Conn, error) {
					return tls.Dial("tcp", address, &tls.Config{RootCAs: authority.Pool, MinVersion: tls.VersionTLS12})
				}
			}
			cut := make(chan error, 1)
			conn, err := dial(serve(t, cfg, func(w http.ResponseWriter, _ *http.Request) {
				for part := make([]byte, 1<<20); ; {
					if _, err := w.Write(part); err != nil {
						cut <- err
						return
					}
				}
			}))
			require.NoError(t, err)
			defer conn.Close()
			_, err = conn.Write([]byte("GET / HTTP/1.1\r\nHost: api\r\n\r\n"))
			require.NoError(t, err)
			require.ErrorIs(t, <-cut, os.ErrDeadlineExceeded)
		})
	}
}

func TestResponseThatWaitsLongestIsCutAboveMaxResponses(t *testing.T) {
	t.Parallel()
	cfg := service.DefaultListener("127.0.0.1:0")
	cfg.MaxResponses = config.MiB
	c := unreadflood.Open(t, serve(t, cfg, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(make([]byte, 400<<10))
	}))
	var ids []uint32
	for range 3 {
		id := c.Get("/")
		ids = append(ids, id)
		c.Await(func(s unreadflood.Seen) bool { return s.Status[id] != 0 })
	}
	c.Await(func(s unreadflood.Seen) bool { return s.Reset[ids[0]] })
	c.Grant(ids[1], 400<<10)
	c.Await(func(s unreadflood.Seen) bool { return s.Ended[ids[1]] && !s.Reset[ids[1]] && !s.Reset[ids[2]] })
}

func TestUpgradedRequestsDoNotCount(t *testing.T) {
	t.Parallel()
	cfg := service.DefaultListener("127.0.0.1:0")
	cfg.MaxHTTPRequests = 1
	release := make(chan struct{})
	defer close(release)
	address := serve(t, cfg, func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		_, _ = conn.Write([]byte("HTTP/1.1 101 Switching Protocols\r\n\r\n"))
		<-release
		_ = conn.Close()
	})
	for range 3 {
		conn, err := net.Dial("tcp", address)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		_, err = conn.Write([]byte("GET / HTTP/1.1\r\nHost: api\r\n\r\n"))
		require.NoError(t, err)
		head := make([]byte, len("HTTP/1.1 101"))
		_, err = conn.Read(head)
		require.NoError(t, err)
		require.Equal(t, "HTTP/1.1 101", string(head))
	}
}

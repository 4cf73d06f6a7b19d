package service

import (
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fakeConn is a connection from a remote address.
type fakeConn struct {
	net.Conn

	remote net.Addr
}

func (c fakeConn) RemoteAddr() net.Addr { return c.remote }

func (fakeConn) Close() error { return nil }

func from(ip string) fakeConn { return fakeConn{remote: &net.TCPAddr{IP: net.ParseIP(ip), Port: 1}} }

// fakeListener accepts what a test sends.
type fakeListener struct {
	net.Listener

	conns chan net.Conn
}

func (l fakeListener) Accept() (net.Conn, error) {
	if conn, ok := <-l.conns; ok {
		return conn, nil
	}
	return nil, net.ErrClosed
}

// connectionLimits is a limitedListener on a fake one, with a clock.
type connectionLimits struct {
	*limitedListener

	conns   chan net.Conn
	clock   time.Time
	reasons []string
}

func newConnectionLimits(cfg Listener) *connectionLimits {
	c := &connectionLimits{conns: make(chan net.Conn, 1), clock: time.Unix(1e9, 0)}
	refused := func(reason string) { c.reasons = append(c.reasons, reason) }
	c.limitedListener = limitConnections(fakeListener{conns: c.conns}, cfg, slog.New(slog.DiscardHandler), refused)
	c.now = func() time.Time { return c.clock }
	return c
}

// accept accepts a connection. It returns the reason if it is refused.
func (c *connectionLimits) accept(t *testing.T, conn net.Conn) string {
	t.Helper()
	c.reasons = nil
	c.conns <- conn
	close(c.conns)
	_, err := c.Accept()
	c.conns = make(chan net.Conn, 1)
	c.Listener = fakeListener{conns: c.conns}
	if err == nil {
		require.Empty(t, c.reasons)
		return ""
	}
	require.Len(t, c.reasons, 1)
	return c.reasons[0]
}

func TestConnectionsOfOneHostAreBounded(t *testing.T) {
	t.Parallel()
	cfg := DefaultListener("")
	cfg.MaxHTTPConnections, cfg.MaxHTTPConnectionsPerHost, cfg.MaxConnectsPerHost = 5, 2, 100
	for _, ending := range []http.ConnState{http.StateClosed, http.StateHijacked} {
		c := newConnectionLimits(cfg)
		require.Empty(t, c.accept(t, from("10.0.0.1")))
		require.Empty(t, c.accept(t, from("::ffff:10.0.0.1")))
		require.Equal(t, refusedHostConnections, c.accept(t, from("10.0.0.1")))
		require.Empty(t, c.accept(t, from("10.0.0.2")), "another host")
		c.onState(from("10.0.0.1"), http.StateActive)
		require.Equal(t, refusedHostConnections, c.accept(t, from("10.0.0.1")))
		c.onState(from("10.0.0.1"), ending)
		require.Empty(t, c.accept(t, from("10.0.0.1")))

		require.Empty(t, c.accept(t, from("2001:db8::1")))
		require.Empty(t, c.accept(t, from("2001:db8::2")))
		require.Equal(t, refusedConnections, c.accept(t, from("10.0.0.3")), "the maximum of all")
		require.Equal(t, refusedHostConnections, c.accept(t, from("2001:db8::3")), "one network of IPv6 is one host")
		require.Equal(t, refusedConnections, c.accept(t, from("127.0.0.1")), "the maximum of all")
	}
}

func TestThisMachineIsNotARemoteHost(t *testing.T) {
	t.Parallel()
	cfg := DefaultListener("")
	cfg.MaxHTTPConnectionsPerHost, cfg.MaxConnectsPerHost = 1, 1
	c := newConnectionLimits(cfg)
	for range 100 {
		require.Empty(t, c.accept(t, from("127.0.0.1")))
		require.Empty(t, c.accept(t, from("::1")))
	}
}

func TestConnectionAttemptsOfOneHostAreBounded(t *testing.T) {
	t.Parallel()
	cfg := DefaultListener("")
	cfg.MaxConnectsPerHost = 2
	c := newConnectionLimits(cfg)
	connect := func(ip string) string {
		reason := c.accept(t, from(ip))
		if reason == "" {
			c.onState(from(ip), http.StateClosed)
		}
		return reason
	}
	for range connectBurst * cfg.MaxConnectsPerHost {
		require.Empty(t, connect("10.0.0.1"))
	}
	require.Equal(t, refusedHostConnects, connect("10.0.0.1"))
	require.Empty(t, connect("10.0.0.2"), "another host")
	c.clock = c.clock.Add(time.Second)
	require.Empty(t, connect("10.0.0.1"))
	require.Empty(t, connect("10.0.0.1"))
	require.Equal(t, refusedHostConnects, connect("10.0.0.1"))
}

func TestMemoryForHostsIsBounded(t *testing.T) {
	t.Parallel()
	c := newConnectionLimits(DefaultListener(""))
	require.Empty(t, c.accept(t, from("192.168.0.1")))
	for i := range 2 * maxHosts {
		conn := fakeConn{remote: &net.TCPAddr{IP: net.IPv4(10, byte(i>>16), byte(i>>8), byte(i))}}
		require.Empty(t, c.accept(t, conn))
		c.onState(conn, http.StateClosed)
	}
	require.LessOrEqual(t, len(c.hosts), maxHosts+1)
	c.onState(from("192.168.0.1"), http.StateClosed)
	require.Zero(t, c.open)
}

package runners_test

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// balancer forwards connections to the backends in turn, and leaves out those that refuse them.
type balancer struct {
	listener net.Listener
	group    sync.WaitGroup

	mu       sync.Mutex
	backends []string
	next     int
	open     map[net.Conn]struct{}
	closed   bool
}

// startBalancer starts a balancer without backends until the test ends.
func startBalancer(t testing.TB) *balancer {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	b := &balancer{listener: listener, open: map[net.Conn]struct{}{}}
	b.group.Go(b.accept)
	t.Cleanup(b.close)
	return b
}

// URL is where it listens.
func (b *balancer) URL() string { return "http://" + b.listener.Addr().String() }

// use sets the backends, as host:port.
func (b *balancer) use(backends ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.backends = backends
}

func (b *balancer) accept() {
	for {
		conn, err := b.listener.Accept()
		if err != nil {
			return // it is closed
		}
		b.group.Go(func() { b.serve(conn) })
	}
}

func (b *balancer) serve(client net.Conn) {
	defer client.Close()
	server := b.dial()
	if server == nil {
		return
	}
	defer server.Close()
	if !b.track(client, server) {
		return
	}
	defer b.forget(client, server)
	var copies sync.WaitGroup
	for _, pair := range [][2]net.Conn{{client, server}, {server, client}} {
		copies.Go(func() {
			_, _ = io.Copy(pair[0], pair[1]) // either end may close it
			_ = pair[0].Close()
			_ = pair[1].Close()
		})
	}
	copies.Wait()
}

// dial returns a connection to the next backend that accepts one; nil if there is none.
func (b *balancer) dial() net.Conn {
	b.mu.Lock()
	b.next++
	first, backends := b.next, b.backends
	b.mu.Unlock()
	for i := range backends {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", backends[(first+i)%len(backends)])
		cancel()
		if err == nil {
			return conn
		}
	}
	return nil
}

func (b *balancer) track(conns ...net.Conn) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, conn := range conns {
		b.open[conn] = struct{}{}
	}
	return !b.closed
}

func (b *balancer) forget(conns ...net.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, conn := range conns {
		delete(b.open, conn)
	}
}

func (b *balancer) close() {
	_ = b.listener.Close()
	b.mu.Lock()
	b.closed = true
	for conn := range b.open {
		_ = conn.Close()
	}
	b.mu.Unlock()
	b.group.Wait()
}

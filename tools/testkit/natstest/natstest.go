// Package natstest gives each test a NATS server of its own, which stops when the test ends. A server starts in
// milliseconds, so none is shared: every test may stop, restart or restore its own.
package natstest

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/tools/testkit/natsd"
)

const (
	reconnectWait = 10 * time.Millisecond
	timeout       = time.Minute
	// requestTimeout of JetStream requests: long enough for a slow disk, short enough that a test can retry a
	// request lost in an outage.
	requestTimeout = 20 * time.Second
)

// Server starts a server with a temporary store and no authentication.
func Server(tb testing.TB) *natsd.Server {
	tb.Helper()
	return Start(tb, natsd.Options{})
}

// Start starts a server with these options.
func Start(tb testing.TB, opts natsd.Options) *natsd.Server {
	tb.Helper()
	server, err := natsd.Start(opts)
	if err != nil {
		tb.Fatalf("start a NATS server for the test: %v", err)
	}
	tb.Cleanup(func() {
		if err := server.Stop(); err != nil {
			tb.Errorf("stop the test's NATS server: %v", err)
		}
	})
	return server
}

// Connect connects to the server and closes the connection when the test ends. It reconnects without limit.
func Connect(tb testing.TB, server *natsd.Server, options ...nats.Option) *nats.Conn {
	tb.Helper()
	options = append([]nats.Option{nats.MaxReconnects(-1), nats.ReconnectWait(reconnectWait), nats.Timeout(timeout)},
		options...)
	conn, err := nats.Connect(server.ClientURL(), options...)
	if err != nil {
		tb.Fatalf("connect to the test's NATS server: %v", err)
	}
	tb.Cleanup(conn.Close)
	return conn
}

// JetStream connects as Connect does and returns the JetStream API of the connection. Its
// requests without a deadline time out after 20 s, not after the default 5 s.
func JetStream(tb testing.TB, server *natsd.Server, options ...nats.Option) jetstream.JetStream {
	tb.Helper()
	return Open(tb, Connect(tb, server, options...))
}

// Open returns the JetStream API of a connection, as JetStream does.
func Open(tb testing.TB, conn *nats.Conn) jetstream.JetStream {
	tb.Helper()
	js, err := jetstream.New(conn, jetstream.WithDefaultTimeout(requestTimeout))
	if err != nil {
		tb.Fatalf("open JetStream on the test's NATS server: %v", err)
	}
	return js
}

// Context returns the test's context with a deadline. Without one, JetStream requests time out after 5 s, which
// is too short on a slow disk.
func Context(tb testing.TB) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), timeout)
	tb.Cleanup(cancel)
	return ctx
}

// Reconnected waits until the connection has reconnected. Requests sent before that may be lost. Call it after
// the server's Restart, Snapshot or Restore.
func Reconnected(tb testing.TB, conn *nats.Conn) {
	tb.Helper()
	deadline := time.Now().Add(timeout)
	for {
		_, err := conn.RTT()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			tb.Fatalf("the connection to the test's NATS server is not reconnected: %v", err)
		}
		// A failed round trip while disconnected returns at once: wait for the status change instead of spinning.
		status := conn.StatusChanged(nats.CONNECTED)
		select {
		case <-status:
		case <-time.After(reconnectWait):
		}
		conn.RemoveStatusListener(status)
	}
}

// Package natstest gives each test a NATS server of its own, stopped when the test ends.
//
// A server takes a few milliseconds to start, so none is shared: every test may stop, restart or
// restore its own.
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
	patience      = time.Minute
	// answer is how long JetStream may take to answer: long for a busy disk, and short within the
	// patience of tests that ask again, since what is asked while the server goes away is never
	// answered.
	answer = 20 * time.Second
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

// Connect connects to the server and closes the connection when the test ends. The connection comes
// back for ever after outages.
func Connect(tb testing.TB, server *natsd.Server, options ...nats.Option) *nats.Conn {
	tb.Helper()
	options = append(
		[]nats.Option{nats.MaxReconnects(-1), nats.ReconnectWait(reconnectWait), nats.Timeout(patience)},
		options...)
	conn, err := nats.Connect(server.ClientURL(), options...)
	if err != nil {
		tb.Fatalf("connect to the test's NATS server: %v", err)
	}
	tb.Cleanup(conn.Close)
	return conn
}

// JetStream connects as Connect does and returns the JetStream API of the connection. A request
// without a deadline of its own may take 20 s, and not only the client's usual 5 s.
func JetStream(tb testing.TB, server *natsd.Server, options ...nats.Option) jetstream.JetStream {
	tb.Helper()
	return Open(tb, Connect(tb, server, options...))
}

// Open returns the JetStream API of a connection, as JetStream does.
func Open(tb testing.TB, conn *nats.Conn) jetstream.JetStream {
	tb.Helper()
	js, err := jetstream.New(conn, jetstream.WithDefaultTimeout(answer))
	if err != nil {
		tb.Fatalf("open JetStream on the test's NATS server: %v", err)
	}
	return js
}

// Context is the test's, with a deadline: for requests through a JetStream API that is not made
// here, which without one fail after 5 s. A server takes that to make a stream when the disk is
// busy.
func Context(tb testing.TB) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	tb.Cleanup(cancel)
	return ctx
}

// Reconnected waits until the connection has noticed that its server was away, and is back: a
// request made before may be lost without an answer. Call it after the server's Restart, Snapshot
// or Restore.
func Reconnected(tb testing.TB, conn *nats.Conn) {
	tb.Helper()
	deadline := time.Now().Add(patience)
	for {
		_, err := conn.RTT()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			tb.Fatalf("the connection to the test's NATS server is not back: %v", err)
		}
		// A failed round trip while disconnected returns at once: wait for the change rather than
		// turn.
		status := conn.StatusChanged(nats.CONNECTED)
		select {
		case <-status:
		case <-time.After(reconnectWait):
		}
		conn.RemoveStatusListener(status)
	}
}

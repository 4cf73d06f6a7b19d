package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// listen serves like a target in this process and returns the address.
func listen(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	l, err := certified{}.listen()
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- serveConnections(l, serve) }()
	t.Cleanup(func() {
		require.NoError(t, l.Close())
		require.ErrorIs(t, <-served, net.ErrClosed)
	})
	return l.Addr().String()
}

// measured runs fn and returns the error that ended it.
func measured(t *testing.T, fn func(ctx context.Context)) error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	return onFixture(ctx, "", func(*fixture) { fn(ctx) })
}

func TestBulkIsTransferredInBothDirections(t *testing.T) {
	t.Parallel()
	to := route{name: "the test", stream: listen(t, serveStream)}
	require.NoError(t, measured(t, func(ctx context.Context) {
		for _, op := range []byte{opDown, opUp} {
			require.Positive(t, transfer(op, 3)(ctx, to, time.Millisecond)[0])
		}
		require.Positive(t, openStreams(ctx, to, time.Millisecond)[0])
	}))
}

func TestClosedConnectionIsAnError(t *testing.T) {
	t.Parallel()
	address := listen(t, func(conn net.Conn) { _, _ = io.CopyN(conn, conn, 1) })
	to := route{name: "the test", stream: address, http: address}
	for _, measure := range []func(context.Context, route, time.Duration) []float64{transfer(opDown, 1), requests(2)} {
		require.ErrorContains(t, measured(t, func(ctx context.Context) { measure(ctx, to, time.Hour) }), "the test")
	}
}

func TestLoadIsInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("interrupt")
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		cancel(cause)
		<-r.Context().Done()
	}))
	t.Cleanup(server.Close)
	to := route{name: "the test", http: server.Listener.Addr().String()}
	require.ErrorIs(t, onFixture(ctx, "", func(*fixture) { requests(2)(ctx, to, time.Hour) }), cause)
}

func TestRequestsHaveTheirPathAndToken(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/agents/7/http/http/x" || r.Header.Get("Authorization") != "Bearer token" {
			w.WriteHeader(http.StatusForbidden)
		}
		respond().ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	to := route{name: "the test", http: server.Listener.Addr().String(), path: "/agents/7", token: "token"}
	require.NoError(t, measured(t, func(ctx context.Context) {
		values := requests(4)(ctx, to, 20*time.Millisecond)
		require.Positive(t, values[0])
		require.Positive(t, values[1])
	}))
	to.token = "other"
	require.ErrorContains(t, measured(t, func(ctx context.Context) { requests(1)(ctx, to, time.Hour) }), "status 403")
	to.stream = to.http
	require.ErrorContains(t, measured(t, func(ctx context.Context) { openStreams(ctx, to, time.Hour) }), "403 Forbidden")
}

func TestOnlyEventsOfATurnCount(t *testing.T) {
	t.Parallel()
	now := time.Now()
	past := &meter{from: now.Add(-2 * time.Second), until: now.Add(-time.Second)}
	require.False(t, past.add(1, now, now), "the first thing after the turn counts")
	require.False(t, past.add(1, now, now.Add(time.Second)))
	require.Equal(t, 1, past.count)
	require.InDelta(t, 0.5, past.rate(), 1e-9)
	early := &meter{from: now.Add(time.Hour), until: now.Add(2 * time.Hour)}
	require.True(t, early.add(1, now, now))
	require.Zero(t, early.count)
	within := &meter{from: now.Add(-time.Second), until: now.Add(time.Hour)}
	require.True(t, within.add(2, now, now))
	require.True(t, within.add(3, now, now))
	require.Equal(t, 5, within.count)
}

func TestNoiseIsIncompressible(t *testing.T) {
	t.Parallel()
	n := noise(1 << 16)
	require.Equal(t, n, noise(1<<16))
	require.False(t, bytes.Contains(n[:1<<15], n[1<<15:1<<15+8]))
}

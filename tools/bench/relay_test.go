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
func listen(t *testing.T, serve func(net.Listener) error) string {
	t.Helper()
	l, err := certified{}.listen()
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- serve(l) }()
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
	to := route{name: "the test", stream: listen(t, serveStreams)}
	require.NoError(t, measured(t, func(ctx context.Context) {
		for _, isDown := range []bool{true, false} {
			require.Positive(t, to.transfer(ctx, time.Millisecond, 3, isDown))
		}
		require.Positive(t, to.openTime(ctx, time.Millisecond))
	}))
}

func TestClosedConnectionIsAnError(t *testing.T) {
	t.Parallel()
	address := listen(t, func(l net.Listener) error {
		for {
			conn, err := l.Accept()
			if err != nil {
				return err
			}
			_, _ = io.CopyN(conn, conn, 1)
			_ = conn.Close()
		}
	})
	to := route{name: "the test", stream: address, http: address}
	require.ErrorContains(t, measured(t, func(ctx context.Context) { to.transfer(ctx, time.Hour, 1, true) }), "the test")
	require.ErrorContains(t, measured(t, func(ctx context.Context) { requests(2)(ctx, to, time.Hour) }), "the test")
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
	require.ErrorContains(t, measured(t, func(ctx context.Context) { to.openTime(ctx, time.Hour) }), "403 Forbidden")
}

func TestOnlyEventsInWindowCount(t *testing.T) {
	t.Parallel()
	now := time.Now()
	past := &counter{window: window{from: now.Add(-2 * time.Second), until: now.Add(-time.Second)}}
	require.False(t, past.add(1, now), "the first thing after the window counts")
	require.False(t, past.add(1, now))
	require.Equal(t, 1, past.count)
	require.InDelta(t, 0.5, rate(past), 1e-9)
	early := &counter{window: window{from: now.Add(time.Hour), until: now.Add(2 * time.Hour)}}
	require.True(t, early.add(1, now))
	require.Zero(t, early.count)
	within := &counter{window: window{from: now.Add(-time.Second), until: now.Add(time.Hour)}}
	require.True(t, within.add(2, now))
	require.True(t, within.add(3, now))
	require.Equal(t, 5, within.count)
}

func TestNoiseIsIncompressible(t *testing.T) {
	t.Parallel()
	n := noise(1 << 16)
	require.Equal(t, n, noise(1<<16))
	require.False(t, bytes.Contains(n[:1<<15], n[1<<15:1<<15+8]))
}

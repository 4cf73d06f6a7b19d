package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// listening serves what a target does, as one process with the test.
func listening(t *testing.T, serve func(net.Listener) error) string {
	t.Helper()
	l, err := certified{}.listen(loopback)
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- serve(l) }()
	t.Cleanup(func() {
		require.NoError(t, l.Close())
		require.ErrorIs(t, <-served, net.ErrClosed)
	})
	return l.Addr().String()
}

func TestBulkComesWholeInBothDirections(t *testing.T) {
	t.Parallel()
	w := way{name: "the test", stream: listening(t, serveStreams)}
	for _, down := range []bool{down, up} {
		rate, err := w.carries(t.Context(), 3, down, 3, 3*(bulkBuffer+1))
		require.NoError(t, err)
		require.Positive(t, rate)
	}
	took, err := w.opens(t.Context(), time.Millisecond)
	require.NoError(t, err)
	require.Positive(t, took)
}

func TestWhatIsCutOffIsNoFigure(t *testing.T) {
	t.Parallel()
	cut := listening(t, func(l net.Listener) error {
		for {
			conn, err := l.Accept()
			if err != nil {
				return err
			}
			_, _ = io.CopyN(conn, conn, 9)
			_ = conn.Close()
		}
	})
	w := way{name: "the test", stream: cut, http: cut}
	_, err := w.carries(t.Context(), 1, down, 100, 100)
	require.ErrorContains(t, err, "carry bulk through the test")
	for _, connect := range clients() {
		_, err = w.asks(t.Context(), connect, 2, 0, time.Minute)
		require.ErrorContains(t, err, "ask through the test")
	}
}

// clients by who asks.
func clients() map[string]func(way, context.Context) (asker, error) {
	return map[string]func(way, context.Context) (asker, error){"bare": way.bare}
}

func TestClientsAskAndAreInterrupted(t *testing.T) {
	t.Parallel()
	for name, connect := range clients() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(respond())
			t.Cleanup(server.Close)
			w := way{name: "the test", http: server.Listener.Addr().String()}
			seen, err := w.asks(t.Context(), connect, 4, time.Millisecond, 50*time.Millisecond)
			require.NoError(t, err)
			require.Positive(t, seen.perSecond)
			require.Positive(t, seen.p99)

			seen, err = w.asks(t.Context(), connect, 4, 0, time.Nanosecond)
			require.NoError(t, err, "an answer that comes too late is better than none")
			require.Positive(t, seen.perSecond)

			ctx, cancel := context.WithCancelCause(t.Context())
			cause := errors.New("interrupt")
			cancel(cause)
			_, err = w.asks(ctx, connect, 4, time.Minute, time.Minute)
			require.Error(t, err)
		})
	}
}

func TestClientsAreInterruptedWhileTheyWait(t *testing.T) {
	t.Parallel()
	for name, connect := range clients() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancelCause(t.Context())
			cause := errors.New("interrupt")
			server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				cancel(cause)
				<-r.Context().Done()
			}))
			t.Cleanup(server.Close)
			w := way{name: "the test", http: server.Listener.Addr().String()}
			_, err := w.asks(ctx, connect, 2, time.Minute, time.Minute)
			require.ErrorIs(t, err, cause)
		})
	}
}

func TestClientsAskTheSameAndKeepTheirConnections(t *testing.T) {
	t.Parallel()
	const each = 20
	for name, connect := range clients() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var connections, questions atomic.Int64
			ended := make(chan struct{}, each)
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodGet || r.URL.Path != "/agents/7/http/http/x" || r.Header.Get("Authorization") != "Bearer you" || r.Host != r.Context().Value(http.LocalAddrContextKey).(net.Addr).String() {
					w.WriteHeader(http.StatusForbidden)
				}
				questions.Add(1)
				respond().ServeHTTP(w, r)
			}))
			server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
				switch state { //nolint:exhaustive // those that say how many there are
				case http.StateNew:
					connections.Add(1)
				case http.StateClosed:
					ended <- struct{}{}
				}
			}
			server.Start()
			t.Cleanup(server.Close)
			w := way{name: "the test", http: server.Listener.Addr().String(), path: "/agents/7", header: "Authorization: Bearer you\r\n"}
			who, err := connect(w, t.Context())
			require.NoError(t, err)
			for range each {
				require.NoError(t, who.ask())
			}
			require.NoError(t, who.Close())
			for range connections.Load() {
				<-ended
			}
			require.Error(t, who.ask(), "what is closed asks no more")
			require.EqualValues(t, each, questions.Load())
			require.Less(t, connections.Load(), int64(each)/2, "a busy machine makes net/http give up one or another")
		})
	}
}

func TestUpgradesThatAreRefusedSayWhy(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, "not "+r.Header.Get("Authorization"), http.StatusForbidden)
	}))
	t.Cleanup(server.Close)
	w := way{name: "the test", stream: server.Listener.Addr().String(), path: "/agents/7", header: "Authorization: you\r\n"}
	_, err := w.open(t.Context())
	require.ErrorContains(t, err, "not you")
}

func TestResponsesAreOfTheSizeThatIsMeasured(t *testing.T) {
	t.Parallel()
	body := strings.Repeat("x", responseSize)
	for name, c := range map[string]struct {
		answer string
		fault  string
	}{
		"as it should be":          {"HTTP/1.1 200 OK\r\nDate: now\r\ncontent-LENGTH: 1024\r\n\r\n" + body, ""},
		"refused":                  {"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 5\r\n\r\nnobody", "503 Service Unavailable"},
		"of another length":        {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nshort", "length"},
		"of no length":             {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "length"},
		"of a length that is none": {"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n", "many"},
		"cut off":                  {"HTTP/1.1 200 OK\r\nContent-Length: 1024\r\n\r\n" + body[1:], "EOF"},
		"cut off in its head":      {"HTTP/1.1 200 OK\r\nContent-", "EOF"},
		"nothing":                  {"", "EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := readResponse(bufio.NewReader(strings.NewReader(c.answer)))
			if c.fault == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.fault)
		})
	}
}

func TestNothingCompressesNoise(t *testing.T) {
	t.Parallel()
	n := noise(1 << 16)
	require.Equal(t, n, noise(1<<16))
	require.False(t, bytes.Contains(n[:1<<15], n[1<<15:1<<15+8]))
}

func TestTurnsFitIntoTheirTime(t *testing.T) {
	t.Parallel()
	size := Size{For: 12 * time.Second}
	turn := turnOf(size, 3)
	require.Equal(t, size.For, (leastTurns+1)*3*(turn+turn/warmingPart))
	require.Positive(t, turnOf(Size{For: time.Nanosecond}, 3))
}

func TestQuestionsToAFleet(t *testing.T) {
	t.Parallel()
	var times, agents int
	require.True(t, scans("times 2 1000", askTimes, &times, &agents))
	require.Equal(t, [2]int{2, 1000}, [2]int{times, agents})
	require.False(t, scans("connect", askConnect, &agents))
	require.NotEmpty(t, newFleetOfAgents().answer("how are you").Error)
}

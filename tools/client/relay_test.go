package client

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

// newEchoRelay starts a relay whose only target echoes. It rejects the given tokens.
func newEchoRelay(t *testing.T, rejected ...string) (url string, calls *atomic.Int32) {
	t.Helper()
	calls = &atomic.Int32{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		for _, token := range rejected {
			if r.Header.Get("Authorization") == "Bearer "+token {
				expired := fault.New(errcode.Unauthenticated, "the access token has expired")
				fault.WriteHTTP(w, r, slog.New(slog.DiscardHandler), expired)
				return
			}
		}
		if r.URL.Path != "/agents/7/tcp/echo" || r.Header.Get("Upgrade") != "tcp" {
			_, _ = io.WriteString(w, "a page")
			return
		}
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", "tcp")
		w.WriteHeader(http.StatusSwitchingProtocols)
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		_ = buffered.Flush()
		_, _ = io.Copy(conn, buffered)
	}))
	t.Cleanup(server.Close)
	return server.URL, calls
}

func TestStreamIsOpenedWithValidToken(t *testing.T) {
	t.Parallel()
	f := setup(t)
	url, calls := newEchoRelay(t, "relay-1")
	relay, err := f.api.Relay(url+"/", "")
	require.NoError(t, err)
	t.Cleanup(relay.Close)
	stream, err := relay.Open(t.Context(), 7, "echo")
	require.NoError(t, err)
	require.EqualValues(t, 2, calls.Load(), "the first token was refused")
	_, err = io.WriteString(stream, "some words")
	require.NoError(t, err)
	require.NoError(t, stream.CloseWrite())
	received, err := io.ReadAll(stream)
	require.NoError(t, err)
	require.Equal(t, "some words", string(received))
	require.NoError(t, stream.Close())

	_, err = relay.Open(t.Context(), 7, "page")
	require.ErrorContains(t, err, "check that the URL is a relay's external listener")
}

func TestTokenRefusedTwiceIsAnError(t *testing.T) {
	t.Parallel()
	f := setup(t)
	url, calls := newEchoRelay(t, "relay-1", "relay-2")
	relay, err := f.api.Relay(url, "")
	require.NoError(t, err)
	t.Cleanup(relay.Close)
	_, err = relay.Open(t.Context(), 7, "echo")
	require.Equal(t, errcode.Unauthenticated, fault.CodeOf(err))
	require.EqualValues(t, 2, calls.Load(), "exchanged only once")
}

func TestInvalidRelayCAFile(t *testing.T) {
	t.Parallel()
	f := setup(t)
	file := filepath.Join(t.TempDir(), "ca.crt")
	_, err := f.api.Relay("https://relay.example", file)
	require.Equal(t, errcode.InvalidArgument, fault.CodeOf(err))
	require.NoError(t, os.WriteFile(file, []byte("no certificate"), 0o600))
	_, err = f.api.Relay("https://relay.example", file)
	require.ErrorContains(t, err, "contains no certificate")
}

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

// echoing is a relay whose only target sends back what it is sent, for those who have a token that
// is not refused.
func echoing(t *testing.T, refused ...string) (url string, calls *atomic.Int32) {
	t.Helper()
	calls = &atomic.Int32{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		for _, token := range refused {
			if r.Header.Get("Authorization") == "Bearer "+token {
				fault.WriteHTTP(w, r, slog.New(slog.DiscardHandler), fault.New(errcode.Unauthenticated, "the access token is over"))
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

func TestAStreamIsOpenedWithAGoodToken(t *testing.T) {
	t.Parallel()
	b := setup(t)
	url, calls := echoing(t, "relay-1")
	relay, err := b.api.Relay(url+"/", "")
	require.NoError(t, err)
	t.Cleanup(relay.Close)
	stream, err := relay.Open(t.Context(), 7, "echo")
	require.NoError(t, err)
	require.EqualValues(t, 2, calls.Load(), "the first token was refused")
	_, err = io.WriteString(stream, "some words")
	require.NoError(t, err)
	require.NoError(t, stream.CloseWrite())
	answer, err := io.ReadAll(stream)
	require.NoError(t, err)
	require.Equal(t, "some words", string(answer))
	require.NoError(t, stream.Close())

	_, err = relay.Open(t.Context(), 7, "page")
	require.ErrorContains(t, err, "is it a relay's address for callers")
}

func TestATokenThatStaysRefusedIsAnError(t *testing.T) {
	t.Parallel()
	b := setup(t)
	url, calls := echoing(t, "relay-1", "relay-2")
	relay, err := b.api.Relay(url, "")
	require.NoError(t, err)
	t.Cleanup(relay.Close)
	_, err = relay.Open(t.Context(), 7, "echo")
	require.Equal(t, errcode.Unauthenticated, fault.CodeOf(err))
	require.EqualValues(t, 2, calls.Load(), "not for ever")
}

func TestAuthoritiesOfRelaysMustBeSome(t *testing.T) {
	t.Parallel()
	b := setup(t)
	file := filepath.Join(t.TempDir(), "ca.crt")
	_, err := b.api.Relay("https://relay.example", file)
	require.Equal(t, errcode.InvalidArgument, fault.CodeOf(err))
	require.NoError(t, os.WriteFile(file, []byte("no certificate"), 0o600))
	_, err = b.api.Relay("https://relay.example", file)
	require.ErrorContains(t, err, "contains no certificate")
}

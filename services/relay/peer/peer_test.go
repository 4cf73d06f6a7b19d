package peer_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/relay/auth"
	"lockstep.internal/services/relay/peer"
	"lockstep.internal/services/relay/registry"
	"lockstep.internal/services/relay/tunnel"
	"lockstep.internal/tools/testkit/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

var secret = []byte("a secret of more than thirty-two bytes")

func tokens(t *testing.T, secret []byte, relayID string) (*auth.Signer, *auth.Verifier) {
	t.Helper()
	cfg := auth.Config{Issuer: "lockstep-relay", Audience: relayID, Secrets: [][]byte{secret}, Lifetime: time.Minute}
	signer, err := auth.NewSigner(cfg)
	require.NoError(t, err)
	verifier, err := auth.NewVerifier(cfg)
	require.NoError(t, err)
	return signer, verifier
}

// relay is a fake relay. On every stream it writes its name and echoes.
type relay struct {
	registry.Relay

	sessions tunnel.SessionGroup
}

func newRelay(t *testing.T, id string) *relay {
	t.Helper()
	_, verifier := tokens(t, secret, id)
	r := &relay{}
	server := httptest.NewServer(&peer.Handler{
		Verifier: verifier, Sessions: &r.sessions, Logger: slog.New(slog.DiscardHandler),
		Serve: func(s *tunnel.Stream) {
			_, _ = io.WriteString(s, id+" ")
			_, _ = io.Copy(s, s)
			_ = s.Close()
		},
	})
	t.Cleanup(server.Close)
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		r.sessions.Drain(ctx)
	})
	r.Relay = registry.Relay{ID: id, URL: strings.Replace(server.URL, "http", "ws", 1)}
	return r
}

func newPool(t *testing.T, secret []byte) *peer.Pool {
	t.Helper()
	signer, _ := tokens(t, secret, "a")
	token := func(relayID string) (string, error) { return signer.SignFor("a", relayID) }
	p := peer.NewPool(peer.Config{Dialer: tunnel.Dialer{NoProxy: true}, Token: token, Tunnels: 2})
	t.Cleanup(p.Close)
	return p
}

// request opens a stream to a relay, sends hello and returns the response.
func request(t *testing.T, p *peer.Pool, r *relay) string {
	t.Helper()
	s, err := p.Session(t.Context(), r.Relay)
	require.NoError(t, err)
	st, err := s.Open([]byte("x"))
	require.NoError(t, err)
	_, err = io.WriteString(st, "hello")
	require.NoError(t, err)
	require.NoError(t, st.CloseWrite())
	response, err := io.ReadAll(st)
	require.NoError(t, err)
	return string(response)
}

func TestStreamsGoToTheirRelay(t *testing.T) {
	t.Parallel()
	p, b, c := newPool(t, secret), newRelay(t, "b"), newRelay(t, "c")
	seen := map[*tunnel.Session]bool{}
	for range 10 {
		require.Equal(t, "b hello", request(t, p, b))
		require.Equal(t, "c hello", request(t, p, c))
		s, err := p.Session(t.Context(), b.Relay)
		require.NoError(t, err)
		seen[s] = true
	}
	require.Len(t, seen, 2, "two tunnels are shared")
}

func TestNoNewStreamsToDrainingRelay(t *testing.T) {
	t.Parallel()
	p, b := newPool(t, secret), newRelay(t, "b")
	s, err := p.Session(t.Context(), b.Relay)
	require.NoError(t, err)
	st, err := s.Open([]byte("x"))
	require.NoError(t, err)
	_, err = io.ReadFull(st, make([]byte, len("b ")))
	require.NoError(t, err)
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		b.sessions.Drain(t.Context())
	}()
	<-s.PeerDraining()
	require.Eventually(t, func() bool {
		_, err := p.Session(t.Context(), b.Relay)
		var refused *tunnel.HandshakeError
		return errors.As(err, &refused) && refused.Status == http.StatusServiceUnavailable
	}, time.Minute, time.Millisecond, "no tunnel to a draining relay")
	_, err = io.WriteString(st, "payload")
	require.NoError(t, err)
	require.NoError(t, st.CloseWrite())
	echoed, err := io.ReadAll(st)
	require.NoError(t, err)
	require.Equal(t, "payload", string(echoed))
	<-drained
}

func TestWrongSecretIsRejected(t *testing.T) {
	t.Parallel()
	b := newRelay(t, "b")
	_, err := newPool(t, []byte("another secret of more than thirty-two bytes")).Session(t.Context(), b.Relay)
	var refused *tunnel.HandshakeError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, http.StatusUnauthorized, refused.Status)
}

func TestTokenForAnotherRelayIsRefused(t *testing.T) {
	t.Parallel()
	p, b := newPool(t, secret), newRelay(t, "b")
	b.ID = "c" // the dialling relay believes that c is at the address of b
	_, err := p.Session(t.Context(), b.Relay)
	var refused *tunnel.HandshakeError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, http.StatusUnauthorized, refused.Status)
	require.Contains(t, refused.Text, "meant for another service")
}

func TestClosedPoolReturnsErrClosed(t *testing.T) {
	t.Parallel()
	p, b := newPool(t, secret), newRelay(t, "b")
	s, err := p.Session(t.Context(), b.Relay)
	require.NoError(t, err)
	p.Close()
	<-s.Done()
	_, err = p.Session(t.Context(), b.Relay)
	require.ErrorIs(t, err, tunnel.ErrClosed)
}

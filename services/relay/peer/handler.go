package peer

import (
	"log/slog"
	"net/http"
	"strings"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/logkey"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/relay/auth"
	"lockstep.internal/services/relay/tunnel"
)

// Handler accepts tunnels of other relays. All fields are required, except for Tunnel.
type Handler struct {
	Verifier *auth.Verifier
	Sessions *tunnel.SessionGroup
	// Serve serves a stream of another relay; see [connections.Pool.ServePeer].
	Serve  func(*tunnel.Stream)
	Tunnel tunnel.Config
	Logger *slog.Logger
}

// ServeHTTP upgrades a request to a tunnel and serves it in the background.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := h.authenticate(r); err != nil {
		fault.WriteHTTP(w, r, h.Logger, err)
		return
	}
	conn, encrypted, err := tunnel.Upgrade(w, r, nil)
	if err != nil {
		h.Logger.WarnContext(r.Context(), "peer upgrade failed",
			slog.String(logkey.RemoteAddress, r.RemoteAddr), logkey.Error(err))
		return
	}
	go func() {
		_ = h.Sessions.Serve(tunnel.NewSession(conn, false, encrypted, h.Tunnel, h.Serve)) // its streams report the error
	}()
}

func (h *Handler) authenticate(r *http.Request) error {
	token, found := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !found {
		return fault.New(errcode.Unauthenticated,
			"this listener is for relays: send a relay token in the header Authorization")
	}
	if _, err := h.Verifier.Verify(token); err != nil {
		return err
	}
	if h.Sessions.Draining() {
		return fault.New(errcode.Unavailable, "this relay is draining")
	}
	return nil
}

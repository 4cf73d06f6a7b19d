package peer

import (
	"log/slog"
	"net/http"
	"strings"

	"lockstep.internal/libs/fault"
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

// ServeHTTP upgrades a request to a tunnel, and returns.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := h.authenticate(r); err != nil {
		fault.WriteHTTP(w, r, h.Logger, err)
		return
	}
	conn, encrypted, err := tunnel.Upgrade(w, r, nil)
	if err != nil {
		h.Logger.WarnContext(r.Context(), "upgrading a relay's request failed",
			slog.String("remote_address", r.RemoteAddr), slog.Any("error", err))
		return
	}
	go func() {
		_ = h.Sessions.Serve(tunnel.NewSession(conn, false, encrypted, h.Tunnel, h.Serve)) // its streams report the error
	}()
}

func (h *Handler) authenticate(r *http.Request) error {
	token, found := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !found {
		return fault.New(errcode.Unauthenticated, "this address is for relays: send the token of a relay")
	}
	if _, err := h.Verifier.Verify(token); err != nil {
		return err
	}
	if h.Sessions.Draining() {
		return fault.New(errcode.Unavailable, "this relay is being drained")
	}
	return nil
}

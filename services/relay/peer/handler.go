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

// Handler takes the tunnels of other relays. All fields are required but Tunnel.
type Handler struct {
	Verifier *auth.Verifier
	Sessions *tunnel.Sessions
	// Follow does what a stream was opened for; see [hub.Hub.Follow].
	Follow func(*tunnel.Stream)
	Tunnel tunnel.Config
	Logger *slog.Logger
}

// ServeHTTP answers as soon as the tunnel is there.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := h.admit(r); err != nil {
		fault.WriteHTTP(w, r, h.Logger, err)
		return
	}
	conn, secret, err := tunnel.Upgrade(w, r, nil)
	if err != nil {
		h.Logger.WarnContext(r.Context(), "a tunnel of another relay was not opened", slog.String("from", r.RemoteAddr), slog.Any("error", err))
		return
	}
	go func() {
		_ = h.Sessions.Serve(tunnel.NewSession(conn, false, secret, h.Tunnel, h.Follow)) // its streams say why
	}()
}

func (h *Handler) admit(r *http.Request) error {
	token, found := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !found {
		return fault.New(errcode.Unauthenticated, "this address is for relays: no token of one was sent")
	}
	if _, err := h.Verifier.Verify(token); err != nil {
		return err
	}
	if h.Sessions.Draining() {
		return fault.New(errcode.Unavailable, "this relay is being drained")
	}
	return nil
}

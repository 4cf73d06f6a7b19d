package signin

import (
	"context"
	"log/slog"
	"net/http"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/logkey"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/gateway/access"
)

const pathCLIHostKey = "/cli/reset-host-key"

// HostKeys are the stored host keys of workspaces.
type HostKeys interface {
	// Forget removes the key of a workspace by its id. The next key that the workspace shows is its key.
	Forget(ctx context.Context, workspace string) error
}

// resetHostKey lets the owner of a workspace, with an access token, replace the host key of its agent.
func (s *SignIn) resetHostKey(w http.ResponseWriter, r *http.Request) {
	current, err := s.tokens.Verify(bearer(r))
	var request struct {
		Workspace string `json:"workspace"`
	}
	if err == nil {
		err = s.decode(w, r, &request)
	}
	var entry access.Entry
	if err == nil {
		var unknown error
		entry, _, unknown = s.workspaces.Watch(current.UserID, request.Workspace, access.SSH)
		switch {
		case unknown != nil:
			err = fault.Wrap(unknown, errcode.NotFound, "workspace %.100q", request.Workspace)
		case entry.OwnerID != current.UserID:
			err = fault.New(errcode.PermissionDenied, "only the owner of a workspace may reset its host key")
		}
	}
	if err == nil {
		err = s.hostKeys.Forget(r.Context(), entry.ID)
	}
	if err != nil {
		fault.WriteHTTP(w, r, s.logger, err)
		return
	}
	s.logger.InfoContext(r.Context(), "reset the host key of a workspace",
		slog.String(logkey.WorkspaceID, entry.ID), slog.Int64(logkey.UserID, current.UserID))
	s.encode(w, r, struct{}{})
}

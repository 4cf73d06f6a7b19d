package workspace

import (
	"slices"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

// maxShares is the maximum number of shares of a workspace.
const maxShares = 50

// Share lets another person enter a workspace.
type Share struct {
	UserID int64 `json:"user_id"`
	// Port that the person may open; 0 for everything, terminals and SSH included.
	Port int32 `json:"port,omitempty"`
}

// ShareWith returns the workspace with one more share, and whether that is a change. It returns a fault for the owner,
// for an invalid port, for a terminated workspace, and if there are too many shares.
func (w Workspace) ShareWith(s Share) (Workspace, bool, error) {
	switch {
	case s.UserID == w.UserID:
		return w, false, fault.New(errcode.InvalidArgument, "workspace %q is yours: share it with somebody else", w.Name).
			With("field", "user_id")
	case s.Port < 0 || s.Port > 65535:
		return w, false, fault.New(errcode.InvalidArgument,
			"port %d is not between 1 and 65535, or 0 for everything", s.Port).With("field", "port")
	case w.DesiredState == DesiredTerminated:
		return w, false, fault.New(errcode.FailedPrecondition, "workspace %q is terminated", w.Name)
	case slices.Contains(w.Shares, s):
		return w, false, nil
	case len(w.Shares) >= maxShares:
		return w, false, fault.New(errcode.ResourceExhausted,
			"workspace %q has %d shares, the maximum: end one that is not needed (lockstep ws unshare)", w.Name, len(w.Shares))
	}
	w.Shares = append(slices.Clone(w.Shares), s)
	return w, true, nil
}

// Unshare returns the workspace without the shares of a person: the one of this port, or all of them for port 0. It
// also returns whether there was one.
func (w Workspace) Unshare(s Share) (Workspace, bool) {
	before := len(w.Shares)
	w.Shares = slices.DeleteFunc(slices.Clone(w.Shares), func(each Share) bool {
		return each.UserID == s.UserID && (s.Port == 0 || each.Port == s.Port)
	})
	if len(w.Shares) == 0 {
		w.Shares = nil
	}
	return w, len(w.Shares) != before
}

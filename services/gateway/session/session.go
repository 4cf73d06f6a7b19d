package session

import "time"

// Session is a person who has signed in. Each host has a cookie of its own with the same session.
type Session struct {
	// ID is random. Signing out revokes it.
	ID string `json:"id"`
	// UserID and Login of the person in Lockstep.
	UserID int64  `json:"user_id"`
	Login  string `json:"login"`
	// TokenID is the personal access token with which the person has signed in; zero for none. Revoking it ends the
	// session.
	TokenID int64 `json:"token_id,omitempty"`
	// ExpiresAt is when the person has to sign in again.
	ExpiresAt time.Time `json:"expires_at"`
}

// Valid reports whether the session has not expired.
func (s Session) Valid(now time.Time) bool { return s.ID != "" && now.Before(s.ExpiresAt) }

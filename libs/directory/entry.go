package directory

import (
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"lockstep.internal/libs/natsauth"
)

// User is a user entry. Only entries of agents contain names.
type User struct {
	ID      int64
	Admin   bool
	Blocked bool
	// UsernameHash is that of [HashUsername]; empty if an older service published the entry.
	UsernameHash string
	// RevokedTokens are the user's personal access tokens that were revoked lately. What was made of them is void.
	RevokedTokens []int64
}

// HashUsername is how the directory names people without their names.
func HashUsername(name string) string {
	hash := sha256.Sum256([]byte(name))
	return hex.EncodeToString(hash[:])
}

// Revoked reports whether a personal access token of the user was revoked lately.
func (u User) Revoked(tokenID int64) bool { return slices.Contains(u.RevokedTokens, tokenID) }

// Agent as the directory knows it.
type Agent struct {
	ID        int64
	ProjectID int64
	// Name of the agent; empty if an older service published the entry.
	Name    string
	Revoked bool
	// TokenHash is the hash of the agent's token; zero if unknown. No token has the zero hash.
	TokenHash natsauth.TokenHash
	// PreviousTokenHash is that of the token before a rotation, which ends at PreviousTokenValidUntil; zero without one.
	PreviousTokenHash       natsauth.TokenHash
	PreviousTokenValidUntil time.Time
}

// String names the agent in messages for people, with its id.
func (a Agent) String() string {
	if a.Name == "" {
		return fmt.Sprintf("agent %d", a.ID)
	}
	return fmt.Sprintf("agent %q (%d)", a.Name, a.ID)
}

// Accepts reports whether a token with this hash is valid.
func (a Agent) Accepts(hash natsauth.TokenHash, now time.Time) bool {
	isKnown := func(known natsauth.TokenHash) bool {
		return known != natsauth.TokenHash{} && subtle.ConstantTimeCompare(known[:], hash[:]) == 1
	}
	return isKnown(a.TokenHash) || isKnown(a.PreviousTokenHash) && now.Before(a.PreviousTokenValidUntil)
}

// Key is a public key that verifies access tokens.
type Key struct {
	ID     string
	Public ed25519.PublicKey
	// NotBefore and NotAfter bound the life of every token that it signed.
	NotBefore, NotAfter time.Time
}

// group is the position of a group: parent is 0 directly below the organization.
type group struct{ parent, organization int64 }

// project is the group of a project.
type project struct{ group int64 }

// Place is the position of a group or a project.
type Place struct {
	// Groups are those that contain it, the innermost first. A group does not contain itself.
	Groups []int64
	// Organization of all of them.
	Organization int64
}

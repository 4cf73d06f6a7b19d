package directory

import (
	"crypto/ed25519"
	"time"

	"lockstep.internal/libs/natsauth"
)

// User as the directory knows it. It has no name there.
type User struct {
	ID      int64
	Admin   bool
	Blocked bool
}

// Agent as the directory knows it.
type Agent struct {
	ID        int64
	ProjectID int64
	Revoked   bool
	// TokenHash is of the token that it authenticates with; zero when it is not known, which is the
	// hash of none.
	TokenHash natsauth.TokenHash
}

// Key is one that access tokens are signed with.
type Key struct {
	ID     string
	Public ed25519.PublicKey
	// NotBefore and NotAfter bound the life of every token that it signed.
	NotBefore, NotAfter time.Time
}

// group is where a group is: Parent is 0 directly below the organization.
type group struct{ parent, organization int64 }

// project is where a project is.
type project struct{ group int64 }

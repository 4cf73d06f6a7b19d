package runner

import (
	"crypto/sha256"
	"errors"
	"fmt"

	"lockstep.internal/libs/routable"
)

// TokenHash is the SHA-256 of a token. Tokens have 128 random bits, so they need no salt. A hash is found by an index,
// without comparing secrets.
type TokenHash [sha256.Size]byte

// ErrMalformedToken is wrapped by [HashToken]. Such a token was never issued.
var ErrMalformedToken = errors.New("malformed token of a runner")

// NewToken returns a token and its hash. Show the token once.
func NewToken(payload routable.Payload) (token string, hash TokenHash, err error) {
	if token, err = routable.New(routable.Runner, payload); err != nil {
		return "", TokenHash{}, fmt.Errorf("make the token of a runner: %w", err)
	}
	return token, sha256.Sum256([]byte(token)), nil
}

// HashToken checks the form of a token and returns its hash. It does not quote the token in errors.
func HashToken(token string) (TokenHash, error) {
	parsed, err := routable.Parse(token)
	if err != nil {
		return TokenHash{}, fmt.Errorf("%w: %w", ErrMalformedToken, err)
	}
	if parsed.Prefix != routable.Runner {
		return TokenHash{}, fmt.Errorf("%w: it does not begin with %s", ErrMalformedToken, routable.Runner)
	}
	return sha256.Sum256([]byte(token)), nil
}

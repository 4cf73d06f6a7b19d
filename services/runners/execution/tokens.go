package execution

import (
	"context"
	"crypto/sha256"
	"errors"
	"sync"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/jobtoken"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/signing"
)

// maxAuthentic is how many tokens are remembered at most: some megabytes.
const maxAuthentic = 10_000

// Tokens checks who made a token. It knows nothing of the job. It is safe for concurrent use.
type Tokens struct {
	verifier *jobtoken.Verifier
	// refresh reads the keys again. The signing key may be new.
	refresh func(ctx context.Context) error

	mu sync.Mutex
	// authentic are the claims of tokens by their hash, so that a signature is checked once. What a token still permits
	// is in the database.
	authentic map[[sha256.Size]byte]jobtoken.Claims
}

// NewTokens returns a check that reads the keys again with refresh, for a token with an unknown key.
func NewTokens(verifier *jobtoken.Verifier, refresh func(ctx context.Context) error) *Tokens {
	return &Tokens{verifier: verifier, refresh: refresh, authentic: map[[sha256.Size]byte]jobtoken.Claims{}}
}

// Authentic returns the claims of a token that this cell has signed, also when it has expired. Another token is the
// fault permission_denied. The caller does not change the claims.
func (t *Tokens) Authentic(ctx context.Context, token string) (jobtoken.Claims, error) {
	hash := signing.Hash(token)
	t.mu.Lock()
	claims, known := t.authentic[hash]
	t.mu.Unlock()
	if known {
		return claims, nil
	}
	claims, err := t.verifier.Authentic(token)
	if errors.Is(err, jobtoken.ErrUnknownKey) {
		if err := t.refresh(ctx); err != nil {
			return jobtoken.Claims{}, err
		}
		claims, err = t.verifier.Authentic(token)
	}
	if err != nil {
		return jobtoken.Claims{}, fault.Wrap(err, errcode.PermissionDenied, "the token of the job is not valid")
	}
	t.remember(hash, claims)
	return claims, nil
}

func (t *Tokens) remember(hash [sha256.Size]byte, claims jobtoken.Claims) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.authentic) >= maxAuthentic {
		clear(t.authentic) // each is checked once more
	}
	t.authentic[hash] = claims
}

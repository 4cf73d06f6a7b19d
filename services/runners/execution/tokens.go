package execution

import (
	"context"
	"errors"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/jobtoken"
	"lockstep.internal/schemas/gen/errcode"
)

// Tokens checks who made a token. It knows nothing of the job.
type Tokens struct {
	Verifier *jobtoken.Verifier
	// Refresh reads the keys again. The signing key may be new.
	Refresh func(ctx context.Context) error
}

// Authentic returns the claims of a token that this cell has signed, also when it has expired. Another token is the
// fault permission_denied.
func (t Tokens) Authentic(ctx context.Context, token string) (jobtoken.Claims, error) {
	claims, err := t.Verifier.Authentic(token)
	if errors.Is(err, jobtoken.ErrUnknownKey) {
		if err := t.Refresh(ctx); err != nil {
			return jobtoken.Claims{}, err
		}
		claims, err = t.Verifier.Authentic(token)
	}
	if err != nil {
		return jobtoken.Claims{}, fault.Wrap(err, errcode.PermissionDenied, "the token of the job is not valid")
	}
	return claims, nil
}

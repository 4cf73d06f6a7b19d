package agent

import (
	"time"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

const (
	// DefaultTokenOverlap is how long the token before a rotation stays valid.
	DefaultTokenOverlap = 24 * time.Hour
	// MaxTokenOverlap is the longest overlap.
	MaxTokenOverlap = 30 * 24 * time.Hour
)

// Rotate returns the agent with a new token. The token before it stays valid for overlap. It returns the fault
// failed_precondition if the agent is revoked, or has two tokens already and overlap is not 0: a running program may
// still use the older one.
func (a Agent) Rotate(tokenHash []byte, overlap time.Duration, now time.Time) (Agent, error) {
	switch {
	case overlap < 0 || overlap > MaxTokenOverlap:
		return a, fault.New(errcode.InvalidArgument, "valid_for: %s is not between 0s and %s", overlap, MaxTokenOverlap).
			With("field", "valid_for")
	case a.Revoked:
		return a, fault.New(errcode.FailedPrecondition, "agent %q is revoked: register another one", a.Name)
	case len(a.PreviousTokenHash) > 0 && overlap > 0:
		return a, fault.New(errcode.FailedPrecondition,
			"agent %q has two tokens until %s: try again then, or end both at once with --valid-for 0s",
			a.Name, a.PreviousTokenValidUntil.UTC().Format(time.RFC3339))
	}
	a.PreviousTokenHash, a.PreviousTokenValidUntil = a.TokenHash, now.Add(overlap)
	a.TokenHash = tokenHash
	return a, nil
}

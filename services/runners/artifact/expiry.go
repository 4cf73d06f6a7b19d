package artifact

import (
	"errors"
	"strings"
	"time"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/duration"
)

// never is the text of an artifact that does not expire.
const never = "never"

// Expiry are the rules for the life of artifacts.
type Expiry struct {
	// Default is for jobs that set no time. 0: they keep artifacts forever, or for Max.
	Default time.Duration
	// Max shortens longer times, also "never". 0: there is no limit.
	Max time.Duration
}

// DefaultExpiry returns a default of 30 days and no limit.
func DefaultExpiry() Expiry { return Expiry{Default: 30 * 24 * time.Hour} }

// ExpiresAt returns when an artifact that was uploaded now expires, in UTC. expires is false for one that never does.
// text is a duration such as "1 week", "never", or "" for the default. The error is the fault invalid_argument.
func ExpiresAt(now time.Time, text string, rules Expiry) (at time.Time, expires bool, err error) {
	life, err := parseLife(text, rules)
	if err != nil {
		return time.Time{}, false, err
	}
	if rules.Max > 0 && (life == 0 || life > rules.Max) {
		life = rules.Max
	}
	if life == 0 {
		return time.Time{}, false, nil
	}
	return now.UTC().Add(life), true, nil
}

// parseLife returns 0 for an artifact that does not expire.
func parseLife(text string, rules Expiry) (time.Duration, error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return rules.Default, nil
	}
	if strings.EqualFold(text, never) {
		return 0, nil
	}
	life, err := duration.Parse(text)
	switch {
	case errors.Is(err, duration.ErrTooLong) && rules.Max > 0:
		return rules.Max, nil
	case err != nil:
		return 0, fault.New(errcode.InvalidArgument, "expire_in: %v", err)
	case life == 0:
		return 0, fault.New(errcode.InvalidArgument, "expire_in: must be longer than 0: write for example 1 week, or never")
	}
	return life, nil
}

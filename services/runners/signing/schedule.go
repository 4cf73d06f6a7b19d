package signing

import (
	"time"

	"lockstep.internal/libs/signingkey"
)

const (
	// MaxTimeout is the longest time that a job may run.
	MaxTimeout = 30 * 24 * time.Hour
	// Grace is the time that a token is valid after the timeout of its job, for the last requests of the runner.
	Grace = 5 * time.Minute
	// MaxTokenLifetime is the longest validity of a token.
	MaxTokenLifetime = MaxTimeout + Grace

	interval = 3 * 24 * time.Hour
)

// Schedule is the rotation of the keys that sign job tokens.
var Schedule = signingkey.Schedule{
	Interval: interval,
	Lead:     10 * time.Minute,
	// A day is left for the creation of the next key.
	Lifetime: interval + 24*time.Hour + MaxTokenLifetime,
	Rest:     MaxTokenLifetime,
}

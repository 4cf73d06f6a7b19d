package sink

import (
	"errors"
	"fmt"
	"time"
)

// RetryAfter is an error of a destination that asked for a delay.
type RetryAfter struct { //nolint:errname // Named after the HTTP header.
	// Delay from now.
	Delay time.Duration
	Err   error
}

// Error implements error.
func (r *RetryAfter) Error() string {
	return fmt.Sprintf("%v (retry in %s)", r.Err, r.Delay.Round(time.Millisecond))
}

// Unwrap returns the cause.
func (r *RetryAfter) Unwrap() error { return r.Err }

func asRetryAfter(err error) (time.Duration, bool) {
	var r *RetryAfter
	if !errors.As(err, &r) {
		return 0, false
	}
	return r.Delay, true
}

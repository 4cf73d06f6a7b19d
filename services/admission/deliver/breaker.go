package deliver

import (
	"time"
)

const (
	// breakerFailures is the number of failures in a row that open a breaker.
	breakerFailures = 5
	breakerMin      = 10 * time.Second
	breakerMax      = 5 * time.Minute
)

// breaker stops requests to a controller that fails. It is not safe for concurrent use.
type breaker struct {
	failures int
	// until is when the next request is allowed. pause is the time that it was closed for last.
	until time.Time
	pause time.Duration
}

// allowed returns how many of n requests may be sent while others are underway: after a pause, a single one probes.
func (b *breaker) allowed(n, running int, now time.Time) int {
	switch {
	case b.failures < breakerFailures:
		return n
	case now.Before(b.until) || running > 0:
		return 0
	default:
		return min(n, 1)
	}
}

// open reports whether requests are stopped or probed.
func (b *breaker) open() bool { return b.failures >= breakerFailures }

// record records whether the controller responded.
func (b *breaker) record(responded bool, now time.Time) {
	if responded {
		*b = breaker{}
		return
	}
	if b.failures++; b.failures < breakerFailures || now.Before(b.until) {
		return
	}
	b.pause = min(max(2*b.pause, breakerMin), breakerMax)
	b.until = now.Add(b.pause)
}

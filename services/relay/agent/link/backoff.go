package link

import (
	"math"
	"time"
)

const (
	// backoffFactor is how much the delay grows with each failure.
	backoffFactor = 1.6
	// maxRetryAfter that a relay can ask for.
	maxRetryAfter = 5 * time.Minute
)

// Backoff of attempts to connect. Base is the largest first delay, Max the largest of all.
type Backoff struct{ Base, Max time.Duration }

// Delay before the next attempt: retryAfter of the relay, plus full jitter: random times min(Max,
// Base·1.6^failures). random is in [0, 1).
func (b Backoff) Delay(failures int, retryAfter time.Duration, random float64) time.Duration {
	most := min(float64(b.Max), float64(b.Base)*math.Pow(backoffFactor, float64(failures)))
	return max(0, min(retryAfter, maxRetryAfter)) + time.Duration(random*most)
}

// jitter adds or removes up to a tenth, so that connections made together are not replaced together.
func jitter(d time.Duration, random float64) time.Duration {
	return time.Duration(float64(d) * (0.9 + 0.2*random))
}

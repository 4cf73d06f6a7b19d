package link

import (
	"math"
	"time"
)

const (
	// growth of the delay with each failure.
	growth = 1.6
	// maxRetryAfter that a relay can ask for.
	maxRetryAfter = 5 * time.Minute
)

// Backoff of attempts to connect.
type Backoff struct{ Min, Max time.Duration }

// Delay before the next attempt: retryAfter of the relay, plus a random share of a delay that grows with the failures
// from Min by 1.6 up to Max. random is from 0 to below 1.
func (b Backoff) Delay(failures int, retryAfter time.Duration, random float64) time.Duration {
	most := min(float64(b.Max), float64(b.Min)*math.Pow(growth, float64(failures)))
	return max(0, min(retryAfter, maxRetryAfter)) + time.Duration(random*most)
}

// spread adds or removes up to a tenth, so that connections made together are not replaced together.
func spread(d time.Duration, random float64) time.Duration {
	return time.Duration(float64(d) * (0.9 + 0.2*random))
}

package link

import (
	"math"
	"time"
)

const (
	// growth of the pause with each attempt in vain.
	growth = 1.6
	// maxAfter is the longest that a relay can ask for.
	maxAfter = 5 * time.Minute
)

// Pauses between attempts to connect.
type Pauses struct{ Min, Max time.Duration }

// Pause before the next attempt, when there were this many in vain: a random share of a time that is Min at first and grows by 1.6 up to Max. after is what the relay asked for: the
// random share comes after it. random is from 0 to below 1.
func (p Pauses) Pause(inVain int, after time.Duration, random float64) time.Duration {
	most := min(float64(p.Max), float64(p.Min)*math.Pow(growth, float64(inVain)))
	return max(0, min(after, maxAfter)) + time.Duration(random*most)
}

// spread is a time that is up to a tenth shorter or longer, so that what began together does not end together.
func spread(d time.Duration, random float64) time.Duration {
	return time.Duration(float64(d) * (0.9 + 0.2*random))
}

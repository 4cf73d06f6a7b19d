package queue

import "time"

// Backoff bounds the pauses between attempts.
type Backoff struct{ Min, Max time.Duration }

// Delay is the pause after a number of failures in a row, from 1: Min doubled with each up to Max, less up to half of it by random, which
// is from 0 to 1. It is pure.
func (b Backoff) Delay(failures int, random float64) time.Duration {
	delay := b.Min
	for i := 1; i < failures && delay < b.Max; i++ {
		delay *= 2
	}
	delay = min(delay, b.Max)
	return delay - time.Duration(random*float64(delay)/2)
}

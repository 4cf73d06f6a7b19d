package main

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"
)

// median returns the median of values, 0 for none.
func median(values []float64) float64 { return percentile(values, 50) }

// percentile returns the smallest value that at least p percent of the values do not exceed, 0 for
// none.
func percentile(values []float64, p float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	rank := int(math.Ceil(p / 100 * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// leastTurns is the least number of turns of a comparison.
const leastTurns = 3

// takeTurns measures ours and the baseline in turns, and returns the medians.
func takeTurns(ctx context.Context, duration time.Duration, ours, baseline func(round int) float64) Figure {
	var our, base []float64
	rotate(ctx, duration,
		func(round int) { our = append(our, ours(round)) },
		func(round int) { base = append(base, baseline(round)) })
	return beside(median(our), median(base))
}

// rotate calls the functions in turns until the duration is over, so that all see the same machine. Every other round
// has the reverse order, so that none always runs after the same one.
func rotate(ctx context.Context, duration time.Duration, takes ...func(round int)) {
	began := time.Now()
	for round := 0; round < leastTurns || time.Since(began) < duration; round++ {
		order := slices.Clone(takes)
		if round%2 == 1 {
			slices.Reverse(order)
		}
		for _, take := range order {
			if ctx.Err() != nil {
				check(fmt.Errorf("take turns: %w", context.Cause(ctx)))
			}
			take(round)
		}
	}
}

// milliseconds returns a duration with its fraction.
func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// perSecond returns the rate of n things since a time.
func perSecond(n int, since time.Time) float64 { return float64(n) / time.Since(since).Seconds() }

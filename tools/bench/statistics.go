package main

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"
)

// median of values; 0 without any.
func median(values []float64) float64 { return percentile(values, 50) }

// percentile by the nearest rank: the smallest value that at least p of a hundred are not above; 0 without any.
func percentile(values []float64, p float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	rank := int(math.Ceil(p / 100 * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// leastTurns is how many turns a comparison has, however long they take.
const leastTurns = 3

// turn measures one thing once.
type turn func(ctx context.Context, round int) (float64, error)

// takeTurns measures ours and bare one after the other, again and again for a while, so that both see the same machine.
func takeTurns(ctx context.Context, duration time.Duration, ours, bare turn) (our, their []float64, err error) {
	into := func(values *[]float64, t turn) func(context.Context, int) error {
		return func(ctx context.Context, round int) error {
			value, err := t(ctx, round)
			*values = append(*values, value)
			return err
		}
	}
	if err := rotate(ctx, duration, into(&our, ours), into(&their, bare)); err != nil {
		return nil, nil, err
	}
	return our, their, nil
}

// rotate does one after the other, again and again for a while. Who begins changes: what the one leaves to be done by the machine burdens the others as often.
func rotate(ctx context.Context, duration time.Duration, takes ...func(ctx context.Context, round int) error) error {
	began := time.Now()
	for round := 0; round < leastTurns || time.Since(began) < duration; round++ {
		order := slices.Clone(takes)
		if round%2 == 1 {
			slices.Reverse(order)
		}
		for _, take := range order {
			if ctx.Err() != nil {
				return fmt.Errorf("take turns: %w", context.Cause(ctx))
			}
			if err := take(ctx, round); err != nil {
				return err
			}
		}
	}
	return nil
}

// milliseconds of a duration, with its fraction.
func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// Package delay is the pause between attempts: exponential with jitter, reset by success.
package delay

import (
	"context"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// Range bounds the pauses.
type Range struct{ Min, Max time.Duration }

// Or returns the range, or fallback where it is empty.
func (r Range) Or(fallback Range) Range {
	if r == (Range{}) {
		return fallback
	}
	return r
}

// Delay yields the pauses of one series of attempts. It belongs to one goroutine.
type Delay struct{ policy *backoff.ExponentialBackOff }

// New starts a series. Each pause is about twice the one before, spread by half its length so that replicas do not attempt in step.
func New(r Range) *Delay {
	policy := backoff.NewExponentialBackOff()
	policy.InitialInterval = r.Min
	policy.MaxInterval = r.Max
	policy.Multiplier = 2
	policy.RandomizationFactor = 0.5
	policy.Reset()
	return &Delay{policy: policy}
}

// Next returns the next pause of the series.
func (d *Delay) Next() time.Duration { return min(d.policy.NextBackOff(), d.policy.MaxInterval) }

// Reset starts the series again, after a success.
func (d *Delay) Reset() { d.policy.Reset() }

// Wait pauses; it returns early, with the context's error, when ctx is done.
func (d *Delay) Wait(ctx context.Context) error { return Sleep(ctx, d.Next()) }

// Sleep pauses for the duration; it returns early, with the context's error, when ctx is done.
func Sleep(ctx context.Context, duration time.Duration) error {
	return SleepOr[struct{}](ctx, duration, nil)
}

// SleepOr pauses as Sleep does, and also ends when something comes from wake.
func SleepOr[T any](ctx context.Context, duration time.Duration, wake <-chan T) error {
	timer := time.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-wake:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Package retry retries failed operations with exponential back-off and jitter. It is the only retry policy in
// Lockstep, except that relay agents reconnect with delays of their own.
//
// The first pause of a series is at most [Policy.Min]. Each further pause may be twice as long, up to [Policy.Max].
// Each pause is shortened by up to half at random, so that replicas do not retry at the same moment.
package retry

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"
)

// Policy bounds the pauses between attempts, before they are shortened at random.
type Policy struct{ Min, Max time.Duration }

// OrDefault returns the policy, or fallback when the policy is empty.
func (p Policy) OrDefault(fallback Policy) Policy {
	if p == (Policy{}) {
		return fallback
	}
	return p
}

// Delay returns the pause after a number of consecutive failures, from 1, for callers that count them themselves.
func (p Policy) Delay(failures int) time.Duration {
	delay := p.Min
	for i := 1; i < failures && delay < p.Max; i++ {
		delay *= 2
	}
	delay = min(delay, p.Max)
	return delay - rand.N(delay/2+1) //nolint:gosec // jitter is not a secret
}

// Backoff yields the pauses of one series of attempts. It must not be used by several goroutines at once.
type Backoff struct {
	policy   Policy
	failures int
}

// Backoff starts a series of attempts.
func (p Policy) Backoff() *Backoff { return &Backoff{policy: p} }

// Next returns the next pause of the series.
func (b *Backoff) Next() time.Duration {
	b.failures++
	return b.policy.Delay(b.failures)
}

// Reset starts the series again. Call it after a success.
func (b *Backoff) Reset() { b.failures = 0 }

// Wait sleeps for the next pause. It returns the context's error when ctx ends first.
func (b *Backoff) Wait(ctx context.Context) error { return Sleep(ctx, b.Next()) }

// Do calls attempt until it returns nil, a [Permanent] error, or ctx ends. Before each pause it
// calls failed, which may be nil. No pause follows an attempt that fails after ctx has ended. Do
// returns the last error of attempt; a Permanent error is returned without its mark.
func (p Policy) Do(ctx context.Context, attempt func() error, failed func(err error, pause time.Duration)) error {
	for b := p.Backoff(); ; {
		err := attempt()
		if err == nil {
			return nil
		}
		if permanent, ok := errors.AsType[*permanentError](err); ok {
			return permanent.error
		}
		if ctx.Err() != nil {
			return errors.Join(err, context.Cause(ctx))
		}
		pause := b.Next()
		if failed != nil {
			failed(err, pause)
		}
		if Sleep(ctx, pause) != nil {
			return errors.Join(err, context.Cause(ctx))
		}
	}
}

// warningInterval is the shortest time between two warnings about an outage.
const warningInterval = time.Minute

// FailureLog selects the level of log entries about failures that are retried, so that an outage does not fill the log.
// The zero value is ready. It must not be used by several goroutines at once.
type FailureLog struct{ next time.Time }

// Level returns the level for a failure: a warning for the first of an outage, then for one per minute, else debug.
func (l *FailureLog) Level() slog.Level {
	now := time.Now()
	if now.Before(l.next) {
		return slog.LevelDebug
	}
	l.next = now.Add(warningInterval)
	return slog.LevelWarn
}

// Reset ends the outage. Call it after a success.
func (l *FailureLog) Reset() { l.next = time.Time{} }

// Permanent marks an error that a retry cannot fix.
func Permanent(err error) error { return &permanentError{err} }

// IsPermanent reports whether err carries the mark of [Permanent].
func IsPermanent(err error) bool {
	_, ok := errors.AsType[*permanentError](err)
	return ok
}

type permanentError struct{ error }

func (e *permanentError) Unwrap() error { return e.error }

// Sleep waits for the duration. It returns the context's error when ctx ends first.
func Sleep(ctx context.Context, duration time.Duration) error {
	return SleepOrWake[struct{}](ctx, duration, nil)
}

// SleepOrWake is [Sleep] that also ends, with nil, when a value arrives on wake.
func SleepOrWake[T any](ctx context.Context, duration time.Duration, wake <-chan T) error {
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

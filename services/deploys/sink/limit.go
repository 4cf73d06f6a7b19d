package sink

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Limit allows at most Count writes in any Window. Burst of them, at most half of Count, may happen at once. The others
// are spread evenly over the window.
type Limit struct {
	Count  int
	Window time.Duration
	Burst  int
}

func (l Limit) limiter() *rate.Limiter {
	if l.Count <= 1 {
		return rate.NewLimiter(rate.Every(l.Window), 1)
	}
	burst := min(max(l.Burst, 1), max(l.Count/2, 1))
	// A token bucket allows its burst plus the refill during the window: together Count.
	return rate.NewLimiter(rate.Limit(float64(l.Count-burst)/l.Window.Seconds()), burst)
}

// Limiter enforces the rate limits of one destination, and pauses when the destination asks for it. It is safe for
// concurrent use.
type Limiter struct {
	limiters []*rate.Limiter
	outer    *Limiter

	mu    sync.Mutex
	until time.Time
}

// NewLimiter returns a limiter that enforces all limits.
func NewLimiter(limits ...Limit) *Limiter {
	l := &Limiter{}
	for _, limit := range limits {
		l.limiters = append(l.limiters, limit.limiter())
	}
	return l
}

// Within returns a limiter that enforces these limits in addition to those of l.
func (l *Limiter) Within(limits ...Limit) *Limiter {
	inner := NewLimiter(limits...)
	inner.outer = l
	return inner
}

// Pause blocks all requests for a time that the destination asked for.
func (l *Limiter) Pause(d time.Duration) {
	if l.outer != nil {
		l.outer.Pause(d)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if until := time.Now().Add(d); until.After(l.until) {
		l.until = until
	}
}

// Paused returns how long requests are still blocked.
func (l *Limiter) Paused() time.Duration {
	if l.outer != nil {
		return l.outer.Paused()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(time.Until(l.until), 0)
}

// Wait waits until a write is allowed, and counts it.
func (l *Limiter) Wait(ctx context.Context) error {
	for _, limiter := range l.limiters {
		if err := sleep(ctx, limiter.Reserve().Delay()); err != nil {
			return err
		}
	}
	if l.outer != nil {
		return l.outer.Wait(ctx)
	}
	return l.AwaitPause(ctx)
}

// Await waits until a write is allowed, without counting it.
func (l *Limiter) Await(ctx context.Context) error {
	for _, limiter := range l.limiters {
		for {
			now := time.Now()
			r := limiter.ReserveN(now, 1)
			delay := r.DelayFrom(now)
			r.CancelAt(now)
			if delay == 0 {
				break
			}
			if err := sleep(ctx, delay); err != nil {
				return err
			}
		}
	}
	if l.outer != nil {
		return l.outer.Await(ctx)
	}
	return l.AwaitPause(ctx)
}

// AwaitPause waits until a pause has ended.
func (l *Limiter) AwaitPause(ctx context.Context) error {
	for {
		paused := l.Paused()
		if paused == 0 {
			return nil
		}
		if err := sleep(ctx, paused); err != nil {
			return err
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the limit of the destination: %w", ctx.Err())
	}
}

// Limiters shares one limiter among sinks that write to the same destination with the same
// credential.
type Limiters struct {
	mu    sync.Mutex
	known map[string]*Limiter
}

// For returns the limiter of a destination. The first call sets its limits.
func (l *Limiters) For(destination string, limits ...Limit) *Limiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.known == nil {
		l.known = map[string]*Limiter{}
	}
	if l.known[destination] == nil {
		l.known[destination] = NewLimiter(limits...)
	}
	return l.known[destination]
}

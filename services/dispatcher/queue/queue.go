package queue

import (
	"context"
	"sync"
	"time"
)

// Clock tells the time. Defaults are those of package time.
type Clock interface {
	Now() time.Time
	// After sends on the channel once the duration is over. The function gives it up.
	After(d time.Duration) (<-chan time.Time, func())
}

// SystemClock is the machine's clock.
func SystemClock() Clock { return systemClock{} }

type systemClock struct{}

func (systemClock) Now() time.Time { return time.Now() }

func (systemClock) After(d time.Duration) (<-chan time.Time, func()) {
	timer := time.NewTimer(d)
	return timer.C, func() { timer.Stop() }
}

// Queue is a queue of tasks by key. Make it with [New].
type Queue[T any] struct {
	clock Clock

	mu       sync.Mutex
	schedule *schedule[T]
	changed  chan struct{} // closed and replaced when a waiting Take should look again
}

// New makes an empty queue. At most maxRetries tasks that are tried again run at once.
func New[T any](clock Clock, maxRetries int) *Queue[T] {
	return &Queue[T]{clock: clock, schedule: newSchedule[T](max(maxRetries, 1)), changed: make(chan struct{})}
}

// Put adds work; false when this version, or a higher one, has been put before.
func (q *Queue[T]) Put(key string, version int64, item T) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	taken := q.schedule.put(q.clock.Now(), key, version, item)
	if taken {
		q.signal()
	}
	return taken
}

// Take waits for work that is due. The error is that of the context. Every task must be ended by one of Done, Retry and Wait.
func (q *Queue[T]) Take(ctx context.Context) (Task[T], error) {
	for {
		if err := ctx.Err(); err != nil {
			return Task[T]{}, err
		}
		q.mu.Lock()
		now := q.clock.Now()
		task, ok, due := q.schedule.next(now)
		changed := q.changed
		q.mu.Unlock()
		if ok {
			return task, nil
		}
		var timer <-chan time.Time
		stop := func() {}
		if !due.IsZero() {
			timer, stop = q.clock.After(due.Sub(now))
		}
		select {
		case <-timer:
		case <-changed:
		case <-ctx.Done():
		}
		stop()
	}
}

// Done ends a task whose version needs nothing more.
func (q *Queue[T]) Done(task Task[T]) {
	q.change(func(s *schedule[T]) { s.done(task) })
}

// Retry ends a task that failed; it is due again after the delay.
func (q *Queue[T]) Retry(task Task[T], delay time.Duration) {
	q.change(func(s *schedule[T]) { s.retry(q.clock.Now().Add(delay), task, 0) })
}

// Wait ends a task that has to wait for something outside; it is due again after the delay, or when woken.
func (q *Queue[T]) Wait(task Task[T], delay time.Duration) {
	q.change(func(s *schedule[T]) { s.retry(q.clock.Now().Add(delay), task, task.Waits+1) })
}

// Wake makes what is tried again later due now.
func (q *Queue[T]) Wake(key string) {
	q.change(func(s *schedule[T]) { s.wake(key) })
}

// Depth is how many keys are due or new, how many are tried again later, and how many are worked on.
type Depth struct{ Fresh, Later, Running int }

// Depth counts.
func (q *Queue[T]) Depth() Depth {
	q.mu.Lock()
	defer q.mu.Unlock()
	return Depth{Fresh: len(q.schedule.fresh), Later: len(q.schedule.later), Running: q.schedule.running}
}

func (q *Queue[T]) change(apply func(*schedule[T])) {
	q.mu.Lock()
	defer q.mu.Unlock()
	apply(q.schedule)
	q.signal()
}

func (q *Queue[T]) signal() {
	close(q.changed)
	q.changed = make(chan struct{})
}

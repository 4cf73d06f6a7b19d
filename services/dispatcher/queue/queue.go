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

// New makes an empty queue.
func New[T any](clock Clock, limits Limits) *Queue[T] {
	return &Queue[T]{clock: clock, schedule: newSchedule[T](limits), changed: make(chan struct{})}
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

// Void drops the work of versions below this one, for which there is nothing to do. It is not remembered: a version that is put later counts if it is higher
// than those that were put before, so that one which nobody can trust keeps nobody out.
func (q *Queue[T]) Void(key string, version int64) {
	q.change(func(s *schedule[T]) { s.void(key, version) })
}

// Repair has everything that was settled gone through once more, behind all other work. What is under way is gone through again when it is settled.
func (q *Queue[T]) Repair() {
	q.change(func(s *schedule[T]) { s.repair(q.clock.Now()) })
}

// Take waits for work that is due. The error is that of the context. Every task must be ended by one of Done, Settle, Retry and Wait.
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

// Settle ends a task whose version is brought about, and keeps the item for its repairs.
func (q *Queue[T]) Settle(task Task[T], item T) {
	q.change(func(s *schedule[T]) { s.settle(q.clock.Now(), task, item) })
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

// Depth is how many keys are due or new, how many are tried again later, how many wait to be repaired, and how many are worked on.
type Depth struct{ Fresh, Later, Repair, Running int }

// Depth counts.
func (q *Queue[T]) Depth() Depth {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.schedule.depth()
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

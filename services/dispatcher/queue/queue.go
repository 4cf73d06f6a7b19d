package queue

import (
	"context"
	"sync"
	"time"
)

// Queue is a queue of tasks by key. It is safe for concurrent use. Create it with [New].
type Queue[T any] struct {
	mu       sync.Mutex
	schedule *schedule[T]
	changed  chan struct{} // closed and replaced after each change, for waiting calls of Take
}

// New returns an empty queue.
func New[T any](limits Limits) *Queue[T] {
	return &Queue[T]{schedule: newSchedule[T](limits), changed: make(chan struct{})}
}

// Put adds a version of a key. It returns false when this or a higher version was put before.
func (q *Queue[T]) Put(key string, version int64, item T) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	accepted := q.schedule.put(time.Now(), key, version, item)
	if accepted {
		q.signal()
	}
	return accepted
}

// DropBelow drops queued versions below version. It does not store version, because version may come from an invalid
// event and must not block a lower one that is put later.
func (q *Queue[T]) DropBelow(key string, version int64) {
	q.change(func(s *schedule[T]) { s.dropBelow(key, version) })
}

// Repair repeats every completed task once, after new work and due retries. A running task is repeated after it has
// completed.
func (q *Queue[T]) Repair() {
	q.change(func(s *schedule[T]) { s.repair(time.Now()) })
}

// Take waits for the next due task. It returns the error of ctx when that ends first. The caller
// ends every task by one of Discard, Complete, Retry and RequeueAfter.
func (q *Queue[T]) Take(ctx context.Context) (Task[T], error) {
	for {
		if err := ctx.Err(); err != nil {
			return Task[T]{}, err
		}
		q.mu.Lock()
		now := time.Now()
		task, ok, due := q.schedule.next(now)
		changed := q.changed
		q.mu.Unlock()
		if ok {
			return task, nil
		}
		var timeout <-chan time.Time
		var timer *time.Timer
		if !due.IsZero() {
			timer = time.NewTimer(due.Sub(now))
			timeout = timer.C
		}
		select {
		case <-timeout:
		case <-changed:
		case <-ctx.Done():
		}
		if timer != nil {
			timer.Stop()
		}
	}
}

// Discard ends a task that needs no further work, not even repairs.
func (q *Queue[T]) Discard(task Task[T]) {
	q.change(func(s *schedule[T]) { s.discard(task) })
}

// Complete ends a successful task and keeps the item for repairs.
func (q *Queue[T]) Complete(task Task[T], item T) {
	q.change(func(s *schedule[T]) { s.complete(time.Now(), task, item) })
}

// Retry ends a failed task. It is due again after the delay.
func (q *Queue[T]) Retry(task Task[T], delay time.Duration) {
	q.change(func(s *schedule[T]) { s.retry(time.Now().Add(delay), task, 0) })
}

// RequeueAfter ends a task that waits for an external change. It is due again after the delay, or
// after Wake.
func (q *Queue[T]) RequeueAfter(task Task[T], delay time.Duration) {
	q.change(func(s *schedule[T]) { s.retry(time.Now().Add(delay), task, task.Requeues+1) })
}

// Wake makes a requeued or failed task of the key due now.
func (q *Queue[T]) Wake(key string) {
	q.change(func(s *schedule[T]) { s.wake(key) })
}

// Depth counts keys by state. Pending keys wait for a worker, Delayed keys for the time of their next attempt, and
// Repair keys for a repair. Running keys have a running task.
type Depth struct{ Pending, Delayed, Repair, Running int }

// Depth returns the current numbers.
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

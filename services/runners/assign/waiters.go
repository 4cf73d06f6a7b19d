package assign

import (
	"container/list"

	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/queue"
)

// waiter is a request that waits for a job.
type waiter struct {
	matcher queue.Matcher
	// handed gets at most one job.
	handed  chan job.Job
	element *list.Element
}

// waiters are the requests that wait, the oldest first.
type waiters struct{ list list.List }

func (w *waiters) add(matcher queue.Matcher) *waiter {
	added := &waiter{matcher: matcher, handed: make(chan job.Job, 1)}
	added.element = w.list.PushBack(added)
	return added
}

// remove removes a waiter, also one that is not there any more.
func (w *waiters) remove(gone *waiter) { w.list.Remove(gone.element) }

// first returns the waiter that has waited longest among those whose runner takes the job; nil if there is none.
func (w *waiters) first(j job.Job) *waiter {
	for e := w.list.Front(); e != nil; e = e.Next() {
		candidate := e.Value.(*waiter) //nolint:errcheck,forcetypeassert // only add puts values
		if queue.Offers(j, candidate.matcher) {
			return candidate
		}
	}
	return nil
}

func (w *waiters) len() int { return w.list.Len() }

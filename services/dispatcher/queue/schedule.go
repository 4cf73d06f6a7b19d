package queue

import (
	"container/heap"
	"time"
)

// Task is one attempt at one version of a key.
type Task[T any] struct {
	Key     string
	Version int64
	Item    T
	// Attempt at this version, from 1. Waits do not count.
	Attempt int
	// Waits in a row before this one.
	Waits int
	// Since is when this version was put.
	Since time.Time

	retry bool // occupies one of the places for retries
}

// entry is what is known of one key.
type entry[T any] struct {
	task    Task[T] // of the newest version
	running bool
	waiting bool // in fresh or in later
	woken   bool // while running: due at once afterwards
	due     time.Time
	index   int // in later, -1 when not there
}

// schedule is the pure part: it knows no clock and never blocks. It belongs to one goroutine at a time.
type schedule[T any] struct {
	maxRetries int
	retries    int // running
	running    int
	entries    map[string]*entry[T]
	fresh      []*entry[T] // first in, first out
	later      dueHeap[T]
}

func newSchedule[T any](maxRetries int) *schedule[T] {
	return &schedule[T]{maxRetries: maxRetries, entries: map[string]*entry[T]{}}
}

func (s *schedule[T]) put(now time.Time, key string, version int64, item T) bool {
	e, known := s.entries[key]
	if !known {
		e = &entry[T]{index: -1}
		s.entries[key] = e
	} else if version <= e.task.Version {
		return false
	}
	e.task = Task[T]{Key: key, Version: version, Item: item, Since: now}
	if !e.running {
		s.makeFresh(e)
	}
	return true
}

// makeFresh lets the entry wait among what is new, unless it does.
func (s *schedule[T]) makeFresh(e *entry[T]) {
	if e.index >= 0 {
		heap.Remove(&s.later, e.index)
		e.waiting = false
	}
	if !e.waiting {
		e.waiting = true
		s.fresh = append(s.fresh, e)
	}
}

// next takes what is due and says whether there was any. Otherwise it says when something will be; zero when only a call can change that.
func (s *schedule[T]) next(now time.Time) (Task[T], bool, time.Time) {
	var e *entry[T]
	switch {
	case len(s.fresh) > 0:
		e, s.fresh = s.fresh[0], s.fresh[1:]
		e.task.retry = false
	case len(s.later) == 0 || s.retries >= s.maxRetries:
		return Task[T]{}, false, time.Time{}
	case s.later[0].due.After(now):
		return Task[T]{}, false, s.later[0].due
	default:
		e, _ = heap.Pop(&s.later).(*entry[T])
		e.task.retry = true
		s.retries++
	}
	e.waiting, e.running, e.woken = false, true, false
	e.task.Attempt++
	s.running++
	return e.task, true, time.Time{}
}

// end is called once for each task. It reports the entry when its version is still the newest; a newer one has been made due.
func (s *schedule[T]) end(task Task[T]) (*entry[T], bool) {
	e := s.entries[task.Key]
	e.running = false
	s.running--
	if task.retry {
		s.retries--
	}
	if e.task.Version != task.Version {
		s.makeFresh(e)
		return nil, false
	}
	return e, true
}

func (s *schedule[T]) done(task Task[T]) {
	if e, newest := s.end(task); newest {
		var none T
		e.task.Item = none // the version is all that is remembered
	}
}

func (s *schedule[T]) retry(due time.Time, task Task[T], waits int) {
	e, newest := s.end(task)
	if !newest {
		return
	}
	e.task.Waits = waits
	if waits > 0 {
		e.task.Attempt--
	}
	if e.woken {
		s.makeFresh(e)
		return
	}
	e.due, e.waiting = due, true
	heap.Push(&s.later, e)
}

func (s *schedule[T]) wake(key string) {
	e, known := s.entries[key]
	switch {
	case !known:
	case e.running:
		e.woken = true
	case e.index >= 0:
		s.makeFresh(e)
	}
}

// dueHeap is a heap of entries by when they are due.
type dueHeap[T any] []*entry[T]

func (h dueHeap[T]) Len() int           { return len(h) }
func (h dueHeap[T]) Less(i, j int) bool { return h[i].due.Before(h[j].due) }
func (h dueHeap[T]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *dueHeap[T]) Push(x any) {
	e, _ := x.(*entry[T])
	e.index = len(*h)
	*h = append(*h, e)
}

func (h *dueHeap[T]) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	e.index = -1
	return e
}

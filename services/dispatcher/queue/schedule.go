package queue

import (
	"container/heap"
	"maps"
	"slices"
	"time"
)

// Task is the work for one version of a key. Take returns it once per attempt.
type Task[T any] struct {
	Key     string
	Version int64
	Item    T
	// Attempt is the number of this attempt, from 1. A repair starts again at 1. Attempts that
	// ended with RequeueAfter do not count.
	Attempt int
	// Requeues is the number of consecutive calls of RequeueAfter before this attempt.
	Requeues int
	// Since is the time at which this version was put or its repair requested.
	Since time.Time
	// Repair reports that this version was completed before.
	Repair bool

	class class
}

// class is the kind of a task, for the limits.
type class int

const (
	classNew class = iota
	classRetry
	classRepair
)

// Limits bound the concurrent retries and repairs. New work has no limit here.
type Limits struct {
	// Retries is the maximum number of concurrent retries, at least 1.
	Retries int
	// Repairs is the maximum number of concurrent repairs, at least 1; RepairPause the pause
	// between two starts.
	Repairs     int
	RepairPause time.Duration
}

// entry is the state of one key.
type entry[T any] struct {
	task      Task[T] // of the newest version
	running   bool
	waiting   bool // in pending or in delayed
	completed bool // its item is kept for repairs
	repair    bool // in repairs
	woken     bool // Wake was called while running
	again     bool // Repair was called while running
	drop      bool // DropBelow was called while running
	due       time.Time
	index     int // in delayed, -1 when absent
}

// schedule decides which task is next. It has no clock and never blocks. It is not safe for
// concurrent use.
type schedule[T any] struct {
	limits         Limits
	running        int
	runningByClass [classRepair + 1]int // running by class
	entries        map[string]*entry[T]
	pending        []*entry[T] // first in, first out; entries that no longer wait are skipped
	delayed        dueHeap[T]
	repairs        []*entry[T] // first in, first out; entries without a pending repair are skipped
	nextRepair     time.Time
}

func newSchedule[T any](limits Limits) *schedule[T] {
	limits.Retries, limits.Repairs = max(limits.Retries, 1), max(limits.Repairs, 1)
	return &schedule[T]{limits: limits, entries: map[string]*entry[T]{}}
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
	e.completed, e.repair, e.drop = false, false, false
	if !e.running {
		s.makePending(e)
	}
	return true
}

// dropBelow drops the work of the key's versions below version. It does not store version.
func (s *schedule[T]) dropBelow(key string, version int64) {
	e, known := s.entries[key]
	if !known || version <= e.task.Version {
		return
	}
	if e.running {
		e.drop = true
		return
	}
	if e.index >= 0 {
		heap.Remove(&s.delayed, e.index)
	}
	e.waiting = false
	s.clear(e)
}

// clear drops the item and keeps the version.
func (s *schedule[T]) clear(e *entry[T]) {
	var none T
	e.task.Item, e.completed, e.repair, e.drop = none, false, false, false
}

// makePending queues the entry as new work, unless it is queued already.
func (s *schedule[T]) makePending(e *entry[T]) {
	if e.index >= 0 {
		heap.Remove(&s.delayed, e.index)
		e.waiting = false
	}
	if !e.waiting {
		e.waiting = true
		s.pending = append(s.pending, e)
	}
}

// repair queues every completed entry for a repair.
func (s *schedule[T]) repair(now time.Time) {
	for _, key := range slices.Sorted(maps.Keys(s.entries)) {
		switch e := s.entries[key]; {
		case e.running:
			e.again = true
		case e.completed && !e.repair:
			s.makeRepair(now, e)
		}
	}
}

func (s *schedule[T]) makeRepair(now time.Time, e *entry[T]) {
	e.repair = true
	e.task.Attempt, e.task.Requeues, e.task.Since = 0, 0, now
	s.repairs = append(s.repairs, e)
}

// next takes the next due task. If no task is due, it returns when the next one will be. This time is zero if only a
// call of another method can make one due.
func (s *schedule[T]) next(now time.Time) (Task[T], bool, time.Time) {
	s.skip()
	retry := len(s.delayed) > 0 && s.runningByClass[classRetry] < s.limits.Retries
	repair := len(s.repairs) > 0 && s.runningByClass[classRepair] < s.limits.Repairs
	switch {
	case len(s.pending) > 0:
		e := s.pending[0]
		s.pending = s.pending[1:]
		return s.take(e, classNew), true, time.Time{}
	case retry && !s.delayed[0].due.After(now):
		e, _ := heap.Pop(&s.delayed).(*entry[T])
		return s.take(e, classRetry), true, time.Time{}
	case repair && !s.nextRepair.After(now):
		e := s.repairs[0]
		s.repairs = s.repairs[1:]
		s.nextRepair = now.Add(s.limits.RepairPause)
		e.task.Repair = true
		return s.take(e, classRepair), true, time.Time{}
	case retry && (!repair || s.delayed[0].due.Before(s.nextRepair)):
		return Task[T]{}, false, s.delayed[0].due
	case repair:
		return Task[T]{}, false, s.nextRepair
	default:
		return Task[T]{}, false, time.Time{}
	}
}

// skip drops stale entries from the heads of the lists.
func (s *schedule[T]) skip() {
	for len(s.pending) > 0 && !s.pending[0].waiting {
		s.pending = s.pending[1:]
	}
	for len(s.repairs) > 0 && !s.repairs[0].repair {
		s.repairs = s.repairs[1:]
	}
}

func (s *schedule[T]) take(e *entry[T], from class) Task[T] {
	e.waiting, e.repair, e.completed, e.running, e.woken, e.again = false, false, false, true, false, false
	e.task.class = from
	e.task.Attempt++
	s.running++
	s.runningByClass[from]++
	return e.task
}

// end is called once per task. It returns the entry and true when the task's version is still the
// newest and not dropped. Otherwise it queues the newer version.
func (s *schedule[T]) end(task Task[T]) (*entry[T], bool) {
	e := s.entries[task.Key]
	e.running = false
	s.running--
	s.runningByClass[task.class]--
	switch {
	case e.task.Version != task.Version:
		s.makePending(e)
		return nil, false
	case e.drop:
		s.clear(e)
		return nil, false
	default:
		return e, true
	}
}

func (s *schedule[T]) discard(task Task[T]) {
	if e, newest := s.end(task); newest {
		s.clear(e)
	}
}

func (s *schedule[T]) complete(now time.Time, task Task[T], item T) {
	e, newest := s.end(task)
	if !newest {
		return
	}
	e.task.Item, e.completed = item, true
	if e.again {
		s.makeRepair(now, e)
	}
}

func (s *schedule[T]) retry(due time.Time, task Task[T], requeues int) {
	e, newest := s.end(task)
	if !newest {
		return
	}
	e.task.Requeues = requeues
	if requeues > 0 {
		e.task.Attempt--
	}
	if e.woken {
		s.makePending(e)
		return
	}
	e.due, e.waiting = due, true
	heap.Push(&s.delayed, e)
}

func (s *schedule[T]) wake(key string) {
	e, known := s.entries[key]
	switch {
	case !known:
	case e.running:
		e.woken = true
	case e.index >= 0:
		s.makePending(e)
	}
}

func (s *schedule[T]) depth() Depth {
	d := Depth{Delayed: len(s.delayed), Running: s.running}
	for _, e := range s.entries {
		switch {
		case e.waiting && e.index < 0:
			d.Pending++
		case e.repair:
			d.Repair++
		}
	}
	return d
}

// dueHeap is a heap of entries by due time.
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

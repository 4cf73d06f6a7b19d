package queue

import (
	"container/heap"
	"maps"
	"slices"
	"time"
)

// Task is one attempt at one version of a key.
type Task[T any] struct {
	Key     string
	Version int64
	Item    T
	// Attempt at this version, from 1; a repair counts anew. Waits do not count.
	Attempt int
	// Waits in a row before this one.
	Waits int
	// Since is when this version was put, or its repair asked for.
	Since time.Time
	// Repair says that this version was brought about before and is gone through once more.
	Repair bool

	place place
}

// place is which of the bounded places a task occupies.
type place int

const (
	placeFresh place = iota
	placeRetry
	placeRepair
)

// Limits bound what may run beside fresh work.
type Limits struct {
	// Retries that run at once, at least 1.
	Retries int
	// Repairs that run at once, at least 1, and the pause between the beginnings of two.
	Repairs     int
	RepairPause time.Duration
}

// entry is what is known of one key.
type entry[T any] struct {
	task    Task[T] // of the newest version
	running bool
	waiting bool // in fresh or in later
	settled bool // brought about, and its item kept for repairs
	repair  bool // in repairs
	woken   bool // while running: due at once afterwards
	again   bool // while running: a repair was asked for
	void    bool // while running: it is not wanted any more
	due     time.Time
	index   int // in later, -1 when not there
}

// schedule is the pure part: it knows no clock and never blocks. It belongs to one goroutine at a time.
type schedule[T any] struct {
	limits     Limits
	running    int
	taken      [placeRepair + 1]int // running by place
	entries    map[string]*entry[T]
	fresh      []*entry[T] // first in, first out; what does not wait is skipped
	later      dueHeap[T]
	repairs    []*entry[T] // first in, first out; what is not to be repaired any more is skipped
	nextRepair time.Time
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
	e.settled, e.repair, e.void = false, false, false
	if !e.running {
		s.makeFresh(e)
	}
	return true
}

// void drops what is known of a key's versions below this one, without making it the newest: nothing is to be done for it.
func (s *schedule[T]) void(key string, version int64) {
	e, known := s.entries[key]
	if !known || version <= e.task.Version {
		return
	}
	if e.running {
		e.void = true
		return
	}
	if e.index >= 0 {
		heap.Remove(&s.later, e.index)
	}
	e.waiting = false
	s.forget(e)
}

// forget keeps of a version only its number.
func (s *schedule[T]) forget(e *entry[T]) {
	var none T
	e.task.Item, e.settled, e.repair, e.void = none, false, false, false
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

// repair asks for everything that was brought about to be gone through once more.
func (s *schedule[T]) repair(now time.Time) {
	for _, key := range slices.Sorted(maps.Keys(s.entries)) {
		switch e := s.entries[key]; {
		case e.running:
			e.again = true
		case e.settled && !e.repair:
			s.makeRepair(now, e)
		}
	}
}

func (s *schedule[T]) makeRepair(now time.Time, e *entry[T]) {
	e.repair = true
	e.task.Attempt, e.task.Waits, e.task.Since = 0, 0, now
	s.repairs = append(s.repairs, e)
}

// next takes what is due and says whether there was any. Otherwise it says when something will be; zero when only a call can change that.
func (s *schedule[T]) next(now time.Time) (Task[T], bool, time.Time) {
	s.skip()
	retry := len(s.later) > 0 && s.taken[placeRetry] < s.limits.Retries
	repair := len(s.repairs) > 0 && s.taken[placeRepair] < s.limits.Repairs
	switch {
	case len(s.fresh) > 0:
		e := s.fresh[0]
		s.fresh = s.fresh[1:]
		return s.take(e, placeFresh), true, time.Time{}
	case retry && !s.later[0].due.After(now):
		e, _ := heap.Pop(&s.later).(*entry[T])
		return s.take(e, placeRetry), true, time.Time{}
	case repair && !s.nextRepair.After(now):
		e := s.repairs[0]
		s.repairs = s.repairs[1:]
		s.nextRepair = now.Add(s.limits.RepairPause)
		e.task.Repair = true
		return s.take(e, placeRepair), true, time.Time{}
	case retry && (!repair || s.later[0].due.Before(s.nextRepair)):
		return Task[T]{}, false, s.later[0].due
	case repair:
		return Task[T]{}, false, s.nextRepair
	default:
		return Task[T]{}, false, time.Time{}
	}
}

// skip drops from the heads of the lists what is there no more.
func (s *schedule[T]) skip() {
	for len(s.fresh) > 0 && !s.fresh[0].waiting {
		s.fresh = s.fresh[1:]
	}
	for len(s.repairs) > 0 && !s.repairs[0].repair {
		s.repairs = s.repairs[1:]
	}
}

func (s *schedule[T]) take(e *entry[T], from place) Task[T] {
	e.waiting, e.repair, e.settled, e.running, e.woken, e.again = false, false, false, true, false, false
	e.task.place = from
	e.task.Attempt++
	s.running++
	s.taken[from]++
	return e.task
}

// end is called once for each task. It reports the entry when its version is still the newest and wanted; a newer one has been made due.
func (s *schedule[T]) end(task Task[T]) (*entry[T], bool) {
	e := s.entries[task.Key]
	e.running = false
	s.running--
	s.taken[task.place]--
	switch {
	case e.task.Version != task.Version:
		s.makeFresh(e)
		return nil, false
	case e.void:
		s.forget(e)
		return nil, false
	default:
		return e, true
	}
}

func (s *schedule[T]) done(task Task[T]) {
	if e, newest := s.end(task); newest {
		s.forget(e)
	}
}

func (s *schedule[T]) settle(now time.Time, task Task[T], item T) {
	e, newest := s.end(task)
	if !newest {
		return
	}
	e.task.Item, e.settled = item, true
	if e.again {
		s.makeRepair(now, e)
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

func (s *schedule[T]) depth() Depth {
	d := Depth{Later: len(s.later), Running: s.running}
	for _, e := range s.entries {
		switch {
		case e.waiting && e.index < 0:
			d.Fresh++
		case e.repair:
			d.Repair++
		}
	}
	return d
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

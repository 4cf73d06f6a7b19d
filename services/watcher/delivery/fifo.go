package delivery

import (
	"container/heap"
	"time"

	"lockstep.internal/services/watcher/object"
)

// fifo is a queue of names, first in, first out.
type fifo struct {
	names []object.Name
	head  int
}

func (f *fifo) push(name object.Name) { f.names = append(f.names, name) }

func (f *fifo) pop() (object.Name, bool) {
	if f.head == len(f.names) {
		return object.Name{}, false
	}
	name := f.names[f.head]
	f.names[f.head] = object.Name{}
	f.head++
	switch {
	case f.head == len(f.names):
		if f.head = 0; cap(f.names) > 1024 {
			f.names = nil // a full resync made it long
		} else {
			f.names = f.names[:0]
		}
	case f.head > 1024 && f.head > len(f.names)/2:
		f.names = append(f.names[:0], f.names[f.head:]...)
		f.head = 0
	}
	return name, true
}

// delays is a queue of names by due time.
type delays struct{ waiting delayHeap }

func (d *delays) len() int { return len(d.waiting) }

func (d *delays) push(name object.Name, at time.Time) {
	heap.Push(&d.waiting, delay{name: name, at: at})
}

func (d *delays) pop() object.Name {
	first, _ := heap.Pop(&d.waiting).(delay)
	return first.name
}

// next returns when the earliest is due, zero for none.
func (d *delays) next() time.Time {
	if len(d.waiting) == 0 {
		return time.Time{}
	}
	return d.waiting[0].at
}

func (d *delays) due(now time.Time) bool { return len(d.waiting) > 0 && !d.waiting[0].at.After(now) }

type delay struct {
	name object.Name
	at   time.Time
}

type delayHeap []delay

func (h *delayHeap) Len() int           { return len(*h) }
func (h *delayHeap) Less(i, j int) bool { return (*h)[i].at.Before((*h)[j].at) }
func (h *delayHeap) Swap(i, j int)      { (*h)[i], (*h)[j] = (*h)[j], (*h)[i] }

func (h *delayHeap) Push(x any) {
	if d, ok := x.(delay); ok {
		*h = append(*h, d)
	}
}

func (h *delayHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}

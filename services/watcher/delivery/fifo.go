package delivery

import (
	"container/heap"
	"time"
)

// fifo is a queue of entries, first in, first out.
type fifo struct {
	entries []*entry
	head    int
}

func (f *fifo) push(e *entry) { f.entries = append(f.entries, e) }

// pop returns nil if the queue is empty.
func (f *fifo) pop() *entry {
	if f.head == len(f.entries) {
		return nil
	}
	first := f.entries[f.head]
	f.entries[f.head] = nil
	f.head++
	switch {
	case f.head == len(f.entries):
		if f.head = 0; cap(f.entries) > 1024 {
			f.entries = nil // a full resync made it long
		} else {
			f.entries = f.entries[:0]
		}
	case f.head > 1024 && f.head > len(f.entries)/2:
		f.entries = append(f.entries[:0], f.entries[f.head:]...)
		f.head = 0
	}
	return first
}

// delays is a queue of entries by due time.
type delays struct{ waiting delayHeap }

func (d *delays) len() int { return len(d.waiting) }

func (d *delays) push(e *entry, at time.Time) { heap.Push(&d.waiting, delay{entry: e, at: at}) }

func (d *delays) pop() *entry {
	first, _ := heap.Pop(&d.waiting).(delay)
	return first.entry
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
	entry *entry
	at    time.Time
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
	old[len(old)-1] = delay{}
	*h = old[:len(old)-1]
	return last
}

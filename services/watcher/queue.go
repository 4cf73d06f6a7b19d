package watcher

import (
	"container/heap"
	"time"
)

// queue is first in, first out.
type queue struct {
	keys []name
	head int
}

func (q *queue) push(key name) { q.keys = append(q.keys, key) }

func (q *queue) pop() (name, bool) {
	if q.head == len(q.keys) {
		return name{}, false
	}
	key := q.keys[q.head]
	q.keys[q.head] = name{}
	q.head++
	// Move up when most of it is spent, so that it does not grow for ever.
	if q.head == len(q.keys) || q.head > 1024 && q.head > len(q.keys)/2 {
		q.keys = append(q.keys[:0], q.keys[q.head:]...)
		q.head = 0
	}
	return key, true
}

// delays are keys that wait for their time, the earliest first.
type delays struct{ waiting delayHeap }

func (d *delays) len() int { return len(d.waiting) }

func (d *delays) push(key name, at time.Time) { heap.Push(&d.waiting, delay{key: key, at: at}) }

func (d *delays) pop() name {
	first, ok := heap.Pop(&d.waiting).(delay)
	if !ok {
		return name{}
	}
	return first.key
}

// next is when the earliest is due, zero when none waits.
func (d *delays) next() time.Time {
	if len(d.waiting) == 0 {
		return time.Time{}
	}
	return d.waiting[0].at
}

func (d *delays) due(now time.Time) bool { return len(d.waiting) > 0 && !d.waiting[0].at.After(now) }

type delay struct {
	key name
	at  time.Time
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

package queue

import (
	"container/heap"

	"lockstep.internal/services/runners/job"
)

// line is the waiting jobs of one project in one class: a heap, the oldest first, with the place of each job.
type line struct {
	jobs   []job.Job
	places map[int64]int
}

func (l *line) first() job.Job { return l.jobs[0] }

func (l *line) push(j job.Job) {
	if l.places == nil {
		l.places = map[int64]int{}
	}
	heap.Push(l, j)
}

func (l *line) remove(id int64) { heap.Remove(l, l.places[id]) }

// Len implements [heap.Interface].
func (l *line) Len() int { return len(l.jobs) }

// Less implements [heap.Interface].
func (l *line) Less(a, b int) bool {
	x, y := &l.jobs[a], &l.jobs[b]
	if !x.PendingSince.Equal(y.PendingSince) {
		return x.PendingSince.Before(y.PendingSince)
	}
	return x.ID < y.ID
}

// Swap implements [heap.Interface].
func (l *line) Swap(a, b int) {
	l.jobs[a], l.jobs[b] = l.jobs[b], l.jobs[a]
	l.places[l.jobs[a].ID], l.places[l.jobs[b].ID] = a, b
}

// Push implements [heap.Interface].
func (l *line) Push(x any) {
	j := x.(job.Job) //nolint:errcheck,forcetypeassert // only push calls it
	l.places[j.ID] = len(l.jobs)
	l.jobs = append(l.jobs, j)
}

// Pop implements [heap.Interface].
func (l *line) Pop() any {
	last := len(l.jobs) - 1
	j := l.jobs[last]
	l.jobs[last] = job.Job{}
	l.jobs = l.jobs[:last]
	delete(l.places, j.ID)
	return j
}

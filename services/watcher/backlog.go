package watcher

import (
	"slices"

	"lockstep.internal/schemas/gen/events"
)

// Bounds of the versions that wait in a [Ledger] to be told one after the other. Those in the middle are dropped beyond them, and the version after says how many.
type Bounds struct {
	// PerObject is how many versions of one object may wait, besides the latest. Zero lets only the latest wait.
	PerObject int
	// Total is how many may wait in all.
	Total int
}

// backlog is the versions of one object that wait before its latest, in order.
type backlog []Sighting

// push appends the version that was the latest until the next one came, and drops one in the middle where there is no room for it. One that is in flight is the
// first, and stays: whether it is stored is not known. A deletion is dropped only where nothing else is left: it separates two objects of one name. It returns by
// how many the backlog has grown.
func (b *backlog) push(s Sighting, next *Sighting, inFlight bool, bounds Bounds, room int) int {
	*b = append(*b, s)
	first := 0
	if inFlight {
		first = 1
	}
	if len(*b) <= bounds.PerObject && room > 0 || first == len(*b) {
		return 1
	}
	drop := b.expendable(first)
	after := next
	if drop+1 < len(*b) {
		after = &(*b)[drop+1]
	}
	after.Skipped += 1 + (*b)[drop].Skipped
	*b = slices.Delete(*b, drop, drop+1)
	return 0
}

// expendable is the place of the version nearest to the middle, from a place on, that is no deletion; the middle where there are only deletions.
func (b *backlog) expendable(first int) int {
	middle := max(len(*b)/2, first)
	for distance := range len(*b) {
		for _, at := range []int{middle + distance, middle - distance} {
			if at >= first && at < len(*b) && (*b)[at].Verb != events.VerbDeleted {
				return at
			}
		}
	}
	return middle
}

// without drops the versions of one object, and returns how many.
func (b *backlog) without(key Key) int {
	before := len(*b)
	*b = slices.DeleteFunc(*b, func(s Sighting) bool { return s.Key == key })
	return before - len(*b)
}

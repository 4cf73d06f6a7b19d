package delivery

import (
	"slices"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/watcher/object"
)

// Bounds limit the versions that wait in a [Queue]. Beyond them a version in the middle is dropped and
// counted in the next one.
type Bounds struct {
	// PerName is how many versions of one name may wait before the latest. Defaults to 0: only the
	// latest version of each object waits.
	PerName int
	// Total is how many versions may wait in all.
	Total int
}

// backlog is the versions of one name before its latest, in order.
type backlog []object.Version

// push appends a version; next is the one that follows it. If there is no room, it drops the
// version nearest to the middle that is not a deletion, or the middle one if there are only
// deletions. The version in flight is the first and stays: it may be stored. push returns by how
// many the backlog grew.
func (b *backlog) push(v object.Version, next *object.Version, inFlight bool, bounds Bounds, room int) int {
	*b = append(*b, v)
	first := 0
	if inFlight {
		first = 1
	}
	if len(*b) <= bounds.PerName && room > 0 || first == len(*b) {
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

// remove drops the versions of one object and returns how many.
func (b *backlog) remove(key object.Key) int {
	before := len(*b)
	*b = slices.DeleteFunc(*b, func(v object.Version) bool { return v.Key() == key })
	return before - len(*b)
}

func (b *backlog) startsWith(v object.Version) bool {
	return len(*b) > 0 && (*b)[0].ResourceVersion == v.ResourceVersion && (*b)[0].Verb == v.Verb
}

func (b *backlog) shift() {
	*b = slices.Delete(*b, 0, 1)
	if len(*b) == 0 {
		*b = nil
	}
}

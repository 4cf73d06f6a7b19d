package watcher

import "slices"

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
// first, and stays: whether it is stored is not known. It returns by how many the backlog has grown.
func (b *backlog) push(s Sighting, next *Sighting, inFlight bool, bounds Bounds, room int) int {
	*b = append(*b, s)
	drop := len(*b) / 2
	if inFlight {
		drop = max(drop, 1)
	}
	if len(*b) <= bounds.PerObject && room > 0 || drop == len(*b) {
		return 1
	}
	after := next
	if drop+1 < len(*b) {
		after = &(*b)[drop+1]
	}
	after.Skipped += 1 + (*b)[drop].Skipped
	*b = slices.Delete(*b, drop, drop+1)
	return 0
}

package activity

import "time"

const (
	// minPeriod and maxPeriod bound the rhythm in which programs send keep-alives and poll.
	minPeriod, maxPeriod = time.Second, 10 * time.Minute
	// A program may be early or late by this part of a period, and by at most maxDifference. People are less regular.
	tolerance     = 10
	maxDifference = 2 * time.Second
	// maxKept is the number of messages of one kind that are remembered, maxKinds the number of kinds.
	maxKept, maxKinds = 8, 32
)

// rhythm finds messages that a program sends by itself: those of one kind that come in equal intervals. Several
// programs may do so at the same time. The first two messages of a rhythm are not recognized.
type rhythm map[uint64][]time.Time

// repeats reports whether a message of a kind continues a rhythm, and remembers the message.
func (r rhythm) repeats(kind uint64, now time.Time) bool {
	kept, known := r[kind]
	if known && now.Sub(kept[len(kept)-1]) < minPeriod/tolerance {
		return false // part of a burst, such as typing
	}
	if !known && len(r) >= maxKinds {
		r.forget()
	}
	if len(kept) >= maxKept {
		kept = append(kept[:0], kept[1:]...)
	}
	r[kind] = append(kept, now)
	for i, middle := range kept {
		period := now.Sub(middle)
		if period < minPeriod || period > maxPeriod {
			continue
		}
		for _, first := range kept[:i] {
			if difference := middle.Sub(first) - period; difference.Abs() <= min(period/tolerance, maxDifference) {
				return true
			}
		}
	}
	return false
}

// forget removes the kind that was not sent for the longest time.
func (r rhythm) forget() {
	var oldest uint64
	var at time.Time
	for kind, kept := range r {
		if last := kept[len(kept)-1]; at.IsZero() || last.Before(at) {
			oldest, at = kind, last
		}
	}
	delete(r, oldest)
}

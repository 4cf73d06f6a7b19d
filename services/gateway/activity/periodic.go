package activity

import "time"

const (
	// minPeriod and maxPeriod bound the intervals in which programs send keep-alives and poll.
	minPeriod, maxPeriod = time.Second, 10 * time.Minute
	// A program may be early or late by this part of a period, and by at most maxDifference. People are less regular.
	tolerance     = 10
	maxDifference = 2 * time.Second
	// maxBurst is the greatest time between two messages that are judged as one.
	maxBurst = minPeriod / tolerance
	// maxKept is the number of messages of one kind that are remembered, maxKinds the number of kinds.
	maxKept, maxKinds = 8, 32
)

// periodic finds messages that a program sends by itself: those of one kind that come in equal intervals. Several
// programs may do so at the same time. The first two messages are not recognized.
type periodic map[uint64]sent

// sent are the last messages of one kind.
type sent struct {
	at       []time.Time
	last     time.Time // of the last burst
	repeated bool      // its result
}

// repeats reports whether a message of a kind continues a series in equal intervals, and remembers the message. A burst
// counts as its first message.
func (p periodic) repeats(kind uint64, now time.Time) bool {
	kept, known := p[kind]
	if known && now.Sub(kept.last) < maxBurst {
		kept.last = now
		p[kind] = kept
		return kept.repeated
	}
	if !known && len(p) >= maxKinds {
		p.forget()
	}
	if len(kept.at) >= maxKept {
		kept.at = append(kept.at[:0], kept.at[1:]...)
	}
	kept.repeated, kept.last = continues(kept.at, now), now
	kept.at = append(kept.at, now)
	p[kind] = kept
	return kept.repeated
}

// continues reports whether a message now comes as long after one of the messages as that came after another one.
func continues(messages []time.Time, now time.Time) bool {
	for i, middle := range messages {
		period := now.Sub(middle)
		if period < minPeriod || period > maxPeriod {
			continue
		}
		for _, first := range messages[:i] {
			if difference := middle.Sub(first) - period; difference.Abs() <= min(period/tolerance, maxDifference) {
				return true
			}
		}
	}
	return false
}

// forget removes the kind that was not sent for the longest time.
func (p periodic) forget() {
	var oldest uint64
	var at time.Time
	for kind, kept := range p {
		if at.IsZero() || kept.last.Before(at) {
			oldest, at = kind, kept.last
		}
	}
	delete(p, oldest)
}

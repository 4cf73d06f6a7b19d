package rollout

import (
	"time"

	"lockstep.internal/schemas/gen/events"
)

// release stops following what is still there, for another project to begin: its first look is a silent baseline. How a rollout in flight will end is not for those
// to know who were told that it started, and not for others to be told; so it ends here, and nothing is kept by which one that was told could be told of again.
// What stays is what tells versions, revisions and templates from new ones, and the number of the last fact: identity is the cluster's.
func (p *step) release() bool {
	waits := len(p.s.Waiting) > 0
	if p.s.View == nil && !waits && (p.s.Gone || p.s.Rollout == nil) {
		return false
	}
	p.s = p.s.clone()
	s := &p.s
	s.Waiting, s.WaitSince = nil, time.Time{}
	if s.InFlight() {
		gap := events.Gap{Revisions: []int{s.Rollout.Revision}, Since: p.at, Until: p.at, Cause: events.CauseClusterReleased}
		if v := s.View; v != nil && v.At.Before(p.at) { // two clocks
			gap.Since = v.At
		}
		p.gap(gap)
		p.unknown(gap, p.at)
	}
	p.leave()
	s.Rollout = nil
	if !s.Gone || waits {
		s.Unselected, s.Tombstone = true, true
	}
	return true
}

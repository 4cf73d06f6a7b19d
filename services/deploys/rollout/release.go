package rollout

import (
	"time"

	"lockstep.internal/schemas/gen/events"
)

// release stops following what still exists, because the cluster goes to another project. The next observation is a
// silent baseline. The previous project must not learn how a rollout in flight ends, and the next one did not learn of
// its start, so it ends as unknown. Versions, revisions, templates and the sequence stay: identity belongs to the
// cluster.
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
		if v := s.View; v != nil && v.At.Before(p.at) { // the clocks differ
			gap.Since = v.At
		}
		p.emitGap(gap)
		p.endUnknown(gap, p.at)
	}
	p.stopFollowing()
	s.Rollout = nil
	if !s.Gone || waits {
		s.Unselected, s.Tombstone = true, true
	}
	return true
}

package rollout

import (
	"time"

	"lockstep.internal/schemas/gen/events"
)

// release drops the view because the cluster was released to another project. The next observation is a baseline
// without facts. A rollout in flight ends as unknown: the previous project must not learn its real end, and the next
// project did not learn of its start. Versions, revisions, templates and the sequence stay, because they belong to the
// cluster and not to the project.
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
		p.endUnknown(gap, p.at)
	}
	p.dropView()
	s.Rollout = nil
	if !s.Gone || waits {
		s.Unselected, s.Tombstone = true, true
	}
	return true
}

package rollout

import "lockstep.internal/schemas/gen/events"

// unobservedBefore returns the period without observations before a view. It starts at the previous view, or at the
// creation of the workload.
func (p *step) unobservedBefore(v View) Unobserved {
	u := Unobserved{Since: v.At, Until: v.At, Cause: cause(v)}
	switch {
	case p.before != nil:
		u.Since = p.before.At
	case !v.CreatedAt.IsZero():
		u.Since = v.CreatedAt
	}
	if u.Since.After(u.Until) { // the clocks differ
		u.Since = u.Until
	}
	return u
}

func cause(v View) events.Cause {
	switch {
	case v.Restored:
		return events.CauseClusterRestored
	case v.First, v.Absent:
		return events.CauseWatcherDown
	default:
		return events.CauseVersionsSkipped
	}
}

func (u Unobserved) gap(revisions ...int) events.Gap {
	return events.Gap{Revisions: revisions, Since: u.Since, Until: u.Until, Cause: u.Cause}
}

// unobserved returns the period without observations in which the rollout in flight may have completed. It returns
// false if there is no rollout in flight or no such period.
func (p *step) unobserved(v View) (Unobserved, bool) {
	s := &p.s
	switch {
	case !s.InFlight():
		return Unobserved{}, false
	case !v.afterGap() && s.Rollout.Unobserved == nil:
		return Unobserved{}, false
	case !v.afterGap():
		return *s.Rollout.Unobserved, true
	}
	u := p.unobservedBefore(v)
	if earlier := s.Rollout.Unobserved; earlier != nil {
		u.Since = earlier.Since
	}
	return u, true
}

// updateUnobserved updates the period without observations in which the rollout in flight may have completed. If the
// view shows that the rollout never completed, it clears the period.
func (p *step) updateUnobserved(v View) {
	s := &p.s
	switch {
	case !s.InFlight():
	case p.isUnfinished(s.Rollout, v):
		s.Rollout.Unobserved = nil
	case v.afterGap():
		u := p.unobservedBefore(v)
		if earlier := s.Rollout.Unobserved; earlier != nil {
			u.Since = earlier.Since
		}
		s.Rollout.Unobserved = &u
	}
}

// isUnfinished reports whether the view shows that the rollout has not completed before. A completed Deployment has no
// old pods until the next template, and its condition changes only after an edit. In a completed StatefulSet the
// revision is the current one.
func (p *step) isUnfinished(r *Rollout, v View) bool {
	if !p.describesRollout(r, v) {
		return false
	}
	if p.s.Key.Kind == StatefulSet && v.Strategy != onDelete && v.Current != v.Update {
		return true
	}
	untouched := p.before == nil && v.Generation == 1 || p.before != nil && p.before.Generation == v.Generation
	if c := v.Progress; untouched && v.afterGap() && c.names(r.Name) &&
		(c.Reason == reasonUpdated || c.Reason == reasonDeadline) && c.At.After(r.StartedAt) {
		return true
	}
	return v.isObserved() && v.Counts.Updated < v.Counts.Total && v.Template.equals(r.Template)
}

// confirmedBy reports whether the condition of the Deployment controller shows that the rollout completed at some time.
// The condition may be about an earlier rollout of the same ReplicaSet, so the start of this one must be known.
func (r *Rollout) confirmedBy(c Condition) bool {
	return r.Provenance == events.ProvenanceObserved && c.Reason == reasonAvailable && c.names(r.Name) &&
		c.At.After(r.StartedAt)
}

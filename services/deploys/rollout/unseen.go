package rollout

import "lockstep.internal/schemas/gen/events"

// unseenBefore is the time before a view in which nobody looked: since the view before it, or since the workload is there.
func (p *step) unseenBefore(v View) Unseen {
	u := Unseen{Since: v.At, Until: v.At, Cause: cause(v)}
	switch {
	case p.before != nil:
		u.Since = p.before.At
	case !v.CreatedAt.IsZero():
		u.Since = v.CreatedAt
	}
	if u.Since.After(u.Until) { // two clocks
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

func (u Unseen) gap(revisions ...int) events.Gap {
	return events.Gap{Revisions: revisions, Since: u.Since, Until: u.Until, Cause: u.Cause}
}

// unseen says whether the rollout in flight may have been completed before the view, and when nobody looked.
func (p *step) unseen(v View) (Unseen, bool) {
	s := &p.s
	switch {
	case !s.InFlight():
		return Unseen{}, false
	case !v.blind() && s.Rollout.Unseen == nil:
		return Unseen{}, false
	case !v.blind():
		return *s.Rollout.Unseen, true
	}
	u := p.unseenBefore(v)
	if earlier := s.Rollout.Unseen; earlier != nil {
		u.Since = earlier.Since
	}
	return u, true
}

// doubt what became of the rollout in flight before the view: unless that shows it was never complete, it may have been, and have been changed since.
func (p *step) doubt(v View) {
	s := &p.s
	switch {
	case !s.InFlight():
	case p.unfinished(s.Rollout, v):
		s.Rollout.Unseen = nil
	case v.blind():
		u := p.unseenBefore(v)
		if earlier := s.Rollout.Unseen; earlier != nil {
			u.Since = earlier.Since
		}
		s.Rollout.Unseen = &u
	}
}

// unfinished says that the view shows that the rollout was never complete until then. What is complete has no old pods until the next template; a
// StatefulSet's revision is then the current one; and a Deployment's controller has said so, and says nothing else before somebody edits it.
func (p *step) unfinished(r *Rollout, v View) bool {
	if !p.concernsRollout(r, v) {
		return false
	}
	if p.s.Key.Kind == StatefulSet && v.Strategy != onDelete && v.Current != v.Update {
		return true
	}
	untouched := p.before == nil && v.Generation == 1 || p.before != nil && p.before.Generation == v.Generation
	if c := v.Progress; untouched && v.blind() && c.names(r.Name) && (c.Reason == reasonUpdated || c.Reason == reasonDeadline) && c.At.After(r.StartedAt) {
		return true
	}
	return v.current() && v.Counts.Updated < v.Counts.Total && v.Template.same(r.Template)
}

// attested says that the Deployment's controller has found the rollout complete, whatever was done to it since. It may have said so of the same ReplicaSet
// before, so when the rollout began must be known.
func (r *Rollout) attested(c Condition) bool {
	return r.Provenance == events.ProvenanceObserved && c.Reason == reasonAvailable && c.names(r.Name) && c.At.After(r.StartedAt)
}

package rollout

import (
	"slices"
	"time"

	"lockstep.internal/schemas/gen/events"
)

// unobservedBefore returns the period without observations before a view. It starts at the previous view, or at the
// creation of the workload.
func (p *step) unobservedBefore(v View) Unobserved { return unobservedBetween(p.before, v) }

func unobservedBetween(before *View, v View) Unobserved {
	u := Unobserved{Since: v.At, Until: v.At, Cause: cause(v)}
	switch {
	case before != nil:
		u.Since = before.At
	case !v.CreatedAt.IsZero():
		u.Since = v.CreatedAt
	}
	if u.Since.After(u.Until) { // the clocks differ
		u.Since = u.Until
	}
	return u
}

// recordOutage records the period without observations before a view that is not applied yet.
func (p *step) recordOutage(v View) {
	s := &p.s
	if s.Key.Kind != Deployment || !v.afterGap() {
		return
	}
	before := s.View
	if n := len(s.Waiting); n > 0 {
		before = &s.Waiting[n-1]
	}
	last := s.Last
	if before != nil && before.UID != v.UID {
		before, last = nil, 0
	}
	s.Outages = append(s.Outages, Outage{Unobserved: unobservedBetween(before, v), Last: last})
	s.Outages = s.Outages[max(0, len(s.Outages)-maxOutages):]
	p.reorderListed(v.UID, v.At)
}

// outageBefore returns the last period without observations that began before the time.
func (p *step) outageBefore(at time.Time) (Outage, bool) {
	for _, o := range slices.Backward(p.s.Outages) {
		if o.Since.Before(at) {
			return o, true
		}
	}
	return Outage{}, false
}

// reportRenumbered emits a gap, unless there is one, if ReplicaSets were deleted by hand in the period without
// observations before the view: the view names one that is not observed, or one of the given ones got a number that was
// given before. There may have been others in between.
func (p *step) reportRenumbered(v View, namesUnknown bool, revisions ...Revision) {
	s := &p.s
	o, found := p.outageBefore(v.At)
	hasGap := slices.ContainsFunc(p.facts, func(f events.DeployFact) bool {
		return f.Fact == events.FactGap && f.Workload.UID == s.UID && !f.Gap.Since.After(o.Since)
	})
	if s.Key.Kind != Deployment || !found || o.Last == 0 || hasGap {
		return
	}
	if namesUnknown || slices.ContainsFunc(revisions, func(r Revision) bool {
		isKnown := s.Rollout == nil || s.Rollout.Name == r.Name && s.Rollout.ObjectUID == r.UID
		return r.WorkloadUID == s.UID && r.Listed && r.Revision > 0 && r.Revision <= o.Last && r.SeenAt.After(o.Since) &&
			!isKnown
	}) {
		p.emitGap(o.gap())
	}
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
	case (!v.afterGap() || p.replaced) && !p.mayHaveCompleted():
		return Unobserved{}, false
	case !v.afterGap(), p.replaced:
		return *s.Rollout.Unobserved, true
	}
	return p.unobservedUntil(v), true
}

// unobservedUntil returns the period before a view, together with an earlier one in which the rollout in flight may
// have completed.
func (p *step) unobservedUntil(v View) Unobserved {
	u := p.unobservedBefore(v)
	if p.mayHaveCompleted() {
		u.Since, u.Refused = p.s.Rollout.Unobserved.Since, p.s.Rollout.Unobserved.Refused
	}
	return u
}

// mayHaveCompleted reports whether the newest rollout may have completed in a period without observations.
func (p *step) mayHaveCompleted() bool {
	u := p.s.Rollout.Unobserved
	return u != nil && (!u.Refuted || p.isReplaced(p.s.Rollout))
}

// isReplacedBefore reports whether another ReplicaSet was observed to replace that of the rollout in flight, before the
// period without observations that ends with the view. The replaced one may have got a higher number again since.
func (p *step) isReplacedBefore(v View) bool {
	s := &p.s
	shown := p.before != nil && p.isShown(*p.before, s.Rollout.Name)
	return s.Key.Kind == Deployment && slices.ContainsFunc(s.Pending, func(k Pending) bool {
		if k.WorkloadUID != v.UID || k.Listed || p.isAfter(k, v) || compareVersions(k.Version, s.TakenVersion) <= 0 {
			return false
		}
		if k.Name == s.Rollout.Name {
			return k.Revision > s.Rollout.Revision
		}
		return !shown
	})
}

// isReplaced reports whether the ReplicaSet of the rollout was deleted in a period without observations, and created
// again. Then the new one may have too few pods although the rollout had completed.
func (p *step) isReplaced(r *Rollout) bool {
	if r.ObjectUID == "" {
		return false
	}
	old := p.findRevision(r.ObjectUID)
	unseen := old != nil && old.Unseen
	return slices.ContainsFunc(p.s.Revisions, func(k Revision) bool {
		return k.WorkloadUID == p.s.UID && k.Name == r.Name && k.UID != r.ObjectUID && (k.Listed || unseen) &&
			compareVersions(k.Since, r.Version) > 0
	})
}

// updateUnobserved updates the period without observations in which the rollout in flight may have completed.
func (p *step) updateUnobserved(v View) {
	s := &p.s
	switch {
	case !s.InFlight(), v.First && !v.Skipped && p.isReplacedBefore(v):
	case v.afterGap():
		u := p.unobservedUntil(v)
		u.Refused = u.Refused || v.refusesPods() || p.before != nil && p.before.refusesPods()
		u.Refuted = !u.Refused && p.isUnfinished(s.Rollout, v)
		s.Rollout.Unobserved = &u
	case s.Rollout.Unobserved != nil && !s.Rollout.Unobserved.Refuted:
		u := *s.Rollout.Unobserved
		u.Refused = u.Refused || v.refusesPods()
		u.Refuted = !u.Refused && p.isUnfinished(s.Rollout, v)
		s.Rollout.Unobserved = &u
	}
}

// isUnfinished reports whether the view shows that the rollout has not completed before. A completed Deployment has no
// old pods until the next template, and its condition changes only after an edit, unless the cluster refused old pods
// until then. In a completed StatefulSet the revision is the current one.
func (p *step) isUnfinished(r *Rollout, v View) bool {
	if !p.describesRollout(r, v) || p.hasLaterPending(v, p.s.TakenVersion) {
		return false
	}
	if p.s.Key.Kind == StatefulSet && v.Strategy != onDelete && v.Current != v.Update {
		return true
	}
	if v.refusesPods() || p.before != nil && p.before.refusesPods() {
		return false
	}
	untouched := p.before == nil && v.Generation == 1 || p.before != nil && p.before.Generation == v.Generation
	if c := v.Progress; untouched && v.afterGap() && c.names(r.Name) &&
		(c.Reason == reasonUpdated || c.Reason == reasonDeadline) && c.At.After(r.StartedAt) {
		return true
	}
	return v.isObserved() && v.Counts.Updated < v.Counts.Total && v.Counts.Desired > 0 && v.Template.equals(r.Template)
}

// confirmedBy reports whether the condition of the Deployment controller shows that the rollout completed at some time.
// The condition may be about an earlier rollout of the same ReplicaSet, so the start of this one must be known.
func (r *Rollout) confirmedBy(c Condition) bool {
	return r.Provenance == events.ProvenanceObserved && c.Reason == reasonAvailable && c.names(r.Name) &&
		c.At.After(r.StartedAt)
}

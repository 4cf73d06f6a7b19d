package rollout

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"lockstep.internal/schemas/gen/events"
)

// processRevisions processes all revisions after the last one, up to the view's. It emits the start and the end of the
// known revisions in between. It reports the unknown ones in a gap.
func (p *step) processRevisions(v View, to int, known, timedOut bool) {
	s := &p.s
	p.dropWithdrawn()
	at := p.pendingIndex(v, to)
	if known && !timedOut && s.Key.Kind != DaemonSet && !p.isContiguous(v, at) {
		return
	}
	reach := at
	if at < 0 {
		for i, k := range s.Pending {
			if k.WorkloadUID == v.UID && (k.Revision <= to || !known) && !p.isAfter(k, v) {
				reach = i
			}
		}
	}
	steps, _ := p.pendingUpTo(v, reach)
	steps = slices.DeleteFunc(steps, func(k Pending) bool { return p.isListedAfter(k, v) })
	if !known { // the newest revision has a name but no number
		to = s.Last
		if n := len(steps); n > 0 {
			to = steps[n-1].Revision
		}
	}
	if s.Key.Kind == DaemonSet {
		steps = []Pending{{WorkloadUID: v.UID, Revision: to, SeenAt: v.At}}
	}
	p.dropPending(v, reach, to)
	p.startRollouts(v, p.startObserved(v, steps, 1), to, known)
}

// startObserved starts the rollouts of the revisions that were observed before a period without observations, and
// returns the others. At least the last ones are kept for the view after the period.
func (p *step) startObserved(v View, steps []Pending, kept int) []Pending {
	if !v.afterGap() || v.Skipped || v.Restored || p.s.Key.Kind != Deployment || p.before == nil {
		return steps
	}
	last := *p.before
	last.First, last.Skipped, last.Restored = false, false, false
	last.Template = Template{} // it may be that of any of them
	at, provenance := p.at, p.provenance
	isEarlier := func(k Pending) bool { return (!k.Listed || !k.SeenAt.After(last.At)) && !p.isAfter(k, v) }
	for len(steps) > kept && isEarlier(steps[0]) {
		p.at, p.provenance = steps[0].SeenAt, events.ProvenanceObserved
		if missed, mayHaveEnded := p.unobserved(last); mayHaveEnded {
			p.endUnknown(missed.gap(p.s.Rollout.Revision), p.at)
		}
		p.startRollout(steps[0], last, false)
		steps = steps[1:]
	}
	p.at, p.provenance = at, provenance
	p.replaced = len(steps) == 1 && isEarlier(steps[0])
	return steps
}

// startRollouts starts the rollouts of the revisions in steps. The last one is the view's, if known is true.
func (p *step) startRollouts(v View, steps []Pending, to int, known bool) {
	s := &p.s
	n := len(steps)
	reached := n > 0 && steps[n-1].Revision == to && known
	p.emitMissing(v, steps, to, known)
	for i, k := range steps {
		p.startRollout(k, v, i == n-1 && reached && !p.hasLaterPending(v, k.Version))
		p.replaced = false
	}
	if !reached {
		if s.InFlight() {
			p.endSuperseded(nil, v)
		}
		s.Name, s.Hash, s.Template, s.TakenVersion = cmp.Or(v.Update, p.completedName(v)), "", Template{}, ""
	}
	s.Unnumbered = !known
	s.Last, s.Generation, s.ShownVersion = to, v.Generation, ""
}

// completedName returns the name of the ReplicaSet that a view shows to be complete, although it was not observed with
// the view's number: it was deleted by hand. It is empty if nothing names it, or if another one has the number. Without
// desired pods, the condition may be about an earlier rollout of an observed ReplicaSet with another template.
func (p *step) completedName(v View) string {
	name := v.Progress.object()
	mayBeEarlier := v.Counts.Desired == 0 && !p.namesUnobserved(v) && !p.templateNamed(name).equals(v.Template)
	hasNumber := func(r Revision) bool { return r.WorkloadUID == v.UID && r.Revision == v.Revision && !r.Deleted }
	if p.s.Key.Kind != Deployment || !v.isFull() || v.Progress.Reason != reasonAvailable || mayBeEarlier ||
		slices.ContainsFunc(p.s.Revisions, hasNumber) {
		return ""
	}
	return name
}

// emitMissing emits a gap if revisions, or the end of the rollout in flight, were not observed.
func (p *step) emitMissing(v View, steps []Pending, to int, known bool) {
	s := &p.s
	var lost []int
	missed, mayHaveEnded := p.unobserved(v)
	if mayHaveEnded {
		lost = append(lost, s.Rollout.Revision)
	} else if outage, found := p.outageBefore(v.At); found && p.reapplied {
		missed = outage.Unobserved
	} else {
		missed = p.unobservedBefore(v)
	}
	last := s.Last
	deleted := (v.afterGap() || p.reapplied) && p.wasDeleted(v) // others may have replaced it
	if deleted && !p.restarted && to > last && (len(steps) == 0 || p.isDeletedBefore(s.Name, v.UID, steps[0].Version)) {
		lost = append(lost, last) // one of them got the number
	}
	addLostBefore := func(revision int) {
		for r := max(last+1, revision-maxGap); r < revision; r++ {
			lost = append(lost, r)
		}
		last = revision
	}
	for i, k := range steps {
		addLostBefore(k.Revision)
		if v.afterGap() && (i < len(steps)-1 || k.Revision != to) {
			lost = append(lost, k.Revision)
		}
	}
	addLostBefore(to + 1)
	lost = slices.Compact(lost[max(0, len(lost)-maxGap):])
	if len(lost) == 0 && known && !deleted {
		return
	}
	p.emitGap(missed.gap(lost...))
}

// startRollout starts the rollout of a revision and ends the previous one. A recreated ReplicaSet continues the rollout
// of the deleted one, unless it has a higher number: then another ReplicaSet had the number in between.
func (p *step) startRollout(k Pending, v View, newest bool) {
	s := &p.s
	recreated := s.Key.Kind == Deployment && k.Name == s.Name && len(k.History) == 0
	s.TakenVersion = k.Version
	if k.Listed { // it has had the number for an unknown time
		defer func(observed events.Provenance) { p.provenance = observed }(p.provenance)
		p.provenance = events.ProvenanceReconstructed
	}
	if recreated && k.Revision <= s.Last {
		s.Last = k.Revision
		return
	}
	next := p.newRollout(k, v, newest)
	if s.InFlight() {
		p.endSuperseded(next, v)
	}
	if s.Blocked {
		s.Blocked = false
		s.UnblockedCount++
		f := p.workloadFact(events.FactUnblocked, p.at, timeObservation)
		f.Ordinal = s.UnblockedCount
		p.emit(f)
	}
	s.Rollout = next.Rollout
	s.Last, s.Name, s.Hash, s.Template = next.Revision, next.Name, next.Hash, next.Template
	f := p.rolloutFact(next.Rollout, events.FactStarted, next.StartedAt, next.source)
	f.ObservedAt = next.SeenAt
	p.emit(f)
	switch next.Change {
	case events.ChangeRolledBack:
		f.Fact = events.FactRolledBack
		p.emit(f)
	case events.ChangeRestarted:
		f.Fact = events.FactRestarted
		p.emit(f)
	default: // no further fact
	}
}

// endSuperseded ends the rollout in flight because another revision replaced it. The terminal fact is cancelled if the
// new template is the last completed one, else superseded. It is unknown if the rollout may have completed during a
// period without observations. next is nil if the new revision is unknown.
func (p *step) endSuperseded(next *rolloutStart, v View) {
	s := &p.s
	r := s.Rollout
	if missed, mayHaveEnded := p.unobserved(v); mayHaveEnded {
		at := v.At
		if next != nil {
			at = next.StartedAt
		}
		p.endUnknown(missed.gap(r.Revision), at)
		return
	}
	r.End = events.FactSuperseded
	at, source, seen, by := v.At, timeObservation, v.At, ""
	if next != nil {
		at, source, seen, by = next.StartedAt, next.source, next.SeenAt, next.ID
		if p.restoresCompleted(next.Rollout) {
			r.End = events.FactCancelled
		}
	}
	f := p.rolloutFact(r, r.End, at, source)
	f.ObservedAt = seen
	f.DurationMs = p.durationUntil(r, at)
	f.Rollout.SupersededBy = by
	f.Reason, f.Message = "Superseded", "another template took its place before it was complete"
	if r.End == events.FactCancelled {
		f.Reason, f.Message = "RolledBack", "it was taken back to the template that was complete before"
	}
	f.Counts = new(v.Counts)
	p.emit(f)
}

// restoresCompleted reports whether the rollout's template is the last completed one.
func (p *step) restoresCompleted(next *Rollout) bool {
	n := len(p.s.Completed)
	if n == 0 {
		return false
	}
	last := p.s.Completed[n-1]
	return next.Template.equals(last.Template) || next.Hash != "" && next.Hash == last.Hash ||
		next.Name != "" && next.Name == last.Name
}

// rolloutStart is a new rollout.
type rolloutStart struct {
	*Rollout

	source events.TimeSource // of StartedAt
}

// newRollout returns the rollout of a revision. It emits no fact.
func (p *step) newRollout(k Pending, v View, newest bool) *rolloutStart {
	s := &p.s
	counts := v.Counts
	if !newest || !v.isObserved() {
		counts.Updated = 0 // the status counts the pods of another template
	}
	r := &Rollout{
		ID: p.rolloutID(k), Revision: k.Revision, Name: k.Name, Hash: k.Hash, Strategy: v.Strategy, Labels: v.Labels,
		Annotations: v.Annotations,
		Provenance:  p.provenance, Replicas: counts.Desired, Newest: counts, Reported: counts, ReportedAt: v.At,
		ProgressAt: v.At, Version: v.Version, ObjectUID: k.UID, Best: progressOf(counts), BestAt: v.At,
	}
	if k.Listed && !v.afterGap() && s.Key.Kind == Deployment { // it may have completed before it was listed
		if o, found := p.outageBefore(k.SeenAt); found {
			r.Unobserved = &o.Unobserved
		}
	}
	r.Template = p.templateOf(k, v, newest)
	if newest && !v.afterGap() && !p.reapplied && (v.isObserved() || s.View == nil || s.View.Revision != v.Revision) {
		p.learn(k.Name, r.Template)
	}
	r.Previous = s.Template.Images
	if n := len(s.Completed); n > 0 && s.Completed[n-1].Template.known() {
		r.Previous = s.Completed[n-1].Template.Images
	}
	r.Change, r.OfRevision = p.classifyChange(k, r.Template)
	start := &rolloutStart{Rollout: r}
	p.setStart(start, k, v, newest)
	return start
}

// rolloutID returns the id of a new rollout. If its number is not higher than all before, the id says so: the same
// object may have had the number before.
func (p *step) rolloutID(k Pending) string {
	s := &p.s
	id := s.Key.ClusterUID + "/" + s.UID + "/"
	switch s.Key.Kind {
	case StatefulSet:
		id += k.Name + "/" + strconv.Itoa(k.Revision)
	case DaemonSet:
		id += strconv.Itoa(k.Revision)
	default:
		id += strconv.Itoa(k.Revision) + "/" + k.Hash
	}
	if k.Revision <= max(s.Highest, s.Last) {
		s.Repeats++
		id += "/e" + strconv.Itoa(s.Repeats)
	}
	s.Highest = max(s.Highest, k.Revision)
	return id
}

// classifyChange returns the kind of change that a rollout to the template makes. For a rollback, it also returns the
// revision that is restored.
func (p *step) classifyChange(k Pending, t Template) (events.Change, int) {
	s := &p.s
	if n := len(k.History); n > 0 {
		return events.ChangeRolledBack, k.History[n-1]
	}
	if k.Revision == 1 && s.Rollout == nil && len(s.Completed) == 0 {
		return events.ChangeCreated, 0
	}
	for _, c := range slices.Backward(s.Completed) {
		if t.equals(c.Template) && !t.equals(s.Template) {
			return events.ChangeRolledBack, c.Revision
		}
	}
	if t.known() && t.Digest == s.Template.Digest && t.RestartedAt != s.Template.RestartedAt {
		return events.ChangeRestarted, 0
	}
	for _, c := range slices.Backward(s.Completed) {
		if t.known() && c.Template.known() && s.Template.known() &&
			slices.Equal(t.Images, c.Template.Images) && !slices.Equal(t.Images, s.Template.Images) {
			return events.ChangeRolledBack, c.Revision
		}
	}
	return events.ChangeUpdated, 0
}

// setStart sets when the rollout started. For a new object, this is its creation. For a reused object and for a
// DaemonSet, it is the change of the template. The same holds for strategy Recreate, because the new object is created
// only after the old pods are deleted.
func (p *step) setStart(r *rolloutStart, k Pending, v View, newest bool) {
	r.SeenAt = k.SeenAt
	written := r.Template.ChangedAt
	if !k.SeenAt.IsZero() && written.After(k.SeenAt) { // it was written again since
		written = time.Time{}
	}
	reused := len(k.History) > 0
	switch {
	case r.Strategy == recreate && p.s.Key.Kind == Deployment && newest && r.Template.SeenPaused &&
		!r.Template.SeenAt.IsZero():
		r.StartedAt, r.source, r.SeenAt = r.Template.SeenAt, timeObservation, r.Template.SeenAt
	case r.Strategy == recreate && p.s.Key.Kind == Deployment && newest && !written.IsZero():
		r.StartedAt, r.source = written, timeManagedFields
		if !reused && !k.CreatedAt.IsZero() && k.CreatedAt.Before(written) {
			r.StartedAt, r.source = k.CreatedAt, timeCreation
		}
		if seen := r.Template.SeenAt; !v.afterGap() && !seen.IsZero() && seen.Before(r.SeenAt) {
			r.SeenAt = seen
		}
	case !reused && !k.CreatedAt.IsZero():
		r.StartedAt, r.source = k.CreatedAt, timeCreation
	case newest && !written.IsZero():
		r.StartedAt, r.source = written, timeManagedFields
	case v.afterGap() && p.s.View != nil:
		r.StartedAt, r.source = p.s.View.At, timeObservation
	default:
		r.StartedAt, r.source = k.SeenAt, timeObservation
	}
	if v.afterGap() || r.SeenAt.IsZero() {
		r.SeenAt = later(r.SeenAt, v.At)
	}
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

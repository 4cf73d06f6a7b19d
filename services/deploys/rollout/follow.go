package rollout

import (
	"slices"
	"time"

	"lockstep.internal/schemas/gen/events"
)

// applyView applies a view as the newest one of the workload. After the timeout, it continues without the unknown
// revisions.
func (p *step) applyView(v View, timedOut bool) {
	s := &p.s
	p.at, p.provenance = v.At, events.ProvenanceObserved
	if v.afterGap() {
		p.provenance = events.ProvenanceReconstructed
	}
	created := s.View == nil && p.isCreated(v)
	if v.UID != s.UID {
		created = p.isCreated(v)
		p.before = s.View
		p.replaceObject(v)
	}
	p.before = s.View
	switch {
	case v.Unselected:
		p.unselectWorkload(v)
	case v.Deleted:
		p.deleteWorkload(v)
	case s.View == nil:
		p.applyFirstView(v, created, timedOut)
	default:
		p.applyNextView(v, timedOut)
	}
}

// isCreated reports whether the object of a first view was created after the watcher began to observe the cluster.
// Otherwise it is a baseline.
func (p *step) isCreated(v View) bool {
	s := &p.s
	switch {
	case v.UID == s.UID:
		return false // it is selected again
	case s.Present():
		return true // it replaces another object with this name
	case v.First:
		return v.HasBaseline
	default:
		return v.Observed == 0
	}
}

// replaceObject ends the previous object with this name. A watcher publishes its deletion before the versions of the
// new object. If the previous object is still present, its deletion was not observed, and the end of a rollout in
// flight is unknown.
func (p *step) replaceObject(v View) {
	s := &p.s
	if s.Present() {
		observed := p.provenance
		p.provenance = events.ProvenanceReconstructed
		deletion := v
		deletion.Absent = true
		p.endWorkload(deletion, "Replaced", "another "+s.Key.Kind+" took the name")
		p.provenance = observed
	}
	former := s.FormerUIDs
	if s.UID != "" {
		former = append(former, s.UID)
		p.dropRevisions(s.UID)
	}
	*s = State{
		Key: s.Key, Serial: s.Serial, Sequence: s.Sequence, AgentID: s.AgentID, Epoch: s.Epoch, Version: s.Version,
		Tombstone: s.Tombstone,
		Named:     s.Named,
		UID:       v.UID, FormerUIDs: former[max(0, len(former)-maxFormer):], Waiting: s.Waiting, WaitSince: s.WaitSince,
		Revisions: s.Revisions, Pending: s.Pending, Outages: s.Outages,
	}
}

// reasonDeleted is the reason of facts about an observed deletion.
const reasonDeleted = "Deleted"

// dropRevisions drops the revisions of a deleted object.
func (p *step) dropRevisions(uid string) {
	s := &p.s
	s.Revisions = slices.DeleteFunc(slices.Clone(s.Revisions), func(k Revision) bool { return k.WorkloadUID == uid })
	s.Pending = slices.DeleteFunc(s.Pending, func(k Pending) bool { return k.WorkloadUID == uid })
	if len(s.Revisions) == 0 {
		s.Revisions = nil
	}
	if len(s.Pending) == 0 {
		s.Pending = nil
	}
}

// deleteWorkload applies the deletion of the workload, or the begin of its deletion.
func (p *step) deleteWorkload(v View) {
	if !p.s.Present() {
		p.removeUnobserved(v)
		p.s.Gone = true
		return
	}
	reason, message := reasonDeleted, "the "+p.s.Key.Kind+" was deleted"
	if v.Absent {
		reason, message = "Absent", "the "+p.s.Key.Kind+" is not there any more"
	}
	p.endWorkload(v, reason, message)
	p.dropRevisions(p.s.UID)
}

// endWorkload emits the facts of a deletion and drops the view.
func (p *step) endWorkload(v View, reason, message string) {
	s := &p.s
	last := *s.View
	last.First, last.Skipped, last.Restored = false, false, false
	last.Template = Template{} // it may be that of any unprocessed revision
	at, source := v.At, timeObservation
	if !v.DeletedAt.IsZero() {
		at, source = v.DeletedAt, timeDeletion
	}
	p.dropWithdrawn()
	unprocessed, _ := p.pendingUpTo(last, len(s.Pending)-1)
	if s.InFlight() {
		unprocessed = p.startObserved(v, unprocessed, 0)
	}
	switch missed, mayHaveEnded := p.unobserved(v); {
	case v.afterGap():
		if !mayHaveEnded {
			missed = p.unobservedBefore(v)
		}
		gap := p.lostRevisions(missed, unprocessed)
		p.emitGap(gap)
		if mayHaveEnded {
			p.endUnknown(missed.gap(s.Rollout.Revision), at)
		}
	case mayHaveEnded:
		p.endUnknown(missed.gap(s.Rollout.Revision), at)
		fallthrough
	default:
		for _, k := range unprocessed {
			p.startRollout(k, last, false) // its controller had not written the status yet
		}
	}
	counts := s.View.Counts
	if s.InFlight() {
		s.Rollout.End = events.FactCancelled
		f := p.rolloutFact(s.Rollout, events.FactCancelled, at, source)
		f.Reason, f.Message, f.Counts, f.DurationMs = reason, message, &counts, p.durationUntil(s.Rollout, at)
		p.emit(f)
	} else {
		f := p.workloadFact(events.FactRemoved, at, source)
		f.Reason, f.Message, f.Counts = reason, message, &counts
		p.emit(f)
	}
	p.dropView()
	s.Gone = true
}

// lostRevisions returns a gap with the rollout in flight and the revisions that no view named before the workload was
// deleted or unselected. It names none if none is known: there may have been others.
func (p *step) lostRevisions(u Unobserved, unprocessed []Pending) events.Gap {
	gap := u.gap()
	if p.s.InFlight() {
		gap.Revisions = append(gap.Revisions, p.s.Rollout.Revision)
	}
	for _, k := range unprocessed {
		gap.Revisions = append(gap.Revisions, k.Revision)
	}
	return gap
}

// removeUnobserved reports the removal of a workload of which only revisions were observed. Those of a baseline have no
// facts.
func (p *step) removeUnobserved(v View) {
	s := &p.s
	if s.Gone || s.Unselected {
		return
	}
	revisions, _ := p.pendingUpTo(v, len(s.Pending)-1)
	revisions = slices.DeleteFunc(revisions, func(k Pending) bool { return k.Listed && !v.HasBaseline })
	defer p.dropRevisions(v.UID)
	if len(revisions) == 0 {
		return
	}
	v.Skipped = true
	gap := p.lostRevisions(p.unobservedBefore(v), revisions)
	if seen := revisions[0].SeenAt; seen.Before(gap.Since) {
		gap.Since = seen
	}
	p.emitGap(gap)
	f := p.workloadFact(events.FactRemoved, v.At, timeObservation)
	f.Reason, f.Message = reasonDeleted, "the "+s.Key.Kind+" was deleted"
	if v.Absent {
		f.Reason, f.Message = "Absent", "the "+s.Key.Kind+" is not there any more"
	}
	p.emit(f)
}

// dropView drops the view and the state that belongs to it. It keeps the fields that distinguish a reported rollout
// from a new one.
func (p *step) dropView() {
	s := &p.s
	s.View, s.Scaling, s.Templates, s.Pods, s.Blocked = nil, nil, nil, nil, false
}

// unselectWorkload applies that the watcher no longer follows the workload, which still exists. A rollout in flight
// ends as unknown.
func (p *step) unselectWorkload(v View) {
	s := &p.s
	if s.Present() {
		p.dropWithdrawn()
		unprocessed, _ := p.pendingUpTo(*s.View, len(s.Pending)-1)
		u := Unobserved{Since: s.View.At, Until: v.At, Cause: events.CauseUnselected}
		if gap := p.lostRevisions(u, unprocessed); len(gap.Revisions) > 0 {
			p.emitGap(gap)
		}
		if s.InFlight() {
			p.endUnknown(u.gap(s.Rollout.Revision), v.At)
		}
		p.dropView()
	}
	s.Unselected = true
}

// applyFirstView applies the first view of a new or returning workload, or of a baseline.
func (p *step) applyFirstView(v View, created, timedOut bool) {
	s := &p.s
	if !created && s.Key.Kind == DaemonSet && !v.isObserved() && v.Observed > 0 {
		s.UID = v.UID
		return // the counts belong to another template; the next view is the baseline
	}
	returned := s.UID == v.UID && (s.Gone || s.Unselected)
	previous := s.Last
	s.Gone, s.Unselected, s.UID = false, false, v.UID
	if !returned {
		s.Rollout, s.Completed, s.Last, s.Name, s.Hash, s.Template = nil, nil, 0, "", "", Template{}
		previous = 0
	}
	if created {
		p.recordTemplate(&v)
		s.View = &v
		if to, known := p.targetRevision(v); to > 0 {
			p.processRevisions(v, to, known, timedOut)
		}
		p.updateUnobserved(v)
		p.evaluate(v, v)
		return
	}
	p.recordTemplate(&v)
	to, _ := p.targetRevision(v)
	s.View, s.Generation = &v, v.Generation
	s.Unnumbered = false
	p.provenance = events.ProvenanceReconstructed
	inProgress := v.isInProgress(s.Key.Kind) && (!returned || to > previous)
	switch pending := p.findPending(v.UID, to); {
	case inProgress && to > 0 && (pending != nil || s.Key.Kind == DaemonSet):
		s.Last, s.Name, s.Hash, s.Template = to-1, "", "", Template{}
		p.processRevisions(v, to, true, true)
	case returned && to == previous && to > 0:
		p.dropPending(v, -1, to)
	default:
		p.baseline(v, to)
	}
	p.updateUnobserved(v)
	p.evaluate(v, v)
}

// baseline records the current state without emitting facts.
func (p *step) baseline(v View, to int) {
	s := &p.s
	s.Last, s.Name, s.Hash, s.Template, s.Generation = to, "", "", Template{}, v.Generation
	if s.Rollout != nil && s.Rollout.End != "" {
		s.Rollout = nil
	}
	s.TakenVersion = ""
	for _, r := range s.Revisions {
		if r.WorkloadUID == v.UID && r.Revision == to && !r.Deleted {
			s.Name, s.Hash, s.TakenVersion = r.Name, r.Hash, r.Since
		}
	}
	if s.Key.Kind == StatefulSet {
		s.Name, s.Unnumbered = v.Update, to == 0 && v.Update != ""
	}
	if v.isObserved() && !v.Paused && (v.Strategy != recreate || v.isComplete(s.Key.Kind)) {
		s.Template = v.Template
		p.recordCompleted(Finished{Revision: to, Name: s.Name, Hash: s.Hash, Template: v.Template})
	}
	p.dropPending(v, -1, to)
}

// recordCompleted appends a completed rollout.
func (p *step) recordCompleted(c Finished) {
	s := &p.s
	s.Completed = append(s.Completed, c)
	s.Completed = s.Completed[max(0, len(s.Completed)-maxCompleted):]
}

// applyNextView applies the next view of a present workload.
func (p *step) applyNextView(v View, timedOut bool) {
	s := &p.s
	before := *s.View
	if v.Restored && p.resetRestoredRevision(v) {
		s.View = nil
		p.applyFirstView(v, false, timedOut)
		return
	}
	p.recordTemplate(&v)
	to, known := p.targetRevision(v)
	namesUnknown := p.namesUnknownReplicaSet(v)
	p.advanceRevision(v, to, known, timedOut)
	if v.afterGap() {
		p.reportRenumbered(v, namesUnknown, s.Revisions...)
	}
	if v.Revision == s.Last && p.isShown(v, s.Name) {
		s.ShownVersion = v.Version
	}
	s.View = &v
	p.updateUnobserved(v)
	p.evaluate(before, v)
}

// advanceRevision processes the revisions up to the one that the view names, unless it is the last processed one.
func (p *step) advanceRevision(v View, to int, known, timedOut bool) {
	s := &p.s
	reissued := s.Key.Kind == Deployment && to <= s.Last && p.isContiguous(v, p.pendingIndex(v, to))
	switch {
	case !known && timedOut, known && to > s.Last && !p.annotationTooHigh(v), reissued:
		p.processRevisions(v, to, known, timedOut)
	case to > 0 && to < s.Last:
		p.restartRevisions(v, to, timedOut)
	case timedOut && to == s.Last && p.showsUnknownReplicaSet(v):
		p.restartAt(v, to)
	case timedOut && !p.isExplained(v) && v.Counts.Updated > 0: // no other ReplicaSet exists: it has this template
		s.Template = v.Template
		if s.InFlight() {
			s.Rollout.Template = v.Template
		}
	case timedOut && (p.mayNameUnknownRevision(v) || !p.isExplained(v)): // its controller created no revision
		s.Generation = v.Generation
	}
}

// reapplyView applies the newest view again after an observation of a revision for which it did not wait.
func (p *step) reapplyView(r Revision) {
	s := &p.s
	v := *s.View
	p.provenance, p.before = events.ProvenanceObserved, s.View
	if v.afterGap() {
		p.provenance, p.reapplied = events.ProvenanceReconstructed, true
		p.reportRenumbered(v, false, r)
	}
	missed := p.unobservedBefore(v)
	if o, found := p.outageBefore(v.At); found && p.reapplied {
		missed = o.Unobserved
	}
	v.First, v.Skipped, v.Restored = false, false, false
	to, known := p.targetRevision(v)
	last, sequence := s.Last, s.Sequence
	if !known {
		return
	}
	p.advanceRevision(v, to, true, false)
	if s.Last != last || s.Sequence != sequence {
		s.View = &v
		if p.reapplied && s.InFlight() && !p.isUnfinished(s.Rollout, v) {
			s.Rollout.Unobserved = &missed
		}
		p.evaluate(v, v)
	}
}

// resetRestoredRevision resets the revision state if the restored cluster has the workload at a lower revision than the
// last processed one. The rollout in flight then ends as unknown. It returns false if the revision is not lower.
func (p *step) resetRestoredRevision(v View) bool {
	s := &p.s
	to, known := p.targetRevision(v)
	if known && to >= s.Last {
		return false
	}
	if s.InFlight() {
		p.endUnknown(events.Gap{
			Revisions: []int{s.Rollout.Revision}, Since: s.View.At, Until: v.At,
			Cause: events.CauseClusterRestored,
		}, v.At)
	}
	s.Last, s.Rollout, s.Scaling, s.Templates = 0, nil, nil, nil
	return true
}

// restartRevisions handles revision numbers that restart at a lower value after all objects with higher numbers were
// deleted.
func (p *step) restartRevisions(v View, to int, timedOut bool) {
	s := &p.s
	if s.Key.Kind == DaemonSet {
		p.restartAt(v, to)
		return
	}
	if s.Key.Kind != Deployment {
		return
	}
	r, found := p.holder(v, to)
	deleted := !found && timedOut && !p.annotationCorrected(v) // objects with higher numbers were, which was not observed
	if deleted {
		r, found = p.newestHolder(v, to)
	}
	switch {
	case !found && deleted:
		p.restartAt(v, to)
		return
	case !found:
		return // a client edited the annotation; the controller corrects it
	}
	s.Pending = slices.DeleteFunc(s.Pending, func(k Pending) bool {
		return k.WorkloadUID == s.UID && compareVersions(k.Version, v.Version) < 0
	})
	k := pending(r)
	k.Revision, k.Version, k.Listed = to, v.Version, v.afterGap()
	k.SeenAt, k.CreatedAt = v.At, time.Time{} // only the view shows that it is used again
	if r.Revision != to {                     // it has got a higher number since
		k.History = nil
	}
	p.startRollouts(v, []Pending{k}, to, true)
	for _, r := range s.Revisions { // numbers that seemed to be processed before
		isLater := compareVersions(r.Since, v.Version) > 0 || v.afterGap() && r.Listed && !r.SeenAt.Before(v.At)
		if r.WorkloadUID == s.UID && r.Revision > to && isLater {
			p.addPending(r)
		}
	}
}

// restartAt processes the view's revision although its number is not above the last one.
func (p *step) restartAt(v View, to int) {
	p.s.Last, p.restarted = to-1, true
	p.processRevisions(v, to, true, true)
	p.restarted = false
}

// newestHolder returns the newest object that had the revision number at the view and that the view may show. One that
// was only listed later, or has a higher number since, may have had it.
func (p *step) newestHolder(v View, revision int) (Revision, bool) {
	var newest, later Revision
	for _, r := range p.s.Revisions {
		isDeleted := r.Deleted && compareVersions(r.Version, v.Version) < 0
		isBefore := r.Revision == revision && compareVersions(r.Since, v.Version) < 0
		isLater := r.Revision == revision && r.Listed || slices.Contains(r.History, revision)
		switch {
		case r.WorkloadUID != p.s.UID, isDeleted, !p.mayShow(v, r.Name):
		case isBefore && compareVersions(r.Version, newest.Version) > 0:
			newest = r
		case isLater && compareVersions(r.Version, later.Version) > 0:
			later = r
		}
	}
	if newest.UID == "" {
		newest = later
	}
	return newest, newest.UID != ""
}

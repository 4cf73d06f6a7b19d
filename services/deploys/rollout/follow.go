package rollout

import (
	"slices"

	"lockstep.internal/schemas/gen/events"
)

// applyView applies a view as the newest one of the workload. After the timeout, it does without unknown revisions.
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
		p.startFollowing(v, created, timedOut)
	default:
		p.applyNextView(v, timedOut)
	}
}

// isCreated reports whether the workload of a view that is not followed yet was created since the observation began,
// and did not exist before.
func (p *step) isCreated(v View) bool {
	s := &p.s
	switch {
	case v.UID == s.UID:
		return false // it is followed again
	case s.Present():
		return true // another object had the name until now
	case v.First:
		return v.Known
	default:
		return v.Observed == 0
	}
}

// replaceObject ends the workload that had the name before. A watcher publishes the deletion before the versions of the
// successor. If the deletion is missing, nobody observed it: the end of a rollout in flight is unknown.
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
		UID:       v.UID, FormerUIDs: former[max(0, len(former)-maxFormer):], Waiting: s.Waiting, WaitSince: s.WaitSince,
		Revisions: s.Revisions, Pending: s.Pending,
	}
}

// dropRevisions drops the revisions of a deleted workload.
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

// deleteWorkload applies a deletion, or its begin.
func (p *step) deleteWorkload(v View) {
	if !p.s.Present() {
		p.s.Gone = true
		return
	}
	reason, message := "Deleted", "the "+p.s.Key.Kind+" was deleted"
	if v.Absent {
		reason, message = "Absent", "the "+p.s.Key.Kind+" is not there any more"
	}
	p.endWorkload(v, reason, message)
	p.dropRevisions(p.s.UID)
}

// endWorkload emits the facts of a deletion and stops following.
func (p *step) endWorkload(v View, reason, message string) {
	s := &p.s
	last := *s.View
	last.First, last.Skipped, last.Restored = false, false, false
	at, source := v.At, timeObservation
	if !v.DeletedAt.IsZero() {
		at, source = v.DeletedAt, timeDeletion
	}
	if missed, is := p.unobserved(v); is { // it may have completed before
		gap := missed.gap(s.Rollout.Revision)
		p.emitGap(gap)
		p.endUnknown(gap, at)
	}
	if begun, _ := p.pendingUpTo(last, len(s.Pending)-1); !v.afterGap() {
		for _, k := range begun {
			p.startRollout(k, last, false) // its controller had no time to write the status
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
	p.stopFollowing()
	s.Gone = true
}

// stopFollowing drops the view. It keeps what distinguishes a reported rollout from a new one.
func (p *step) stopFollowing() {
	s := &p.s
	s.View, s.Scaling, s.Templates, s.Blocked = nil, nil, nil, false
}

// unselectWorkload stops following a workload that still exists. The end of a rollout in flight remains unknown.
func (p *step) unselectWorkload(v View) {
	s := &p.s
	if s.Present() && s.InFlight() {
		gap := events.Gap{Revisions: []int{s.Rollout.Revision}, Since: s.View.At, Until: v.At, Cause: events.CauseUnselected}
		p.emitGap(gap)
		p.endUnknown(gap, v.At)
	}
	if s.Present() {
		p.stopFollowing()
	}
	s.Unselected = true
}

// startFollowing begins to follow a workload.
func (p *step) startFollowing(v View, created, timedOut bool) {
	s := &p.s
	if !created && s.Key.Kind == DaemonSet && !v.isObserved() && v.Observed > 0 {
		s.UID = v.UID
		return // the counts belong to another template; the next view is the baseline
	}
	back := s.UID == v.UID && (s.Gone || s.Unselected)
	previous := s.Last
	s.Gone, s.Unselected, s.UID = false, false, v.UID
	if !back {
		s.Rollout, s.Completed, s.Last, s.Name, s.Hash, s.Template = nil, nil, 0, "", "", Template{}
		previous = 0
	}
	if created {
		p.recordTemplate(&v)
		s.View = &v
		if to, known := p.targetRevision(v); to > 0 {
			p.catchUp(v, to, known, timedOut)
		}
		p.updateUnobserved(v)
		p.evaluate(v, v)
		return
	}
	p.recordTemplate(&v)
	to, known := p.targetRevision(v)
	if back && known && to < previous {
		s.RevisionEpoch++ // they began reissued
	}
	s.View, s.Generation = &v, v.Generation
	s.Unnumbered = false
	p.provenance = events.ProvenanceReconstructed
	inProgress := v.isInProgress(s.Key.Kind) && (!back || to > previous)
	switch pending := p.findPending(v.UID, to); {
	case inProgress && to > 0 && (pending != nil || s.Key.Kind == DaemonSet):
		s.Last, s.Name, s.Hash, s.Template = to-1, "", "", Template{}
		p.catchUp(v, to, true, true)
	case back && to == previous && to > 0:
		p.dropPending(v.UID, -1, to)
	default:
		p.baseline(v, to)
	}
	p.updateUnobserved(v)
	p.evaluate(v, v)
}

// baseline takes what is there as it is, in silence.
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
	p.dropPending(v.UID, -1, to)
}

// recordCompleted appends a completed rollout.
func (p *step) recordCompleted(c Finished) {
	s := &p.s
	s.Completed = append(s.Completed, c)
	s.Completed = s.Completed[max(0, len(s.Completed)-maxCompleted):]
}

// applyNextView applies the next view of a followed workload.
func (p *step) applyNextView(v View, timedOut bool) {
	s := &p.s
	before := *s.View
	if v.Restored && p.revisionRestored(v) {
		s.View = nil
		p.startFollowing(v, false, timedOut)
		return
	}
	p.recordTemplate(&v)
	to, known := p.targetRevision(v)
	p.advanceRevision(v, to, known, timedOut)
	s.View = &v
	p.updateUnobserved(v)
	p.evaluate(before, v)
}

// advanceRevision advances to the revision that the view names, unless it is the last one.
func (p *step) advanceRevision(v View, to int, known, timedOut bool) {
	s := &p.s
	reissued := s.Key.Kind == Deployment && to <= s.Last && p.isContiguous(v, p.pendingIndex(v, to))
	switch {
	case !known && timedOut, known && to > s.Last && !p.annotationTooHigh(v), reissued:
		p.catchUp(v, to, known, timedOut)
	case to > 0 && to < s.Last:
		p.restartRevisions(v, to, timedOut)
	case timedOut && p.hasUnknownReplicaSet(v): // no other ReplicaSet exists: the template was misattributed
		s.Template = v.Template
		if s.InFlight() {
			s.Rollout.Template = v.Template
		}
	}
}

// reapplyView applies the newest view again, because a revision became known for which it did not wait.
func (p *step) reapplyView() {
	s := &p.s
	v := *s.View
	p.provenance, p.before = events.ProvenanceObserved, s.View
	v.First, v.Skipped, v.Restored = false, false, false
	to, known := p.targetRevision(v)
	last, epoch := s.Last, s.RevisionEpoch
	if !known {
		return
	}
	p.advanceRevision(v, to, true, false)
	if s.Last != last || s.RevisionEpoch != epoch {
		s.View = &v
		p.evaluate(v, v)
	}
}

// revisionRestored reports whether the restored store of the cluster has the workload at a revision that cannot follow
// the known one. The rollout in flight then ends as unknown.
func (p *step) revisionRestored(v View) bool {
	s := &p.s
	to, known := p.targetRevision(v)
	if known && to >= s.Last {
		return false
	}
	if s.InFlight() {
		gap := events.Gap{
			Revisions: []int{s.Rollout.Revision}, Since: s.View.At, Until: v.At,
			Cause: events.CauseClusterRestored,
		}
		p.emitGap(gap)
		p.endUnknown(gap, v.At)
	}
	s.RevisionEpoch++
	s.Last, s.Rollout, s.Scaling, s.Templates = 0, nil, nil, nil
	return true
}

// restartRevisions follows revision numbers that start again because all objects with higher numbers are gone.
func (p *step) restartRevisions(v View, to int, timedOut bool) {
	s := &p.s
	if s.Key.Kind == DaemonSet {
		s.RevisionEpoch++
		s.Last = to - 1
		p.catchUp(v, to, true, true)
		return
	}
	if s.Key.Kind != Deployment {
		return
	}
	r, there := p.holder(v, to)
	if !there && timedOut && !p.annotationCorrected(v) { // objects deleted unobserved still count as existing
		r, there = p.newestHolder(to)
	}
	if !there {
		return // somebody edited the annotation; the controller will correct it
	}
	s.Pending = slices.DeleteFunc(s.Pending, func(k Pending) bool {
		return k.WorkloadUID == s.UID && compareVersions(k.Version, v.Version) < 0
	})
	k := pending(r)
	k.Revision, k.Version = to, v.Version
	if r.Revision != to { // it took the next number meanwhile
		k.History = nil
	}
	p.adoptAll(v, []Pending{k}, to, true)
}

// newestHolder returns the newest object that has the revision.
func (p *step) newestHolder(revision int) (Revision, bool) {
	var of Revision
	for _, r := range p.s.Revisions {
		if r.WorkloadUID == p.s.UID && r.Revision == revision && !r.Deleted && compareVersions(r.Version, of.Version) > 0 {
			of = r
		}
	}
	return of, of.UID != ""
}

// recordTemplate records the template of the view and since when it could take effect.
func (p *step) recordTemplate(v *View) {
	s := &p.s
	if !v.Template.known() {
		return
	}
	if n := len(s.Templates); n > 0 && s.Templates[n-1].Template.equals(v.Template) {
		last := &s.Templates[n-1].Template
		if last.SeenAt.IsZero() && !v.Template.SeenAt.IsZero() {
			s.Templates = slices.Clone(s.Templates)
			last = &s.Templates[n-1].Template
			last.SeenAt = v.Template.SeenAt
		}
		v.Template.SeenAt, v.Template.SeenPaused = last.SeenAt, last.SeenPaused
		return
	}
	s.Templates = append(s.Templates, SeenTemplate{Generation: v.Generation, Template: v.Template})
	s.Templates = s.Templates[max(0, len(s.Templates)-maxTemplates):]
}

// templateAt returns the observed template of a generation.
func (p *step) templateAt(generation int) Template {
	var at Template
	for _, seen := range p.s.Templates {
		if seen.Generation <= generation {
			at = seen.Template
		}
	}
	return at
}

// skippedTemplate returns a template that was observed after the accounted one and before the newest; the unknown
// template if there was none.
func (p *step) skippedTemplate(newest Template) Template {
	var at Template
	for _, seen := range p.s.Templates {
		if seen.Generation > p.s.Generation && !seen.Template.equals(newest) && !seen.Template.equals(p.s.Template) {
			at = seen.Template
		}
	}
	return at
}

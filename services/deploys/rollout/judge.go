package rollout

import (
	"slices"

	"lockstep.internal/schemas/gen/events"
)

// judge takes a view as the newest of the workload. An impatient judgement does without revisions that nobody has told.
func (p *step) judge(v View, impatient bool) {
	s := &p.s
	p.at, p.provenance = v.At, events.ProvenanceObserved
	if v.blind() {
		p.provenance = events.ProvenanceReconstructed
	}
	created := s.View == nil && p.created(v)
	if v.UID != s.UID {
		created = p.created(v)
		p.before = s.View
		p.replace(v)
	}
	p.before = s.View
	switch {
	case v.Unselected:
		p.unselect(v)
	case v.Deleted:
		p.remove(v)
	case s.View == nil:
		p.arrive(v, created, impatient)
	default:
		p.follow(v, impatient)
	}
}

// created says of a view of something that is not followed yet that it was made since we look, rather than that it was there before.
func (p *step) created(v View) bool {
	s := &p.s
	switch {
	case v.UID == s.UID:
		return false // it is back among those that are followed
	case s.Present():
		return true // the name was taken until now
	case v.First:
		return v.Known
	default:
		return v.Observed == 0
	}
}

// replace ends the workload that had the name before. A watcher publishes the deletion before the versions of the successor. If the deletion is missing, no watcher
// saw it, and how a rollout in flight ended is unknown: a new leader may publish a change of the successor before its first full resync ends.
func (p *step) replace(v View) {
	s := &p.s
	if s.Present() {
		observed := p.provenance
		p.provenance = events.ProvenanceReconstructed
		deletion := v
		deletion.Absent = true
		p.end(deletion, "Replaced", "another "+s.Key.Kind+" took the name")
		p.provenance = observed
	}
	former := s.Former
	if s.UID != "" {
		former = append(former, s.UID)
		p.forget(s.UID)
	}
	*s = State{
		Key: s.Key, Serial: s.Serial, Sequence: s.Sequence, AgentID: s.AgentID, Epoch: s.Epoch, Version: s.Version, Tombstone: s.Tombstone,
		UID: v.UID, Former: former[max(0, len(former)-maxFormer):], Waiting: s.Waiting, WaitSince: s.WaitSince,
		Revisions: s.Revisions, Pending: s.Pending,
	}
}

// forget the revisions of a workload that is gone.
func (p *step) forget(uid string) {
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

// remove the workload: it is deleted, or being deleted.
func (p *step) remove(v View) {
	if !p.s.Present() {
		p.s.Gone = true
		return
	}
	reason, message := "Deleted", "the "+p.s.Key.Kind+" was deleted"
	if v.Absent {
		reason, message = "Absent", "the "+p.s.Key.Kind+" is not there any more"
	}
	p.end(v, reason, message)
	p.forget(p.s.UID)
}

// end tells what a deletion means, and stops following.
func (p *step) end(v View, reason, message string) {
	s := &p.s
	last := *s.View
	last.First, last.Skipped, last.Restored = false, false, false
	at, source := v.At, timeObservation
	if !v.DeletedAt.IsZero() {
		at, source = v.DeletedAt, timeDeletion
	}
	if unseen, is := p.unseen(v); is { // it may well have been completed before
		gap := unseen.gap(s.Rollout.Revision)
		p.gap(gap)
		p.unknown(gap, at)
	}
	if begun, _ := p.turns(last, len(s.Pending)-1); !v.blind() {
		for _, k := range begun {
			p.adopt(k, last, false) // by its controller, which had no time to tell
		}
	}
	counts := s.View.Counts
	if s.InFlight() {
		s.Rollout.End = events.FactCancelled
		f := p.about(s.Rollout, events.FactCancelled, at, source)
		f.Reason, f.Message, f.Counts, f.DurationMs = reason, message, &counts, p.duration(s.Rollout, at)
		p.tell(f)
	} else {
		f := p.plain(events.FactRemoved, at, source)
		f.Reason, f.Message, f.Counts = reason, message, &counts
		p.tell(f)
	}
	p.leave()
	s.Gone = true
}

// leave stops following, and keeps what tells a rollout that was told from a new one.
func (p *step) leave() {
	s := &p.s
	s.View, s.Scaling, s.Templates, s.Blocked = nil, nil, nil, false
}

// unselect stops following what is still there. How a rollout in flight will end is not known then.
func (p *step) unselect(v View) {
	s := &p.s
	if s.Present() && s.InFlight() {
		gap := events.Gap{Revisions: []int{s.Rollout.Revision}, Since: s.View.At, Until: v.At, Cause: events.CauseUnselected}
		p.gap(gap)
		p.unknown(gap, v.At)
	}
	if s.Present() {
		p.leave()
	}
	s.Unselected = true
}

// arrive begins to follow.
func (p *step) arrive(v View, created, impatient bool) {
	s := &p.s
	if !created && s.Key.Kind == DaemonSet && !v.current() && v.Observed > 0 {
		s.UID = v.UID
		return // its counts are those of another template: the next one tells what the baseline is
	}
	back := s.UID == v.UID && (s.Gone || s.Unselected)
	told := s.Last
	s.Gone, s.Unselected, s.UID = false, false, v.UID
	if !back {
		s.Rollout, s.Completed, s.Last, s.Name, s.Hash, s.Template = nil, nil, 0, "", "", Template{}
		told = 0
	}
	if created {
		p.see(&v)
		s.View = &v
		if to, known := p.target(v); to > 0 {
			p.catchUp(v, to, known, impatient)
		}
		p.doubt(v)
		p.weigh(v, v)
		return
	}
	p.see(&v)
	to, known := p.target(v)
	if back && known && to < told {
		s.RevisionEpoch++ // they began anew
	}
	s.View, s.Generation = &v, v.Generation
	s.Unnumbered = false
	p.provenance = events.ProvenanceReconstructed
	underway := v.underway(s.Key.Kind) && (!back || to > told)
	switch pending := p.find(v.UID, to); {
	case underway && to > 0 && (pending != nil || s.Key.Kind == DaemonSet):
		s.Last, s.Name, s.Hash, s.Template = to-1, "", "", Template{}
		p.catchUp(v, to, true, true)
	case back && to == told && to > 0:
		p.settle(v.UID, -1, to)
	default:
		p.baseline(v, to)
	}
	p.doubt(v)
	p.weigh(v, v)
}

// baseline takes what is there as it is, in silence.
func (p *step) baseline(v View, to int) {
	s := &p.s
	s.Last, s.Name, s.Hash, s.Template, s.Generation = to, "", "", Template{}, v.Generation
	if s.Rollout != nil && s.Rollout.End != "" {
		s.Rollout = nil
	}
	s.Taken = ""
	for _, r := range s.Revisions {
		if r.WorkloadUID == v.UID && r.Revision == to && !r.Deleted {
			s.Name, s.Hash, s.Taken = r.Name, r.Hash, r.Since
		}
	}
	if s.Key.Kind == StatefulSet {
		s.Name, s.Unnumbered = v.Update, to == 0 && v.Update != ""
	}
	if v.current() && !v.Paused && (v.Strategy != recreate || v.complete(s.Key.Kind)) {
		s.Template = v.Template
		p.complete(Finished{Revision: to, Name: s.Name, Hash: s.Hash, Template: v.Template})
	}
	p.settle(v.UID, -1, to)
}

func (p *step) complete(c Finished) {
	s := &p.s
	s.Completed = append(s.Completed, c)
	s.Completed = s.Completed[max(0, len(s.Completed)-maxCompleted):]
}

// follow judges the next view of what is followed.
func (p *step) follow(v View, impatient bool) {
	s := &p.s
	before := *s.View
	if v.Restored && p.rewound(v) {
		s.View = nil
		p.arrive(v, false, impatient)
		return
	}
	p.see(&v)
	to, known := p.target(v)
	p.turn(v, to, known, impatient)
	s.View = &v
	p.doubt(v)
	p.weigh(before, v)
}

// turn to the revision that the view speaks of, if that is another one than the last that is accounted for.
func (p *step) turn(v View, to int, known, impatient bool) {
	s := &p.s
	anew := s.Key.Kind == Deployment && to <= s.Last && p.whole(v, p.heading(v, to))
	switch {
	case !known && impatient, known && to > s.Last && !p.overtaken(v), anew:
		p.catchUp(v, to, known, impatient)
	case to > 0 && to < s.Last:
		p.regress(v, to, impatient)
	case impatient && p.unclear(v): // no other ReplicaSet: the template was taken for another
		s.Template = v.Template
		if s.InFlight() {
			s.Rollout.Template = v.Template
		}
	}
}

// reconsider judges the newest view once more, now that a revision is known that it did not wait for.
func (p *step) reconsider() {
	s := &p.s
	v := *s.View
	p.provenance, p.before = events.ProvenanceObserved, s.View
	v.First, v.Skipped, v.Restored = false, false, false
	to, known := p.target(v)
	last, epoch := s.Last, s.RevisionEpoch
	if !known {
		return
	}
	p.turn(v, to, true, false)
	if s.Last != last || s.RevisionEpoch != epoch {
		s.View = &v
		p.weigh(v, v)
	}
}

// rewound says that the cluster's restored store holds the workload at a revision that cannot follow the one known; what was in flight then has an
// end that nobody will know.
func (p *step) rewound(v View) bool {
	s := &p.s
	to, known := p.target(v)
	if known && to >= s.Last {
		return false
	}
	if s.InFlight() {
		gap := events.Gap{Revisions: []int{s.Rollout.Revision}, Since: s.View.At, Until: v.At, Cause: events.CauseClusterRestored}
		p.gap(gap)
		p.unknown(gap, v.At)
	}
	s.RevisionEpoch++
	s.Last, s.Rollout, s.Scaling, s.Templates = 0, nil, nil, nil
	return true
}

// regress follows revisions that began anew: every object that bore a higher one is gone.
func (p *step) regress(v View, to int, impatient bool) {
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
	r, there := p.keeper(v, to)
	if !there && impatient && !p.corrected(v) { // objects that went away unseen are still taken for there
		r, there = p.bearer(to)
	}
	if !there {
		return // somebody wrote the annotation; the controller puts it right
	}
	s.Pending = slices.DeleteFunc(s.Pending, func(k Pending) bool { return k.WorkloadUID == s.UID && compareVersions(k.Version, v.Version) < 0 })
	k := pending(r)
	k.Revision, k.Version = to, v.Version
	if r.Revision != to { // it took the next one meanwhile
		k.History = nil
	}
	p.take(v, []Pending{k}, to, true)
}

// bearer of the revision that was seen last.
func (p *step) bearer(revision int) (Revision, bool) {
	var of Revision
	for _, r := range p.s.Revisions {
		if r.WorkloadUID == p.s.UID && r.Revision == revision && !r.Deleted && compareVersions(r.Version, of.Version) > 0 {
			of = r
		}
	}
	return of, of.UID != ""
}

// see remembers the view's template, and since when it could take effect.
func (p *step) see(v *View) {
	s := &p.s
	if !v.Template.known() {
		return
	}
	if n := len(s.Templates); n > 0 && s.Templates[n-1].Template.same(v.Template) {
		last := &s.Templates[n-1].Template
		if last.SeenAt.IsZero() && !v.Template.SeenAt.IsZero() {
			s.Templates = slices.Clone(s.Templates)
			last = &s.Templates[n-1].Template
			last.SeenAt = v.Template.SeenAt
		}
		v.Template.SeenAt, v.Template.Held = last.SeenAt, last.Held
		return
	}
	s.Templates = append(s.Templates, SeenTemplate{Generation: v.Generation, Template: v.Template})
	s.Templates = s.Templates[max(0, len(s.Templates)-maxTemplates):]
}

// templateAt is the template that the workload had at a generation, as far as it was seen.
func (p *step) templateAt(generation int) Template {
	var at Template
	for _, seen := range p.s.Templates {
		if seen.Generation <= generation {
			at = seen.Template
		}
	}
	return at
}

// between is a template that was seen after the one that is accounted for and before the newest, the unknown one if there was none.
func (p *step) between(newest Template) Template {
	var at Template
	for _, seen := range p.s.Templates {
		if seen.Generation > p.s.Generation && !seen.Template.same(newest) && !seen.Template.same(p.s.Template) {
			at = seen.Template
		}
	}
	return at
}

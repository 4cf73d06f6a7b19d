package rollout

import (
	"slices"
	"time"

	"lockstep.internal/schemas/gen/events"
)

// patience with revisions that the workload speaks of and nobody has told: from the first tick on, by ticks.
const patience = 30 * time.Second

// Advance takes one input into account and gives the facts that follow from it, in the order in which they are to be told, numbered by the state's
// sequence. The state given is not changed. Where nothing was learnt the state is given back as it is, with the same serial.
func Advance(s State, in Input) (State, []events.DeployFact) {
	p := &step{s: s, at: clean(in.ObservedAt), provenance: events.ProvenanceObserved}
	var changed bool
	switch {
	case in.Workload != nil:
		changed = p.workload(in)
	case in.Revision != nil:
		changed = p.revision(in)
	case in.Absence != nil:
		changed = p.absence(in)
	case in.Released:
		changed = p.release()
	default:
		changed = p.tick(in)
	}
	if !changed {
		return s, nil
	}
	p.s.Serial++
	p.s.At = clean(in.ObservedAt)
	return p.s, p.facts
}

// step is one application of an input.
type step struct {
	s          State // a clone once it is changed
	facts      []events.DeployFact
	at         time.Time // observed_at of what is judged
	provenance events.Provenance
	before     *View // of the same object, judged before the one that is judged
}

func (p *step) workload(in Input) bool {
	s, w := p.s, in.Workload
	key := Key{ClusterUID: w.Object.ClusterUID, Namespace: w.Object.Namespace, Kind: string(w.Kind), Name: w.Object.Name}
	if key != s.Key || w.Object.UID == "" || !wellFormed(w.Object.ResourceVersion) || in.Epoch < s.Epoch || slices.Contains(s.Former, w.Object.UID) {
		return false
	}
	tombstone := w.Object.Verb == events.VerbDeleted
	missed := false
	if in.Epoch == s.Epoch && s.Version != "" {
		order := compareVersions(w.Object.ResourceVersion, s.Version)
		again := s.Unselected && !tombstone && (w.Object.FirstSeen || w.Object.UpdateType == events.UpdateTypeFull)
		if order < 0 || order == 0 && (tombstone == s.Tombstone || s.Tombstone && !again) {
			return false
		}
		missed = order == 0 && tombstone && !w.Unselected // a deletion has a version of its own, where it was seen
	}
	p.s = s.clone()
	if in.Epoch > s.Epoch {
		p.restore(in.Epoch)
	}
	p.s.AgentID = in.AgentID
	p.s.Version, p.s.Tombstone = w.Object.ResourceVersion, tombstone
	v := viewOf(in)
	v.Skipped = v.Skipped || missed
	v.Restored, p.s.Restored = p.s.Restored, false
	p.enqueue(v)
	p.drain(false)
	return true
}

// restore begins a new epoch of the cluster's resource versions: what was known of objects may never have been.
func (p *step) restore(epoch int) {
	s := &p.s
	s.Restored = s.Version != ""
	s.Epoch, s.Version, s.Tombstone = epoch, "", false
	s.Revisions, s.Pending, s.Taken = nil, nil, ""
}

func (p *step) absence(in Input) bool {
	s := p.s
	if in.AgentID != s.AgentID || in.Epoch != s.Epoch || s.Tombstone || s.Version == "" || !wellFormed(in.Absence.ListVersion) ||
		compareVersions(s.Version, in.Absence.ListVersion) > 0 {
		return false
	}
	p.s = s.clone()
	p.s.Tombstone = true
	uid := s.UID
	if n := len(s.Waiting); n > 0 {
		uid = s.Waiting[n-1].UID
	}
	p.enqueue(View{UID: uid, At: clean(in.ObservedAt), Deleted: !in.Absence.Unselected, Unselected: in.Absence.Unselected, Absent: true})
	p.drain(false)
	return true
}

func (p *step) tick(in Input) bool {
	wake := p.s.Wake()
	if wake.IsZero() || p.at.Before(wake) {
		return false
	}
	p.s = p.s.clone()
	if len(p.s.Waiting) > 0 {
		if p.s.WaitSince.IsZero() {
			p.s.WaitSince = p.at
		} else if !p.at.Before(p.s.WaitSince.Add(patience)) {
			p.drain(true)
		}
	}
	p.at, p.provenance = clean(in.ObservedAt), events.ProvenanceObserved
	p.overdue()
	p.progress(true)
	return true
}

// Wake is when a tick would matter, the zero time if none would before another observation. Ticks before it change nothing.
func (s State) Wake() time.Time {
	var wake time.Time
	sooner := func(t time.Time) {
		if wake.IsZero() || t.Before(wake) {
			wake = t
		}
	}
	if n := len(s.Waiting); n > 0 {
		if s.WaitSince.IsZero() {
			sooner(s.Waiting[0].At)
		} else {
			sooner(s.WaitSince.Add(patience))
		}
	}
	if s.InFlight() && s.View != nil {
		if s.Rollout.Owed {
			sooner(s.Rollout.ToldAt.Add(throttle))
		}
		if deadline, ok := s.deadline(); ok {
			sooner(deadline)
		}
	}
	return wake
}

// enqueue puts a view behind those that wait.
func (p *step) enqueue(v View) {
	s := &p.s
	if n := len(s.Waiting); n > 0 && s.Waiting[n-1].alike(v, s.Key.Kind) {
		older := s.Waiting[n-1]
		v.First, v.Skipped, v.Restored, v.Known, v.Heard = older.First, older.Skipped, older.Restored, older.Known, older.Heard
		if v.Template.same(older.Template) {
			v.Template.SeenAt, v.Template.Held = older.Template.SeenAt, older.Template.Held
		}
		s.Waiting[n-1] = v
		return
	}
	s.Waiting = append(s.Waiting, v)
	if len(s.Waiting) > maxWaiting {
		s.Waiting = slices.Delete(s.Waiting, 1, 2)
		s.Waiting[1].Skipped = true
	}
}

// drain judges the views that wait, as far as what they speak of is known, or all of them when patience is over.
func (p *step) drain(impatient bool) {
	s := &p.s
	for len(s.Waiting) > 0 && (impatient || p.ready(s.Waiting[0]) || p.foreign(s.Waiting[0])) {
		v, foreign := s.Waiting[0], p.foreign(s.Waiting[0])
		s.Waiting = slices.Delete(s.Waiting, 0, 1)
		if foreign {
			next := &s.Waiting[0]
			next.First, next.Skipped, next.Restored = next.First || v.First, next.Skipped || v.Skipped, next.Restored || v.Restored
			next.Known = next.Known || v.Known
			continue
		}
		p.judge(v, impatient)
	}
	if len(s.Waiting) == 0 {
		s.Waiting, s.WaitSince = nil, time.Time{}
	}
}

// foreign says that the view, the first of those that wait, names a ControllerRevision that its StatefulSet never had: a controller that was late wrote the status
// of the object that bore the name before. The revisions are all known by which a later view was reached.
func (p *step) foreign(v View) bool {
	s := &p.s
	if s.Key.Kind != StatefulSet || v.Deleted || v.Unselected || v.UID != s.UID || s.View == nil {
		return false
	}
	if _, known := p.target(v); known {
		return false
	}
	return slices.ContainsFunc(s.Waiting[1:], func(w View) bool {
		to, known := p.target(w)
		return w.UID == v.UID && known && to > s.Last && p.whole(w, p.heading(w, to))
	})
}

// ready says whether every revision that the view speaks of is known.
func (p *step) ready(v View) bool {
	s := &p.s
	if s.Key.Kind == DaemonSet || v.Deleted || v.Unselected {
		return true
	}
	if (v.UID != s.UID || s.View == nil) && !p.created(v) {
		return p.baselineReady(v)
	}
	to, known := p.target(v)
	last, _ := p.accounted(v.UID)
	at := p.heading(v, to)
	switch {
	case !known, to == s.Last && p.renumbered(v), p.stranger(v):
		return false
	case at >= 0 && (to > last || s.Key.Kind == Deployment):
		return p.whole(v, at)
	case to > last:
		return p.overtaken(v)
	case to == last:
		return !p.unclear(v)
	default:
		_, kept := p.keeper(v, to)
		return to == 0 || s.Key.Kind != Deployment || kept || p.corrected(v)
	}
}

func (p *step) baselineReady(v View) bool {
	to, known := p.target(v)
	if p.s.Key.Kind == StatefulSet {
		return known
	}
	accounted := v.UID == p.s.UID && (p.s.Gone || p.s.Unselected) && to <= p.s.Last // it is back, and nothing is to be told of it
	return to == 0 || accounted || !v.underway(p.s.Key.Kind) || p.find(v.UID, to) != nil
}

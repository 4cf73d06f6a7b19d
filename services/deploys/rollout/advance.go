package rollout

import (
	"slices"
	"time"

	"lockstep.internal/schemas/gen/events"
)

// revisionTimeout is the maximum time that a view waits for an unknown revision, counted from the first tick.
const revisionTimeout = 30 * time.Second

// Advance applies one input. It returns the new state and the facts, in the order of publication and numbered by the
// state's sequence. It does not change s. If the input has no effect, it returns s itself.
func Advance(s State, in Input) (State, []events.DeployFact) {
	p := &step{s: s, at: normalizeTime(in.ObservedAt), provenance: events.ProvenanceObserved}
	var changed bool
	switch {
	case in.Workload != nil:
		changed = p.workload(in)
	case in.Revision != nil:
		changed = p.revision(in)
	case in.Pods != nil:
		changed = p.pods(in)
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
	p.at, p.provenance = normalizeTime(in.ObservedAt), events.ProvenanceObserved
	p.explainStall()
	p.s.Serial++
	p.s.At = p.at
	return p.s, p.facts
}

// step applies one input to one state.
type step struct {
	s          State // a clone after the first change
	facts      []events.DeployFact
	at         time.Time // observed_at of the current view
	provenance events.Provenance
	before     *View // the previous view of the same object
	reapplied  bool  // the view after a period without observations is applied again
	replaced   bool  // the rollout in flight was replaced before the period without observations
	restarted  bool  // the last number was set back, so that of the view is processed again
}

// workload applies an observation of the workload. It ignores versions that are not newer than the known one.
func (p *step) workload(in Input) bool {
	s, w := p.s, in.Workload
	key := Key{ClusterUID: w.Object.ClusterUID, Namespace: w.Object.Namespace, Kind: string(w.Kind), Name: w.Object.Name}
	if key != s.Key || w.Object.UID == "" || !isValidVersion(w.Object.ResourceVersion) || in.Epoch < s.Epoch ||
		slices.Contains(s.FormerUIDs, w.Object.UID) {
		return false
	}
	tombstone := w.Object.Verb == events.VerbDeleted
	missed := false
	if in.Epoch == s.Epoch && s.Version != "" {
		order := compareVersions(w.Object.ResourceVersion, s.Version)
		listed := w.Object.FirstSeen || w.Object.UpdateType == events.UpdateTypeFull
		reselected := s.Unselected && !tombstone && listed
		if order < 0 || order == 0 && (tombstone == s.Tombstone || s.Tombstone && !reselected) {
			return false
		}
		missed = order == 0 && tombstone && !w.Unselected // an observed deletion has its own version
	}
	p.s = s.clone()
	if in.Epoch > s.Epoch {
		p.beginEpoch(in.Epoch)
	}
	p.s.AgentID = in.AgentID
	p.s.Version, p.s.Tombstone = w.Object.ResourceVersion, tombstone
	v := newView(in)
	v.Skipped = v.Skipped || missed
	v.Restored, p.s.Restored = p.s.Restored, false
	p.learnFromView(v)
	p.enqueue(v)
	p.applyWaiting(false)
	return true
}

// beginEpoch begins a new epoch of the cluster's resource versions. It drops the known objects, because the restored
// cluster may never have had them. Revisions that no view named are in a gap.
func (p *step) beginEpoch(epoch int) {
	s := &p.s
	if s.Present() {
		u := Unobserved{Since: s.View.At, Until: later(s.View.At, p.at), Cause: events.CauseClusterRestored}
		unprocessed, _ := p.pendingUpTo(*s.View, len(s.Pending)-1)
		gap := u.gap()
		for _, k := range unprocessed {
			gap.Revisions = append(gap.Revisions, k.Revision)
		}
		if len(gap.Revisions) > 0 {
			p.emitGap(gap)
		}
	}
	s.Restored = s.Version != ""
	s.Epoch, s.Version, s.Tombstone = epoch, "", false
	s.Revisions, s.Pending, s.TakenVersion, s.ShownVersion, s.Pods = nil, nil, "", "", nil
	s.Templates = slices.Clone(s.Templates)
	for i := range s.Templates {
		s.Templates[i].Version = ""
	}
}

// absence applies that a full resync does not list the workload: neither the object that was observed last, nor those
// of which only revisions were observed.
func (p *step) absence(in Input) bool {
	s, listed := p.s, in.Absence.ListVersion
	if in.Epoch != s.Epoch || !isValidVersion(listed) {
		return false
	}
	var absent []string
	if in.AgentID == s.AgentID && !s.Tombstone && s.Version != "" && compareVersions(s.Version, listed) <= 0 {
		absent = append(absent, s.UID)
		if n := len(s.Waiting); n > 0 {
			absent[0] = s.Waiting[n-1].UID
		}
	}
	observed := len(absent) > 0
	if !in.Absence.Unselected {
		for _, uid := range s.traced() {
			if !p.hasRevisionAfter(uid, listed) {
				absent = append(absent, uid)
			}
		}
	}
	if len(absent) == 0 {
		return false
	}
	p.s = s.clone()
	p.s.Tombstone = s.Tombstone || observed
	for _, uid := range absent {
		p.enqueue(View{
			UID: uid, At: normalizeTime(in.ObservedAt), Deleted: !in.Absence.Unselected, Unselected: in.Absence.Unselected,
			Absent: true, HasBaseline: in.HasBaseline,
		})
	}
	p.applyWaiting(false)
	return true
}

// hasRevisionAfter reports whether a revision of the object has a version above the given one.
func (p *step) hasRevisionAfter(uid, version string) bool {
	return slices.ContainsFunc(p.s.Revisions, func(r Revision) bool {
		return r.WorkloadUID == uid && compareVersions(r.Version, version) > 0
	})
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
		} else if !p.at.Before(p.s.WaitSince.Add(revisionTimeout)) {
			p.applyWaiting(true)
		}
	}
	p.at, p.provenance = normalizeTime(in.ObservedAt), events.ProvenanceObserved
	p.checkDeadline()
	p.emitProgress(true)
	return true
}

// Wake returns the time of the next timeout, or the zero time. Earlier ticks have no effect.
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
			sooner(s.WaitSince.Add(revisionTimeout))
		}
	}
	if s.InFlight() && s.View != nil {
		if s.Rollout.ReportDue {
			sooner(s.Rollout.ReportedAt.Add(progressInterval))
		}
		if deadline, ok := s.deadline(); ok {
			sooner(deadline)
		}
		if at, ok := s.explainAt(); ok {
			sooner(at)
		}
	}
	return wake
}

// enqueue appends a view to the waiting views. It replaces the last one if both are similar.
func (p *step) enqueue(v View) {
	s := &p.s
	p.recordOutage(v)
	if n := len(s.Waiting); n > 0 && s.Waiting[n-1].isSimilar(v, s.Key.Kind) {
		older := s.Waiting[n-1]
		v.First, v.Skipped, v.Restored = older.First, older.Skipped, older.Restored
		v.HasBaseline, v.Confirmed = older.HasBaseline, older.Confirmed
		if v.Template.equals(older.Template) {
			v.Template.SeenAt, v.Template.SeenPaused = older.Template.SeenAt, older.Template.SeenPaused
		}
		s.Waiting[n-1] = v
		return
	}
	s.Waiting = append(s.Waiting, v)
	if len(s.Waiting) > maxWaiting {
		p.dropWaiting()
	}
}

// dropWaiting drops a waiting view that a later view of the same object follows: the oldest such view after the first.
func (p *step) dropWaiting() {
	waiting := p.s.Waiting
	at := 1
	for i := 1; i < len(waiting)-1; i++ {
		if !waiting[i].Deleted && !waiting[i].Unselected && waiting[i].UID == waiting[i+1].UID {
			at = i
			break
		}
	}
	waiting[at+1].Skipped = true
	p.s.Waiting = slices.Delete(waiting, at, at+1)
}

// applyWaiting applies the waiting views in order. It stops at the first view with an unknown revision, unless the
// timeout has passed.
func (p *step) applyWaiting(timedOut bool) {
	s := &p.s
	for len(s.Waiting) > 0 && (timedOut || p.isReady(s.Waiting[0]) || p.namesForeignRevision(s.Waiting[0])) {
		v, foreign := s.Waiting[0], p.namesForeignRevision(s.Waiting[0])
		s.Waiting = slices.Delete(s.Waiting, 0, 1)
		if foreign {
			next := &s.Waiting[0]
			next.First, next.Skipped = next.First || v.First, next.Skipped || v.Skipped
			next.Restored = next.Restored || v.Restored
			next.HasBaseline = next.HasBaseline || v.HasBaseline
			continue
		}
		p.applyView(v, timedOut)
	}
	if len(s.Waiting) == 0 {
		s.Waiting, s.WaitSince = nil, time.Time{}
	}
}

// namesForeignRevision reports whether the first waiting view names a ControllerRevision that its StatefulSet never
// had. This happens when a slow controller writes the status of the previous object with that name. It is certain when
// all revisions up to a later view are known.
func (p *step) namesForeignRevision(v View) bool {
	s := &p.s
	if s.Key.Kind != StatefulSet || v.Deleted || v.Unselected || v.UID != s.UID || s.View == nil {
		return false
	}
	if _, known := p.targetRevision(v); known {
		return false
	}
	return slices.ContainsFunc(s.Waiting[1:], func(w View) bool {
		to, known := p.targetRevision(w)
		at := p.pendingIndex(w, to)
		return w.UID == v.UID && known && to > s.Last && p.isContiguous(w, at) &&
			compareVersions(s.Pending[at].Version, v.Version) > 0 // else an object may have a higher number
	})
}

// isReady reports whether every revision that the view names is known.
func (p *step) isReady(v View) bool {
	s := &p.s
	if s.Key.Kind == DaemonSet || v.Unselected {
		return true
	}
	if v.Deleted {
		return v.afterGap() || v.UID != s.UID || s.View == nil || !p.hasUnexplainedTemplate(s.View.Generation)
	}
	if (v.UID != s.UID || s.View == nil) && !p.isCreated(v) {
		return p.isBaselineReady(v)
	}
	to, known := p.targetRevision(v)
	last, _ := p.lastRevision(v.UID)
	at := p.pendingIndex(v, to)
	switch {
	case !known, to == s.Last && p.mayBeRenumbered(v), p.namesUnknownReplicaSet(v), p.mayNameReused(v):
		return false
	case at >= 0 && to > last:
		return p.isContiguous(v, at)
	case at >= 0 && s.Key.Kind == Deployment: // the number was reused, maybe more than once
		return (v.Progress.names(s.Pending[at].Name) || p.isShown(v, s.Pending[at].Name)) && p.isContiguous(v, at)
	case to > last:
		return p.annotationTooHigh(v)
	case to == last:
		return p.isExplained(v) && !p.mayNameUnknownRevision(v)
	default:
		_, kept := p.holder(v, to)
		return to == 0 || s.Key.Kind != Deployment || kept || p.annotationCorrected(v)
	}
}

func (p *step) isBaselineReady(v View) bool {
	to, known := p.targetRevision(v)
	if p.s.Key.Kind == StatefulSet {
		return known
	}
	// The last revision of a workload that returns is processed already.
	processed := v.UID == p.s.UID && (p.s.Gone || p.s.Unselected) && to <= p.s.Last
	return to == 0 || processed || !v.isInProgress(p.s.Key.Kind) || p.findPending(v.UID, to) != nil
}

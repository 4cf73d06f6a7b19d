package rollout

import (
	"slices"
)

// A controller gives each revision number to one object at a time, in the order of resource versions. The numbers grow,
// with one exception: after ReplicaSets of a Deployment were deleted, the next number is one above the highest
// remaining one. So a number may repeat or decrease.

// targetRevision returns the number of the revision that the view names, and whether it is known. 0 means that the view
// names none yet.
func (p *step) targetRevision(v View) (int, bool) {
	if p.s.Key.Kind == StatefulSet {
		return p.revisionNumber(v)
	}
	return v.Revision, true
}

// revisionNumber returns the number of the ControllerRevision that the view names as the newest. The same object may
// have several numbers over time. Comparing the resource versions of both objects shows which one the view means.
func (p *step) revisionNumber(v View) (int, bool) {
	s := &p.s
	if v.Update == "" {
		return 0, true
	}
	own := v.UID == s.UID && s.View != nil
	last := 0
	if own {
		last = s.Last
	}
	least, most := 0, 0
	for _, k := range s.Pending {
		if k.WorkloadUID != v.UID || k.Name != v.Update || k.Revision <= last {
			continue
		}
		if least == 0 {
			least = k.Revision
		}
		if compareVersions(k.Version, v.Version) < 0 {
			most = k.Revision
		}
	}
	switch {
	case most > 0 && (v.isObserved() || v.afterGap() || v.Update != s.Name || !own):
		return most, true
	case own && v.Update == s.Name:
		return last, !v.isObserved() || !p.hasLaterPending(v, s.TakenVersion)
	case least > 0:
		return least, true
	default:
		return 0, false
	}
}

// hasLaterPending reports whether an object got a revision after the version in which one got the last one, and before
// the view was written. The view then does not show the last one, unless it or one before shows its template since.
func (p *step) hasLaterPending(v View, taken string) bool {
	shown := p.isShown(v, p.s.Name)
	return slices.ContainsFunc(p.s.Pending, func(k Pending) bool {
		isOther := p.s.Key.Kind == Deployment && k.Name != p.s.Name
		again := isOther && !k.Listed && compareVersions(k.Version, taken) > 0
		return k.WorkloadUID == v.UID && (k.Revision > p.s.Last || again) && compareVersions(k.Version, v.Version) < 0 &&
			(!isOther || !shown && compareVersions(k.Version, p.s.ShownVersion) > 0)
	})
}

// dropWithdrawn drops the pending revisions before a version that shows the last processed ReplicaSet with its number.
// No version named them, and their ReplicaSets were deleted: otherwise the last one would have got a higher number.
func (p *step) dropWithdrawn() {
	s := &p.s
	isEarlier := func(k Pending) bool {
		return k.WorkloadUID == s.UID && compareVersions(k.Version, s.ShownVersion) < 0
	}
	if !slices.ContainsFunc(s.Pending, func(k Pending) bool { return (isEarlier(k) || k.Listed) && k.Name == s.Name }) {
		s.Pending = slices.DeleteFunc(s.Pending, isEarlier)
	}
}

// findPending returns the pending revision with that number, or nil.
func (p *step) findPending(uid string, revision int) *Pending {
	at := slices.IndexFunc(p.s.Pending, func(k Pending) bool { return k.WorkloadUID == uid && k.Revision == revision })
	if at < 0 {
		return nil
	}
	return &p.s.Pending[at]
}

// lastRevision returns the revision of a workload that precedes the pending ones, and the name of its object.
func (p *step) lastRevision(uid string) (int, string) {
	if uid != p.s.UID || p.s.View == nil {
		return 0, ""
	}
	return p.s.Last, p.s.Name
}

// pendingIndex returns the index of the pending revision that the view names, or -1. It is the newest one with that
// number which is older than the view and whose object existed then. If the last revision has the same number, the
// pending one must be another object, and the view must show its effect.
func (p *step) pendingIndex(v View, to int) int {
	last, name := p.lastRevision(v.UID)
	newest := -1
	for i, k := range p.s.Pending {
		shown := v.isObserved() && !v.Template.equals(p.s.Template) || v.Progress.names(k.Name)
		if k.WorkloadUID != v.UID || k.Revision != to || to == last && (!shown || k.Name == name) ||
			p.isDeletedBefore(k.Name, v.UID, v.Version) || !p.mayShow(v, k.Name) ||
			p.isOlder(k, v) || k.Listed && p.isAfter(k, v) {
			continue
		}
		was := v.afterGap() && v.Progress.names(k.Name) // its ReplicaSet was deleted and created again
		if was || k.Listed && (to > last || v.afterGap()) || compareVersions(k.Version, v.Version) < 0 {
			newest = i
		}
	}
	return newest
}

// isDeletedBefore reports whether the ReplicaSet with that name was deleted before a version and not created again.
func (p *step) isDeletedBefore(name, uid, version string) bool {
	deleted := false
	for _, r := range p.s.Revisions {
		if p.s.Key.Kind != Deployment || r.WorkloadUID != uid || r.Name != name {
			continue
		}
		if !r.Deleted || compareVersions(r.Version, version) > 0 {
			return false
		}
		deleted = true
	}
	return deleted
}

// wasDeleted reports whether the last processed ReplicaSet was observed to be deleted before the view. It may have been
// created again in the period without observations before the view.
func (p *step) wasDeleted(v View) bool {
	s := &p.s
	if p.isDeletedBefore(s.Name, v.UID, v.Version) {
		return true
	}
	deleted := false
	for _, r := range s.Revisions {
		if p.before == nil || s.Key.Kind != Deployment || r.WorkloadUID != v.UID || r.Name != s.Name ||
			compareVersions(r.Since, p.before.Version) > 0 {
			continue
		}
		if !r.Deleted {
			return false
		}
		deleted = true
	}
	return deleted
}

// pendingUpTo returns the pending revisions after the last processed one, up to an index, and whether none is missing.
func (p *step) pendingUpTo(v View, at int) ([]Pending, bool) {
	last, name := p.lastRevision(v.UID)
	var unprocessed []Pending
	complete, reached := true, false
	for i, k := range p.s.Pending[:at+1] {
		if k.WorkloadUID != v.UID || k.Revision <= last && !p.isReissued(k, last, name) {
			continue
		}
		if k.Revision > last && p.isDeletedBefore(name, v.UID, k.Version) {
			complete = false // another ReplicaSet got its number before this one got a higher one
		}
		for revision := last + 1; complete && revision < k.Revision; revision++ {
			complete = p.isNumberKnown(v.UID, revision)
		}
		unprocessed, reached = append(unprocessed, k), i == at
		last, name = k.Revision, k.Name
	}
	return unprocessed, complete && reached
}

// isContiguous reports whether no revision between the last processed one and the index is missing.
func (p *step) isContiguous(v View, at int) bool {
	if at < 0 {
		return false
	}
	last, _ := p.lastRevision(v.UID)
	if p.s.Pending[at].Revision-last > maxPending*(1+maxHistory) {
		return false
	}
	_, complete := p.pendingUpTo(v, at)
	return complete
}

// isNumberKnown reports whether a pending object has the revision number, or had it before.
func (p *step) isNumberKnown(uid string, revision int) bool {
	return slices.ContainsFunc(p.s.Pending, func(k Pending) bool {
		return k.WorkloadUID == uid && (k.Revision == revision || slices.Contains(k.History, revision))
	})
}

// isReissued reports whether a revision number that is not above the previous one was given to an object after it. A
// controller gives a number to a second object, or a lower number, only after all objects with higher numbers were
// deleted, including the previous one.
func (p *step) isReissued(k Pending, last int, name string) bool {
	if p.s.Key.Kind != Deployment {
		return false
	}
	if name == "" { // the ReplicaSet that had the number before was never observed, so it was in no list
		if k.Revision != last || p.s.View == nil {
			return false
		}
		unlisted := *p.s.View
		unlisted.First = true
		return p.isAfter(k, unlisted)
	}
	if k.Revision == last {
		return k.Name != name
	}
	gone := false
	for _, r := range p.s.Revisions {
		if r.WorkloadUID != k.WorkloadUID || r.Revision < k.Revision || compareVersions(r.Since, k.Version) >= 0 {
			continue
		}
		if !r.Deleted || compareVersions(r.Version, k.Version) > 0 {
			return false
		}
		gone = gone || r.Name == name
	}
	return gone
}

// holder returns the ReplicaSet with a lower revision number to which a Deployment was rolled back after all
// ReplicaSets with higher numbers were deleted. Such a ReplicaSet keeps its number. A view that shows it proves that
// they were, even if their deletion was not observed.
func (p *step) holder(v View, to int) (Revision, bool) {
	var found Revision
	for _, r := range p.s.Revisions {
		before := r.Listed || compareVersions(r.Since, v.Version) < 0
		switch {
		case r.WorkloadUID != v.UID, r.Deleted && compareVersions(r.Version, v.Version) < 0:
		case before && r.Revision == to && (p.isShown(v, r.Name) || v.afterGap() && v.Progress.names(r.Name)):
			return r, true
		case before && r.Revision > to:
			return Revision{}, false
		case !p.mayShow(v, r.Name):
		case (before && r.Revision == to || !before && slices.Contains(r.History, to)) &&
			compareVersions(r.Since, found.Since) > 0: // the others with the number were deleted
			found = r
		}
	}
	return found, found.UID != ""
}

// isExplained reports whether the ReplicaSet that the view shows is the last processed one, or a later one that is
// known and whose number the view does not have yet.
func (p *step) isExplained(v View) bool {
	s := &p.s
	return p.mayShow(v, s.Name) || slices.ContainsFunc(s.Pending, func(k Pending) bool {
		return k.WorkloadUID == v.UID && k.Name != s.Name && compareVersions(k.Version, s.TakenVersion) > 0 &&
			!p.isAfter(k, v) && p.mayShow(v, k.Name)
	})
}

// hasUnexplainedTemplate reports whether the workload had, up to a generation, another template than the last processed
// one for which no revision is processed. Its controller may have created one. While a Deployment is paused, its
// controller only reuses ReplicaSets.
func (p *step) hasUnexplainedTemplate(generation int) bool {
	s := &p.s
	return slices.ContainsFunc(s.Templates, func(seen SeenTemplate) bool {
		t := seen.Template
		return seen.Generation > s.Generation && seen.Generation <= generation && !t.equals(s.Template) &&
			(!t.SeenPaused || !t.SeenAt.IsZero() || p.wasReused(t))
	})
}

// wasReused reports whether a paused Deployment may have used the ReplicaSet with the template: its rollout completed,
// or it was observed to get a number that is not processed, and it still exists.
func (p *step) wasReused(t Template) bool {
	name := p.nameOf(t)
	return slices.ContainsFunc(p.s.Completed, func(c Finished) bool { return c.Template.equals(t) }) ||
		slices.ContainsFunc(p.s.Pending, func(k Pending) bool {
			return k.WorkloadUID == p.s.UID && k.Name == name && !k.Listed && !p.isDeletedBefore(name, p.s.UID, p.s.Version)
		})
}

// mayNameUnknownRevision reports whether the view has the number of the last processed revision but may describe a
// later one that is not observed yet, because the workload was edited and edited back.
func (p *step) mayNameUnknownRevision(v View) bool {
	s := &p.s
	next := p.findPending(v.UID, s.Last+1)
	isLater := next != nil && !next.Listed && compareVersions(next.Version, v.Version) > 0 &&
		!p.isDeletedBefore(s.Name, v.UID, next.Version) // so there was none before
	return !v.afterGap() && v.isObserved() && s.Template.known() && v.Template.equals(s.Template) &&
		!p.hasLaterPending(v, s.TakenVersion) && !isLater && p.hasUnexplainedTemplate(v.Observed)
}

// namesUnknownReplicaSet reports whether the progress condition is new and names a ReplicaSet that is not observed yet.
func (p *step) namesUnknownReplicaSet(v View) bool {
	if p.s.View != nil && p.s.View.UID == v.UID && p.s.View.Progress.Message == v.Progress.Message {
		return false
	}
	return p.namesUnobserved(v)
}

// showsUnknownReplicaSet reports whether a view after a period without observations shows that a ReplicaSet has the
// number of the last one and is not observed.
func (p *step) showsUnknownReplicaSet(v View) bool {
	if !v.afterGap() || p.s.Key.Kind != Deployment || p.isShown(v, p.s.Name) {
		return false
	}
	return p.namesUnknownReplicaSet(v) || v.Counts.Updated > 0 && p.s.Template.known() && !p.isExplained(v)
}

// namesUnobserved reports whether the progress condition names a ReplicaSet that is not observed.
func (p *step) namesUnobserved(v View) bool {
	name := v.Progress.object()
	if p.s.Key.Kind != Deployment || name == "" || name == p.s.Key.Name || v.Progress.Reason == reasonCreateError {
		return false
	}
	return !slices.ContainsFunc(p.s.Revisions, func(r Revision) bool { return r.Name == name })
}

// mayNameReused reports whether the progress condition is new and names an earlier ReplicaSet, which may have got its
// next number before the Deployment has it. Without desired pods, a condition may also be about an earlier rollout.
func (p *step) mayNameReused(v View) bool {
	s := &p.s
	if s.Key.Kind != Deployment || !v.afterGap() || v.Counts.Desired > 0 || s.View == nil ||
		s.View.Progress.Message == v.Progress.Message {
		return false
	}
	return slices.ContainsFunc(s.Revisions, func(r Revision) bool {
		return r.WorkloadUID == v.UID && r.Revision < v.Revision && v.Progress.names(r.Name)
	})
}

// annotationTooHigh reports whether a client wrote a higher number into the revision annotation and the controller
// corrected it: a later view with the same specification has the last revision again.
func (p *step) annotationTooHigh(v View) bool {
	return p.s.Key.Kind == Deployment && slices.ContainsFunc(p.s.Waiting, func(w View) bool {
		return w.UID == v.UID && w.Revision == p.s.Last && w.Generation == v.Generation &&
			compareVersions(w.Version, v.Version) > 0
	})
}

// annotationCorrected reports whether a client wrote a lower number into the annotation and the controller corrected
// it: the next number is not lower than the last one, with the same template.
func (p *step) annotationCorrected(v View) bool {
	next := slices.IndexFunc(p.s.Waiting, func(w View) bool {
		return w.UID == v.UID && w.Revision != v.Revision && compareVersions(w.Version, v.Version) > 0
	})
	if next < 0 || p.s.Waiting[next].afterGap() {
		return false
	}
	return p.s.Waiting[next].Revision >= p.s.Last && p.s.Waiting[next].Template.equals(v.Template)
}

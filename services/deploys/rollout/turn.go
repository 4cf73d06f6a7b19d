package rollout

import (
	"slices"
)

// Revisions are taken in turn, by one object after the other, in the order of the store's versions. Their numbers grow, except those of a Deployment whose
// ReplicaSets somebody deletes: the next one to be taken is one above what is left, so that it can be the same again, or a lower one.

// target is the revision that the view speaks of, 0 for none yet, and whether that can be told.
func (p *step) target(v View) (int, bool) {
	if p.s.Key.Kind == StatefulSet {
		return p.number(v)
	}
	return v.Revision, true
}

// number of the ControllerRevision that the view names as the newest. The same one may bear several, one after the other; which one the view means
// tell the resource versions of the two, which one store gave.
func (p *step) number(v View) (int, bool) {
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
	case most > 0 && (v.current() || v.Update != s.Name || !own):
		return most, true
	case own && v.Update == s.Name:
		return last, !v.current() || !p.passed(v)
	case least > 0:
		return least, true
	default:
		return 0, false
	}
}

// passed says that revisions came after the last one before the view was written, so that the view cannot mean the last one.
func (p *step) passed(v View) bool {
	return slices.ContainsFunc(p.s.Pending, func(k Pending) bool {
		return k.WorkloadUID == v.UID && k.Revision > p.s.Last && compareVersions(k.Version, v.Version) < 0
	})
}

// find what is pending of that number.
func (p *step) find(uid string, revision int) *Pending {
	at := slices.IndexFunc(p.s.Pending, func(k Pending) bool { return k.WorkloadUID == uid && k.Revision == revision })
	if at < 0 {
		return nil
	}
	return &p.s.Pending[at]
}

// accounted is the revision of a workload that comes before those that are pending, and the object that took it.
func (p *step) accounted(uid string) (int, string) {
	if uid != p.s.UID || p.s.View == nil {
		return 0, ""
	}
	return p.s.Last, p.s.Name
}

// heading is where among what is pending the revision stands that the view speaks of, -1 for nowhere: the newest of that number that was taken before the view was
// written. One of the same number as the last one is meant only once the view shows what came of it.
func (p *step) heading(v View, to int) int {
	last, _ := p.accounted(v.UID)
	first, newest := -1, -1
	for i, k := range p.s.Pending {
		shown := v.current() && !v.Template.same(p.s.Template) || v.Progress.names(k.Name)
		if k.WorkloadUID != v.UID || k.Revision != to || to == last && !shown {
			continue
		}
		if first < 0 {
			first = i
		}
		if k.Listed || compareVersions(k.Version, v.Version) < 0 {
			newest = i
		}
	}
	if newest < 0 && to > last {
		return first
	}
	return newest
}

// turns are the revisions that were taken after the last one that is accounted for, up to and including the one at that place, and whether they are all.
func (p *step) turns(v View, at int) ([]Pending, bool) {
	last, name := p.accounted(v.UID)
	var turns []Pending
	whole, reached := true, false
	for i, k := range p.s.Pending[:at+1] {
		if k.WorkloadUID != v.UID || k.Revision <= last && !p.anew(k, last, name) {
			continue
		}
		for revision := last + 1; whole && revision < k.Revision; revision++ {
			whole = p.borne(v.UID, revision)
		}
		turns, reached = append(turns, k), i == at
		last, name = k.Revision, k.Name
	}
	return turns, whole && reached
}

// whole says that of all revisions up to and including the one at that place it is known what they were, or that they are lost.
func (p *step) whole(v View, at int) bool {
	if at < 0 {
		return false
	}
	last, _ := p.accounted(v.UID)
	if p.s.Pending[at].Revision-last > maxPending*(1+maxHistory) {
		return false
	}
	_, whole := p.turns(v, at)
	return whole
}

// borne says that something that is pending took the revision, or bore it before.
func (p *step) borne(uid string, revision int) bool {
	return slices.ContainsFunc(p.s.Pending, func(k Pending) bool {
		return k.WorkloadUID == uid && (k.Revision == revision || slices.Contains(k.History, revision))
	})
}

// anew says that a revision that is not above the one before it was taken after it: two objects bear one number only one after the other, and a lower one
// is taken only when those that bore higher ones, the one before it among them, are gone.
func (p *step) anew(k Pending, last int, name string) bool {
	if p.s.Key.Kind != Deployment || name == "" {
		return false
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

// keeper is the ReplicaSet of a lower revision which a Deployment went back to when what bore higher ones was gone: it keeps its number.
func (p *step) keeper(v View, to int) (Revision, bool) {
	var keeper Revision
	for _, r := range p.s.Revisions {
		before := r.Listed || compareVersions(r.Since, v.Version) < 0
		switch {
		case r.WorkloadUID != v.UID, r.Deleted && compareVersions(r.Version, v.Version) < 0:
		case before && r.Revision > to:
			return Revision{}, false
		case before && r.Revision == to, !before && slices.Contains(r.History, to):
			keeper = r
		}
	}
	return keeper, keeper.UID != ""
}

// unclear says that the view has pods of another ReplicaSet than the last one that is accounted for, under the same revision: the one that took
// the number anew is yet to be told. One that is used again bears the next number before the Deployment does.
func (p *step) unclear(v View) bool {
	s := &p.s
	return s.Key.Kind == Deployment && v.Revision == s.Last && v.current() && s.Hash != "" && v.Template.known() && s.Template.known() &&
		!v.Template.same(s.Template) && !p.passed(v) && v.Counts.Updated > 0
}

// stranger says that the view has a new verdict, and that it is about a ReplicaSet that nobody has told of.
func (p *step) stranger(v View) bool {
	name := v.Progress.object()
	if p.s.Key.Kind != Deployment || name == "" || name == p.s.Key.Name || v.Progress.Reason == reasonCreateError {
		return false
	}
	if p.s.View != nil && p.s.View.UID == v.UID && p.s.View.Progress.Message == v.Progress.Message {
		return false
	}
	return !slices.ContainsFunc(p.s.Revisions, func(r Revision) bool { return r.Name == name })
}

// overtaken says of a view that a later one of the same specification is back at the last revision: somebody wrote a higher one into the annotation, and the
// controller put it right.
func (p *step) overtaken(v View) bool {
	return p.s.Key.Kind == Deployment && slices.ContainsFunc(p.s.Waiting, func(w View) bool {
		return w.UID == v.UID && w.Revision == p.s.Last && w.Generation == v.Generation && compareVersions(w.Version, v.Version) > 0
	})
}

// corrected says the same of a lower one.
func (p *step) corrected(v View) bool {
	return slices.ContainsFunc(p.s.Waiting, func(w View) bool {
		return w.UID == v.UID && w.Revision >= p.s.Last && w.Template.same(v.Template)
	})
}

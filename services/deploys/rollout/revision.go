package rollout

import (
	"cmp"
	"slices"
	"time"

	"lockstep.internal/schemas/gen/events"
)

// maxHistory is the maximum number of stored earlier numbers of a reused object.
const maxHistory = 8

// revision applies an observation of a ReplicaSet or ControllerRevision, and applies the views that waited for it.
func (p *step) revision(in Input) bool {
	r := in.Revision
	if !p.isRelevant(r) || !isValidVersion(r.Object.ResourceVersion) || r.Object.UID == "" || r.Revision < 0 ||
		in.Epoch < p.s.Epoch {
		return false
	}
	known := Revision{
		WorkloadUID: r.WorkloadUID, Revision: r.Revision, Name: r.Object.Name, UID: r.Object.UID, Hash: r.TemplateHash,
		Version: r.Object.ResourceVersion, Deleted: r.Object.Verb == events.VerbDeleted || r.Object.DeletedAt != nil,
		CreatedAt: normalizePointer(r.Object.CreatedAt), SeenAt: normalizeTime(in.ObservedAt),
		Since: r.Object.ResourceVersion, Listed: r.Object.FirstSeen || r.Object.UpdateType == events.UpdateTypeFull,
	}
	confirmed := in.Epoch == p.s.Epoch && known.Listed && p.isAwaited(known)
	if in.Epoch == p.s.Epoch && !p.isNew(known) {
		if confirmed {
			p.s = p.s.clone()
			p.confirmRevision(known)
			p.applyWaiting(false)
		}
		return confirmed
	}
	p.s = p.s.clone()
	if confirmed {
		p.confirmRevision(known)
	}
	if in.Epoch > p.s.Epoch {
		p.beginEpoch(in.Epoch)
	}
	if before := p.findRevision(known.UID); before != nil && before.Revision == known.Revision {
		known.Since, known.Listed, known.SeenAt = before.Since, before.Listed, before.SeenAt
	}
	known.History = history(r, p.earlierNumbers(known))
	p.storeRevision(known)
	p.addPending(known)
	p.applyWaiting(false)
	if len(p.s.Waiting) == 0 && p.s.Present() {
		p.reapplyView(known)
	}
	return true
}

// isRelevant reports whether the revision belongs to the current object of the workload or to a later one.
func (p *step) isRelevant(r *events.ObservedWorkloadRevision) bool {
	key := p.s.Key
	return key.Kind != DaemonSet && r.Object.ClusterUID == key.ClusterUID && r.Object.Namespace == key.Namespace &&
		r.Workload == key.Name &&
		r.WorkloadUID != "" && !slices.Contains(p.s.FormerUIDs, r.WorkloadUID) &&
		(!p.s.Gone || r.WorkloadUID != p.s.UID || len(p.s.Waiting) != 0)
}

// isNew reports whether the observation is newer than the known version of the object.
func (p *step) isNew(r Revision) bool {
	if known := p.findRevision(r.UID); known != nil {
		order := compareVersions(r.Version, known.Version)
		return order > 0 || order == 0 && r.Deleted && !known.Deleted
	}
	full := len(p.s.Revisions) >= maxRevisions && r.Revision < p.s.Revisions[0].Revision
	return !full || r.Revision > p.s.Last
}

// mayBeRenumbered reports whether the ControllerRevision that a view names may have a new number although its name is
// unchanged. This happens when the workload is edited and edited back during a period without observations. The next
// observation of the ControllerRevision shows its number.
func (p *step) mayBeRenumbered(v View) bool {
	s := &p.s
	if s.Key.Kind != StatefulSet || !v.afterGap() || v.Confirmed || v.UID != s.UID || s.View == nil || v.Update == "" ||
		v.Update != s.Name {
		return false
	}
	edits := v.Generation - s.View.Generation
	return edits >= 2 || edits != 0 && !v.Template.equals(s.View.Template)
}

// isAwaited reports whether a view waits for an observation of this revision.
func (p *step) isAwaited(r Revision) bool {
	return slices.ContainsFunc(p.s.Waiting, func(w View) bool {
		return w.UID == r.WorkloadUID && w.Update == r.Name && p.mayBeRenumbered(w)
	})
}

func (p *step) confirmRevision(r Revision) {
	for i := range p.s.Waiting {
		if w := &p.s.Waiting[i]; w.UID == r.WorkloadUID && w.Update == r.Name {
			w.Confirmed = true
		}
	}
}

// findRevision returns the newest observation of the object, or nil.
func (p *step) findRevision(uid string) *Revision {
	at := slices.IndexFunc(p.s.Revisions, func(r Revision) bool { return r.UID == uid })
	if at < 0 {
		return nil
	}
	return &p.s.Revisions[at]
}

// earlierNumbers returns the known earlier revision numbers of the object.
func (p *step) earlierNumbers(r Revision) []int {
	if known := p.findRevision(r.UID); known != nil {
		return append(slices.Clone(known.History), known.Revision)
	}
	return nil
}

// storeRevision stores the observation of the object.
func (p *step) storeRevision(r Revision) {
	s := &p.s
	revisions := make([]Revision, 0, len(s.Revisions)+1)
	for _, known := range s.Revisions {
		if known.UID == r.UID {
			continue
		}
		if known.Name == r.Name && compareVersions(known.Version, r.Since) < 0 {
			known.Unseen = known.Unseen || !known.Deleted
			known.Deleted = true // the name is used again, so this object was deleted
		}
		revisions = append(revisions, known)
	}
	revisions = append(revisions, r)
	isLast := p.mayBeLast(r)
	s.Revisions = revisions
	slices.SortFunc(s.Revisions, func(a, b Revision) int {
		return cmp.Or(cmp.Compare(a.Revision, b.Revision), cmp.Compare(a.UID, b.UID))
	})
	if over := len(s.Revisions) - maxRevisions; over > 0 {
		s.Revisions = slices.Delete(s.Revisions, 0, over)
	}
	if r.WorkloadUID == s.UID && s.View != nil {
		switch {
		case isLast:
			s.Name, s.Hash, s.TakenVersion = r.Name, r.Hash, r.Since
		case s.Unnumbered && r.Name == s.Name && r.Revision >= s.Last && !r.Deleted:
			s.Last, s.Hash, s.Unnumbered = r.Revision, r.Hash, false
		}
	}
}

// mayBeLast reports whether the last processed revision has an unobserved object and that may be this one. It is
// another one if it has another name, if it got the number after the newest view, or if the view names an object that
// is not observed.
func (p *step) mayBeLast(r Revision) bool {
	s := &p.s
	if r.WorkloadUID != s.UID || s.View == nil || r.Revision != s.Last || s.Hash != "" || r.Deleted ||
		s.Name != "" && s.Name != r.Name {
		return false
	}
	return !p.isAfter(pending(r), *s.View) && (s.View.Progress.names(r.Name) || !p.namesUnobserved(*s.View))
}

// history returns the earlier revision numbers of a reused object, oldest first.
func history(r *events.ObservedWorkloadRevision, known []int) []int {
	numbers := slices.Concat(r.RevisionHistory, known)
	numbers = slices.DeleteFunc(numbers, func(n int) bool { return n <= 0 || n >= r.Revision })
	slices.Sort(numbers)
	numbers = slices.Compact(numbers)
	if len(numbers) == 0 {
		return nil
	}
	return slices.Clone(numbers[max(0, len(numbers)-maxHistory):])
}

// addPending stores the revision until a view names it, even if the object is deleted before.
func (p *step) addPending(r Revision) {
	s := &p.s
	if r.Deleted || r.Revision == 0 || p.isPast(r) {
		return
	}
	same := func(k Pending) bool {
		return k.WorkloadUID == r.WorkloadUID && k.Revision == r.Revision &&
			(k.Name == r.Name && k.Version == r.Since || s.Key.Kind != Deployment)
	}
	if at := slices.IndexFunc(s.Pending, same); at >= 0 {
		if s.Pending[at].Name != r.Name { // the previous object with the number was deleted
			s.Pending[at] = pending(r)
		}
		return
	}
	p.insertPending(pending(r))
}

// insertPending inserts a revision into the pending ones, unless it continues the one before it.
func (p *step) insertPending(k Pending) {
	s := &p.s
	at := slices.IndexFunc(s.Pending, func(other Pending) bool { return p.isOrderedAfter(other, k) })
	if at < 0 {
		at = len(s.Pending)
	}
	revision, name := p.lastRevision(k.WorkloadUID)
	if at > 0 && s.Pending[at-1].WorkloadUID == k.WorkloadUID {
		revision, name = s.Pending[at-1].Revision, s.Pending[at-1].Name
	}
	if k.Revision == revision && k.Name == name && s.Key.Kind == Deployment {
		return // recreated: it continues the rollout of the deleted ReplicaSet
	}
	s.Pending = slices.Insert(s.Pending, at, k)
	if over := len(s.Pending) - maxPending; over > 0 {
		s.Pending = slices.Delete(s.Pending, 0, over)
	}
}

// reorderListed orders the pending revisions of a list again, after the period without observations before it is known.
func (p *step) reorderListed(uid string, at time.Time) {
	isNew := func(k Pending) bool { return k.WorkloadUID == uid && k.Listed && !k.SeenAt.Before(at) }
	all := p.s.Pending
	p.s.Pending = slices.DeleteFunc(slices.Clone(all), isNew)
	for _, k := range all {
		if isNew(k) {
			p.insertPending(k)
		}
	}
}

// isOrderedAfter reports whether a revision comes after another one among the pending ones. A listed object may have
// had its number for an unknown time. Where that leaves the order open, the lower number comes first.
func (p *step) isOrderedAfter(k, other Pending) bool {
	order := compareVersions(k.Version, other.Version)
	switch {
	case k.WorkloadUID != other.WorkloadUID:
		return k.WorkloadUID > other.WorkloadUID
	case k.Revision == other.Revision, !k.Listed && !other.Listed:
		return order > 0
	case k.Listed && !other.Listed && order < 0, p.hasOutage(k.SeenAt, other.SeenAt):
		return false
	case !k.Listed && other.Listed && order > 0, p.hasOutage(other.SeenAt, k.SeenAt):
		return true
	default:
		return k.Revision > other.Revision
	}
}

// isPast reports whether the revision precedes the last processed one. The versions decide, because numbers of a
// Deployment may restart.
func (p *step) isPast(r Revision) bool {
	s := &p.s
	switch {
	case r.WorkloadUID != s.UID, s.View == nil:
		return false
	case s.Key.Kind == Deployment && r.Listed: // the version does not say since when it has the number
		return r.Revision < s.Last || r.Revision == s.Last && r.Name == s.Name
	case s.Key.Kind != Deployment, s.TakenVersion == "":
		return r.Revision <= s.Last && !p.isReissued(pending(r), s.Last, s.Name)
	default:
		return compareVersions(r.Since, s.TakenVersion) <= 0
	}
}

func pending(r Revision) Pending {
	return Pending{
		WorkloadUID: r.WorkloadUID, Revision: r.Revision, Name: r.Name, UID: r.UID, Hash: r.Hash, CreatedAt: r.CreatedAt,
		SeenAt:  r.SeenAt,
		Version: r.Since, Listed: r.Listed, History: r.History,
	}
}

// dropPending drops the pending revisions of the view's workload up to an index. If the index is -1, it drops those
// before the view up to a revision number.
func (p *step) dropPending(v View, at, upTo int) {
	rest := make([]Pending, 0, len(p.s.Pending))
	for i, k := range p.s.Pending {
		if k.WorkloadUID != v.UID || p.isListedAfter(k, v) || i > at && (at >= 0 || k.Revision > upTo || p.isAfter(k, v)) {
			rest = append(rest, k)
		}
	}
	p.s.Pending = rest
	if len(rest) == 0 {
		p.s.Pending = nil
	}
}

// isAfter reports whether the ReplicaSet got its number after the view. A listed one did in two cases: the list before
// did not contain it, or a lower number followed the view's, so the ReplicaSet that had the number then was deleted.
func (p *step) isAfter(k Pending, v View) bool {
	if p.s.Key.Kind != Deployment || v.Version == "" || compareVersions(k.Version, v.Version) < 0 {
		return false
	}
	return !k.Listed || p.isListedAfter(k, v) || slices.ContainsFunc(p.s.Waiting, func(w View) bool {
		return w.UID == v.UID && w.Revision < k.Revision && compareVersions(w.Version, v.Version) > 0 &&
			compareVersions(w.Version, k.Version) < 0
	})
}

// isListedAfter reports whether a list contained the ReplicaSet, and the list before, which contained the view, did
// not.
func (p *step) isListedAfter(k Pending, v View) bool {
	return p.s.Key.Kind == Deployment && v.First && k.Listed && compareVersions(k.Version, v.Version) > 0 &&
		p.hasOutage(v.At, k.SeenAt)
}

// hasOutage reports whether a period without observations is between the times.
func (p *step) hasOutage(from, until time.Time) bool {
	return slices.ContainsFunc(p.s.Outages, func(o Outage) bool { return !o.Since.Before(from) && !o.Until.After(until) })
}

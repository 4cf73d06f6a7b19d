package rollout

import (
	"cmp"
	"slices"

	"lockstep.internal/schemas/gen/events"
)

// maxHistory of a reused object that is kept.
const maxHistory = 8

// revision takes an observation of a ReplicaSet or ControllerRevision in, and judges again what waited for it.
func (p *step) revision(in Input) bool {
	r := in.Revision
	if !p.concerns(r) || !wellFormed(r.Object.ResourceVersion) || r.Object.UID == "" || r.Revision < 0 || in.Epoch < p.s.Epoch {
		return false
	}
	known := Revision{
		WorkloadUID: r.WorkloadUID, Revision: r.Revision, Name: r.Object.Name, UID: r.Object.UID, Hash: r.TemplateHash,
		Version: r.Object.ResourceVersion, Deleted: r.Object.Verb == events.VerbDeleted || r.Object.DeletedAt != nil,
		CreatedAt: cleanPointer(r.Object.CreatedAt), SeenAt: clean(in.ObservedAt),
		Since: r.Object.ResourceVersion, Listed: r.Object.FirstSeen || r.Object.UpdateType == events.UpdateTypeFull,
	}
	heard := in.Epoch == p.s.Epoch && known.Listed && p.awaited(known)
	if in.Epoch == p.s.Epoch && !p.news(known) {
		if heard {
			p.s = p.s.clone()
			p.hear(known)
			p.drain(false)
		}
		return heard
	}
	p.s = p.s.clone()
	if heard {
		p.hear(known)
	}
	if in.Epoch > p.s.Epoch {
		p.restore(in.Epoch)
	}
	if before := p.known(known.UID); before != nil && before.Revision == known.Revision {
		known.Since, known.Listed = before.Since, before.Listed
	}
	known.History = history(r, p.former(known))
	p.note(known)
	p.pend(known)
	p.drain(false)
	if len(p.s.Waiting) == 0 && p.s.Present() {
		p.reconsider()
	}
	return true
}

// concerns says that the revision is of the workload that is followed, or of one that may come after it.
func (p *step) concerns(r *events.ObservedWorkloadRevision) bool {
	key := p.s.Key
	return key.Kind != DaemonSet && r.Object.ClusterUID == key.ClusterUID && r.Object.Namespace == key.Namespace && r.Workload == key.Name &&
		r.WorkloadUID != "" && !slices.Contains(p.s.Former, r.WorkloadUID) && (!p.s.Gone || r.WorkloadUID != p.s.UID || len(p.s.Waiting) != 0)
}

// news says that the observation is above what is known of the object.
func (p *step) news(r Revision) bool {
	if known := p.known(r.UID); known != nil {
		order := compareVersions(r.Version, known.Version)
		return order > 0 || order == 0 && r.Deleted && !known.Deleted
	}
	full := len(p.s.Revisions) >= maxRevisions && r.Revision < p.s.Revisions[0].Revision
	return !full || r.Revision > p.s.Last
}

// renumbered says that the ControllerRevision that a view names, the same as before, may have got another number while nobody looked: the workload was edited
// away from it and back. Whether it has says the ControllerRevision, which is told again after that.
func (p *step) renumbered(v View) bool {
	s := &p.s
	if s.Key.Kind != StatefulSet || !v.blind() || v.Heard || v.UID != s.UID || s.View == nil || v.Update == "" || v.Update != s.Name {
		return false
	}
	edits := v.Generation - s.View.Generation
	return edits >= 2 || edits != 0 && !v.Template.same(s.View.Template)
}

// awaited says that a view waits for what the revision says now.
func (p *step) awaited(r Revision) bool {
	return slices.ContainsFunc(p.s.Waiting, func(w View) bool { return w.UID == r.WorkloadUID && w.Update == r.Name && p.renumbered(w) })
}

func (p *step) hear(r Revision) {
	for i := range p.s.Waiting {
		if w := &p.s.Waiting[i]; w.UID == r.WorkloadUID && w.Update == r.Name {
			w.Heard = true
		}
	}
}

// known is what was told of the object last.
func (p *step) known(uid string) *Revision {
	at := slices.IndexFunc(p.s.Revisions, func(r Revision) bool { return r.UID == uid })
	if at < 0 {
		return nil
	}
	return &p.s.Revisions[at]
}

// former revisions of the object, as far as they are known.
func (p *step) former(r Revision) []int {
	if known := p.known(r.UID); known != nil {
		return append(slices.Clone(known.History), known.Revision)
	}
	return nil
}

// note remembers the object.
func (p *step) note(r Revision) {
	s := &p.s
	revisions := make([]Revision, 0, len(s.Revisions)+1)
	for _, known := range s.Revisions {
		if known.UID == r.UID {
			continue
		}
		if known.Name == r.Name && compareVersions(known.Version, r.Since) < 0 {
			known.Deleted = true // or its name would not be free
		}
		revisions = append(revisions, known)
	}
	revisions = append(revisions, r)
	s.Revisions = revisions
	slices.SortFunc(s.Revisions, func(a, b Revision) int {
		return cmp.Or(cmp.Compare(a.Revision, b.Revision), cmp.Compare(a.UID, b.UID))
	})
	if over := len(s.Revisions) - maxRevisions; over > 0 {
		s.Revisions = slices.Delete(s.Revisions, 0, over)
	}
	if r.WorkloadUID == s.UID && s.View != nil {
		switch {
		case r.Revision == s.Last && s.Hash == "" && !r.Deleted:
			s.Name, s.Hash, s.Taken = r.Name, r.Hash, r.Since
		case s.Unnumbered && r.Name == s.Name && r.Revision >= s.Last && !r.Deleted:
			s.Last, s.Hash, s.Unnumbered = r.Revision, r.Hash, false
		}
	}
}

// history of the object that keeps the revision: which others it kept before.
func history(r *events.ObservedWorkloadRevision, former []int) []int {
	bore := slices.Concat(r.RevisionHistory, former)
	bore = slices.DeleteFunc(bore, func(n int) bool { return n <= 0 || n >= r.Revision })
	slices.Sort(bore)
	bore = slices.Compact(bore)
	if len(bore) == 0 {
		return nil
	}
	return slices.Clone(bore[max(0, len(bore)-maxHistory):])
}

// pend keeps the revision until the workload speaks of it, whatever becomes of the object meanwhile.
func (p *step) pend(r Revision) {
	s := &p.s
	if r.Deleted || r.Revision == 0 || p.past(r) {
		return
	}
	same := func(k Pending) bool {
		return k.WorkloadUID == r.WorkloadUID && k.Revision == r.Revision && (k.Name == r.Name && k.Version == r.Since || s.Key.Kind != Deployment)
	}
	if at := slices.IndexFunc(s.Pending, same); at >= 0 {
		if s.Pending[at].Name != r.Name { // the object that bore the number is gone
			s.Pending[at] = pending(r)
		}
		return
	}
	after := func(k Pending) bool {
		switch {
		case k.WorkloadUID != r.WorkloadUID:
			return k.WorkloadUID > r.WorkloadUID
		case (k.Listed || r.Listed) && k.Revision != r.Revision: // nobody knows when they were taken
			return k.Revision > r.Revision
		default:
			return compareVersions(k.Version, r.Since) > 0
		}
	}
	at := slices.IndexFunc(s.Pending, after)
	if at < 0 {
		at = len(s.Pending)
	}
	revision, name := p.accounted(r.WorkloadUID)
	if at > 0 && s.Pending[at-1].WorkloadUID == r.WorkloadUID {
		revision, name = s.Pending[at-1].Revision, s.Pending[at-1].Name
	}
	if r.Revision == revision && r.Name == name && s.Key.Kind == Deployment {
		return // made anew: it goes on where the one that was deleted stopped
	}
	s.Pending = slices.Insert(s.Pending, at, pending(r))
	if over := len(s.Pending) - maxPending; over > 0 {
		s.Pending = slices.Delete(s.Pending, 0, over)
	}
}

// past says that the revision is accounted for. One that is not above the last one is not if another object took it later.
func (p *step) past(r Revision) bool {
	s := &p.s
	if r.WorkloadUID != s.UID || s.View == nil || r.Revision > s.Last {
		return false
	}
	return s.Key.Kind != Deployment || s.Taken == "" || compareVersions(r.Since, s.Taken) <= 0
}

func pending(r Revision) Pending {
	return Pending{
		WorkloadUID: r.WorkloadUID, Revision: r.Revision, Name: r.Name, Hash: r.Hash, CreatedAt: r.CreatedAt, SeenAt: r.SeenAt,
		Version: r.Since, Listed: r.Listed, History: r.History,
	}
}

// settle forgets what is pending of a UID up to and including a place, or, where that is -1, a revision.
func (p *step) settle(uid string, at, upTo int) {
	if at < 0 {
		for i, k := range p.s.Pending {
			if k.WorkloadUID == uid && k.Revision <= upTo {
				at = i
			}
		}
	}
	rest := make([]Pending, 0, len(p.s.Pending))
	for i, k := range p.s.Pending {
		if k.WorkloadUID != uid || i > at {
			rest = append(rest, k)
		}
	}
	p.s.Pending = rest
	if len(rest) == 0 {
		p.s.Pending = nil
	}
}

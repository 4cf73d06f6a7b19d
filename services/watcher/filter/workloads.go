package filter

import (
	"iter"
	"slices"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/watcher/object"
)

// Workloads is the filter of tracked workloads. A selected workload is published, and its revisions once it is
// known to be selected. A revision observed before its workload waits.
//
//   - A workload that exists and becomes selected is published with origin Found, as are its revisions.
//   - A published workload that is no longer selected is published once as deleted and unselected. Its
//     revisions are forgotten without an event: a deletion with the current version would block a
//     later publish of that version.
//   - The members of a full resync depend only on its lists, since the watch may lag behind.
type Workloads struct {
	exists func(object.Key) bool // known to the queue and not deleted
	owners map[string]*owner     // by UID
}

// owner is an observed workload, or the unobserved owner of an observed revision.
type owner struct {
	observed, selected bool
	initial            bool            // it existed when the watch started
	revisions          []ownedRevision // all that exist, published or waiting for their workload
}

type ownedRevision struct {
	object  *object.Revision
	initial bool
}

// NewWorkloads makes a filter without observations. Exists reports whether the queue knows an object and it is
// not deleted.
func NewWorkloads(exists func(object.Key) bool) *Workloads {
	return &Workloads{exists: exists, owners: make(map[string]*owner)}
}

// Filter implements [Filter].
func (f *Workloads) Filter(v object.Version) []object.Version {
	switch o := v.Object.(type) {
	case *object.Workload:
		if v.Verb == events.VerbDeleted {
			return f.deleted(v)
		}
		return f.upserted(v, o)
	case *object.Revision:
		return f.revision(v, o)
	default:
		return nil
	}
}

func (f *Workloads) upserted(v object.Version, o *object.Workload) []object.Version {
	w := f.owner(string(v.Object.GetUID()))
	before := *w
	w.observed, w.selected = true, o.Selected
	if !before.observed {
		w.initial = v.Origin == object.Initial
	}
	switch {
	case !o.Selected:
		return f.unselect(v, w)
	case before.selected:
		return []object.Version{v}
	case before.observed:
		v.Origin = object.Found
	}
	return append([]object.Version{v}, w.release(v)...)
}

func (f *Workloads) unselect(v object.Version, w *owner) []object.Version {
	if !f.exists(v.Key()) {
		return nil
	}
	v.Verb, v.Unselected, v.Origin = events.VerbDeleted, true, object.Changed
	out := []object.Version{v}
	for _, r := range w.revisions {
		unreported := versionWith(r.object, v)
		unreported.Origin = object.Unreported
		out = append(out, unreported)
	}
	return out
}

func (f *Workloads) deleted(v object.Version) []object.Version {
	uid := string(v.Object.GetUID())
	if w := f.owners[uid]; w != nil {
		w.observed, w.selected = false, false
		f.forget(uid)
	}
	if !f.exists(v.Key()) {
		return nil
	}
	return []object.Version{v}
}

func (f *Workloads) revision(v object.Version, o *object.Revision) []object.Version {
	selected := false
	if uid := o.Owner.UID; uid != "" {
		w := f.owner(uid)
		at := slices.IndexFunc(w.revisions, func(r ownedRevision) bool { return r.object.UID == o.UID })
		switch {
		case v.Verb == events.VerbDeleted && at >= 0:
			w.revisions = slices.Delete(w.revisions, at, at+1)
		case v.Verb == events.VerbDeleted:
		case at >= 0:
			w.revisions[at].object = o
		default:
			w.revisions = append(w.revisions, ownedRevision{object: o, initial: v.Origin == object.Initial})
		}
		// If the creation of the workload was observed, its revisions are new, even if the first list of their kind has
		// them.
		if selected = w.selected; selected && !w.initial && v.Origin == object.Initial {
			v.Origin = object.Changed
		}
		f.forget(uid)
	}
	// A list may have published the revision before its workload was observed.
	if selected || v.Verb == events.VerbDeleted && f.exists(v.Key()) {
		return []object.Version{v}
	}
	return nil
}

// release returns the revisions of a workload that became selected.
func (w *owner) release(v object.Version) []object.Version {
	out := make([]object.Version, 0, len(w.revisions))
	for _, r := range w.revisions {
		revision := versionWith(r.object, v)
		switch {
		case v.Origin == object.Found:
			revision.Origin = object.Found
		case r.initial && w.initial:
			revision.Origin = object.Initial
		}
		out = append(out, revision)
	}
	return out
}

// versionWith returns the version of a revision, observed with its workload.
func versionWith(o *object.Revision, workload object.Version) object.Version {
	return object.Version{
		Kind: o.Kind, Object: o, ResourceVersion: o.ResourceVersion, Verb: events.VerbUpserted,
		ObservedAt: workload.ObservedAt,
	}
}

func (f *Workloads) owner(uid string) *owner {
	w := f.owners[uid]
	if w == nil {
		w = &owner{}
		f.owners[uid] = w
	}
	return w
}

func (f *Workloads) forget(uid string) {
	if w := f.owners[uid]; !w.observed && len(w.revisions) == 0 {
		delete(f.owners, uid)
	}
}

// FilterLists implements [Filter].
func (f *Workloads) FilterLists(lists []object.List) []object.Version {
	var unselected []object.Version
	selected := make(map[string]bool) // listed workloads by UID
	for v := range versions(lists) {
		if o, isWorkload := v.Object.(*object.Workload); isWorkload {
			selected[string(o.UID)] = o.Selected
		}
	}
	for v := range versions(lists) {
		if is, listed := selected[workloadUID(v.Object)]; is || !listed || !f.exists(v.Key()) {
			continue
		}
		if _, isWorkload := v.Object.(*object.Workload); isWorkload {
			v.Verb, v.Unselected = events.VerbDeleted, true
		} else {
			v.Origin = object.Unreported
		}
		unselected = append(unselected, v)
	}
	for i := range lists {
		lists[i].Objects = slices.DeleteFunc(lists[i].Objects, func(o object.Object) bool {
			return !selected[workloadUID(o)]
		})
	}
	return unselected
}

func versions(lists []object.List) iter.Seq[object.Version] {
	return func(yield func(object.Version) bool) {
		for _, list := range lists {
			for _, o := range list.Objects {
				if !yield(list.Version(o)) {
					return
				}
			}
		}
	}
}

// workloadUID returns the UID of a workload, or of the workload that a revision belongs to.
func workloadUID(o object.Object) string {
	if r, isRevision := o.(*object.Revision); isRevision {
		return r.Owner.UID
	}
	return string(o.GetUID())
}

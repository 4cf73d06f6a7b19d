package watcher

import (
	"iter"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/watcher/kube"
)

// Filter decides which of what is seen is told. It is pure and not safe for concurrent use.
type Filter interface {
	// Admit returns what is to be told because of a sighting: itself, others that waited for it, or nothing.
	Admit(s Sighting) []Sighting
	// Sift reduces the listings of a full resync to its members, and returns what else they tell.
	Sift(listings []Listed) []Sighting
}

// owned is the filter of workspaces: what belongs to no Deployment is not told, which the agent's label alone does not make ours. What was some
// Deployment's before is then missing from the next full resync.
type owned struct{}

func (owned) Admit(s Sighting) []Sighting {
	if owningDeployment(s.Kind, s.Object) == "" {
		return nil
	}
	return []Sighting{s}
}

func (owned) Sift(listings []Listed) []Sighting {
	for i := range listings {
		listings[i].Members = slices.DeleteFunc(listings[i].Members, func(s Sighting) bool { return owningDeployment(s.Kind, s.Object) == "" })
	}
	return nil
}

// Gate is the filter of workloads: one that is followed is told, and what keeps its revisions once it is known to be. It may be that this
// is seen first; it waits at the gate then, and as long as its workload is not followed.
//
//   - A workload that is there and comes to be followed is told as found: nobody saw it come to be. So is what waited for it.
//   - One that is told and is no longer followed is told once more, as deleted and unselected. Its revisions go without a word: were they told as deleted in
//     the version they have, they could not be told alive in it again.
//   - A full resync is judged by what it listed alone, which the watch may lag behind.
type Gate struct {
	known  func(Key) bool // alive, as far as the ledger knows
	owners map[string]*workload
}

// workload is one that was seen, or that something that was seen belongs to.
type workload struct {
	seen, followed bool
	initial        bool // it was there when watching began
	revisions      []revisionSeen
}

type revisionSeen struct {
	object  *kube.Revision
	initial bool
}

// NewGate makes a gate that has seen nothing. Known tells whether an object was admitted and lives, as [Ledger.Alive] does.
func NewGate(known func(Key) bool) *Gate {
	return &Gate{known: known, owners: make(map[string]*workload)}
}

// Admit implements [Filter].
func (g *Gate) Admit(s Sighting) []Sighting {
	switch o := s.Object.(type) {
	case *kube.Workload:
		if s.Verb == events.VerbDeleted {
			return g.gone(s)
		}
		return g.seen(s, o)
	case *kube.Revision:
		return g.revision(s, o)
	default:
		return nil
	}
}

func (g *Gate) seen(s Sighting, o *kube.Workload) []Sighting {
	w := g.workload(s.UID)
	before := *w
	w.seen, w.followed = true, o.Followed
	if !before.seen {
		w.initial = s.Occasion == Initial
	}
	switch {
	case !o.Followed:
		return g.leave(s, w)
	case before.followed:
		return []Sighting{s}
	case before.seen:
		s.Occasion = Found
	}
	return append([]Sighting{s}, w.release(s)...)
}

// leave tells of a workload that is not followed, as far as it was before.
func (g *Gate) leave(s Sighting, w *workload) []Sighting {
	if !g.known(s.Key) {
		return nil
	}
	s.Verb, s.Unselected, s.Occasion = events.VerbDeleted, true, Changed
	out := []Sighting{s}
	for _, r := range w.revisions {
		left := of(r.object, s)
		left.Occasion = Left
		out = append(out, left)
	}
	return out
}

func (g *Gate) gone(s Sighting) []Sighting {
	if w := g.owners[s.UID]; w != nil {
		w.seen, w.followed = false, false
		g.forget(s.UID)
	}
	if !g.known(s.Key) {
		return nil
	}
	return []Sighting{s}
}

func (g *Gate) revision(s Sighting, o *kube.Revision) []Sighting {
	followed := false
	if uid := o.Owner.UID; uid != "" {
		w := g.workload(uid)
		at := slices.IndexFunc(w.revisions, func(r revisionSeen) bool { return r.object.UID == o.UID })
		switch {
		case s.Verb == events.VerbDeleted && at >= 0:
			w.revisions = slices.Delete(w.revisions, at, at+1)
		case s.Verb == events.VerbDeleted:
		case at >= 0:
			w.revisions[at].object = o
		default:
			w.revisions = append(w.revisions, revisionSeen{object: o, initial: s.Occasion == Initial})
		}
		// What belongs to a workload that was seen to come to be came to be after it.
		if followed = w.followed; followed && !w.initial && s.Occasion == Initial {
			s.Occasion = Changed
		}
		g.forget(uid)
	}
	// One that a listing told of before its workload was seen here.
	if followed || s.Verb == events.VerbDeleted && g.known(s.Key) {
		return []Sighting{s}
	}
	return nil
}

// release tells of what waited for a workload.
func (w *workload) release(s Sighting) []Sighting {
	out := make([]Sighting, 0, len(w.revisions))
	for _, r := range w.revisions {
		waited := of(r.object, s)
		switch {
		case s.Occasion == Found:
			waited.Occasion = Found
		case r.initial && w.initial:
			waited.Occasion = Initial
		}
		out = append(out, waited)
	}
	return out
}

// of is the sighting of a revision when its workload was sighted.
func of(o *kube.Revision, workload Sighting) Sighting {
	return Sighting{Key: KeyOf(o.Kind, o), Version: o.ResourceVersion, Verb: events.VerbUpserted, Object: o, SeenAt: workload.SeenAt}
}

func (g *Gate) workload(uid string) *workload {
	w := g.owners[uid]
	if w == nil {
		w = &workload{}
		g.owners[uid] = w
	}
	return w
}

func (g *Gate) forget(uid string) {
	if w := g.owners[uid]; !w.seen && len(w.revisions) == 0 {
		delete(g.owners, uid)
	}
}

// Sift implements [Filter].
func (g *Gate) Sift(listings []Listed) []Sighting {
	var others []Sighting
	followed := make(map[string]bool) // of the workloads that are listed
	for s := range members(listings) {
		if o, isWorkload := s.Object.(*kube.Workload); isWorkload {
			followed[s.UID] = o.Followed
		}
	}
	for s := range members(listings) {
		if follow, listed := followed[workloadUID(s.Object)]; follow || !listed || !g.known(s.Key) {
			continue
		}
		if _, isWorkload := s.Object.(*kube.Workload); isWorkload {
			s.Verb, s.Unselected = events.VerbDeleted, true
		} else {
			s.Occasion = Left
		}
		others = append(others, s)
	}
	for i := range listings {
		listings[i].Members = slices.DeleteFunc(listings[i].Members, func(s Sighting) bool { return !followed[workloadUID(s.Object)] })
	}
	return others
}

// members of all listings.
func members(listings []Listed) iter.Seq[Sighting] {
	return func(yield func(Sighting) bool) {
		for i := range listings {
			for _, s := range listings[i].Members {
				if !yield(s) {
					return
				}
			}
		}
	}
}

// workloadUID is that of the workload that an object is or belongs to.
func workloadUID(o metav1.Object) string {
	if r, isRevision := o.(*kube.Revision); isRevision {
		return r.Owner.UID
	}
	return string(o.GetUID())
}

package roster

import (
	"maps"
	"slices"
	"time"

	"lockstep.internal/services/deploys/observed"
	"lockstep.internal/services/deploys/rollout"
)

const (
	// staleAfter is how far an agent's clock must be behind another's of its cluster for that to speak in its place: three ticks.
	staleAfter = 45 * time.Second
	// listedApart is how long there must be between two listings for the later one to be no older by mere delay.
	listedApart = time.Minute
)

// Agent is what an agent says of itself.
type Agent struct {
	ID         int64
	ClusterUID string
	// Epoch of the cluster's resource versions.
	Epoch int
	// TickedAt is the agent's own clock.
	TickedAt time.Time
	// ResyncID of the full resync that began last; Open while it has not ended.
	ResyncID string
	Open     bool
	// Expected members of it, its list versions by kind and when it began.
	Expected int64
	Versions map[string]string
	ResyncAt time.Time
	// Selection is what the watcher follows; Complete the selection of the last full resync that was complete, nil before the first.
	Selection string
	Complete  *string
	// CompleteAt is when the first one of that selection in a row that was complete began.
	CompleteAt time.Time
	// Listed are versions by kind that were listed at ListedAt or before.
	Listed   map[string]string
	ListedAt time.Time
}

// Member says whether what is told of an object makes it a member of the full resync that is open.
func (a *Agent) Member(o *observed.Observed) bool {
	meta := o.Object()
	return meta != nil && meta.ResyncID != "" && a.Open && meta.ResyncID == a.ResyncID
}

// Whole says whether the full resync that ends came in whole, of which so many members came.
func (a *Agent) Whole(o *observed.Observed, members int64) bool {
	return members == a.Expected && int64(o.Ended.Count) == a.Expected
}

// Absence is what the full resync says of a workload of a kind that it lacks; nil when it says nothing. If the watcher follows others than at the last one, it
// may still be there.
func (a *Agent) Absence(kind string) *rollout.Absence {
	listed, known := a.Versions[kind]
	if !known {
		return nil
	}
	return &rollout.Absence{ListVersion: listed, Unselected: a.Complete != nil && *a.Complete != a.Selection}
}

// begin begins a full resync.
func (a *Agent) begin(o *observed.Observed) {
	if a.ClusterUID != o.ClusterUID {
		*a = Agent{ID: a.ID, ClusterUID: o.ClusterUID, TickedAt: a.TickedAt}
	}
	a.ResyncID, a.Open, a.Expected, a.ResyncAt, a.Selection = o.Begun.ResyncID, true, int64(o.Begun.Count), o.At, o.Begun.Selection
	a.Versions = make(map[string]string, len(o.Begun.ListVersions))
	for _, v := range o.Begun.ListVersions {
		a.Versions[v.Kind] = v.ResourceVersion
	}
}

// restored says whether the cluster's store was restored: everything that is listed now has lower versions than was listed long before.
func (a *Agent) restored() bool {
	if len(a.Versions) == 0 {
		return false
	}
	if a.ListedAt.IsZero() {
		a.Listed, a.ListedAt = a.Versions, a.ResyncAt
		return false
	}
	if a.ResyncAt.Sub(a.ListedAt) < listedApart {
		return false
	}
	lower := true
	for kind, listed := range a.Versions {
		before, known := a.Listed[kind]
		lower = lower && known && observed.Below(listed, before)
	}
	a.Listed, a.ListedAt = a.Versions, a.ResyncAt
	return lower
}

// Roster is all agents. It is for one goroutine.
type Roster struct {
	stored  map[int64]Agent
	changed map[int64]*Agent
	// read are those that were asked for and are as they are stored.
	read map[int64]*Agent
	// epochs of clusters, as far as they were asked for.
	epochs map[string]int
}

// New makes a roster of agents that are known; it changes them only when it is told to [Roster.Keep] what it has learnt.
func New(stored map[int64]Agent) *Roster {
	return &Roster{stored: stored, changed: map[int64]*Agent{}, read: map[int64]*Agent{}, epochs: map[string]int{}}
}

// Changed are the agents that are not as they are stored, in the order of their ids.
func (r *Roster) Changed() []Agent {
	all := make([]Agent, 0, len(r.changed))
	for _, id := range slices.Sorted(maps.Keys(r.changed)) {
		all = append(all, *r.changed[id])
	}
	return all
}

// Keep puts what was learnt among what is stored.
func (r *Roster) Keep() {
	for id, a := range r.changed {
		r.stored[id] = *a
	}
}

// Agent is what is known of an agent; it is not to be changed.
func (r *Roster) Agent(id int64) *Agent {
	if a := r.changed[id]; a != nil {
		return a
	}
	if a := r.read[id]; a != nil {
		return a
	}
	a, there := r.stored[id]
	if !there {
		a.ID = id
	}
	r.read[id] = &a
	return &a
}

func (r *Roster) change(a *Agent) *Agent {
	if there := r.changed[a.ID]; there != nil {
		return there
	}
	delete(r.read, a.ID)
	r.changed[a.ID] = a
	return a
}

// colleagues are all agents of a cluster.
func (r *Roster) colleagues(cluster string) []*Agent {
	var all []*Agent
	for id, a := range r.stored {
		if _, changed := r.changed[id]; !changed && a.ClusterUID == cluster {
			all = append(all, &a)
		}
	}
	for _, a := range r.changed {
		if a.ClusterUID == cluster {
			all = append(all, a)
		}
	}
	return all
}

package detection

import (
	"slices"
	"time"

	"github.com/google/uuid"

	"lockstep.internal/schemas/gen/events"
	observed "lockstep.internal/services/deploys/nats"
	"lockstep.internal/services/deploys/rollout"
)

// agent is what is known of a watcher.
type agent struct {
	id       int64
	cluster  string
	epoch    int
	tickedAt time.Time

	// resyncs that have begun; resync is the last of them, open while it has not ended, with what it shall have and what has come.
	resyncs  map[string]struct{}
	resync   string
	open     bool
	expected int
	versions map[string]string
	resyncAt time.Time
	members  map[string]struct{}
	came     map[uuid.UUID]struct{}
	// selection that the watcher follows, complete that of the last full resync that came in whole, since completeAt.
	selection  string
	complete   *string
	completeAt time.Time
	// listed are the versions by kind that were listed at listedAt.
	listed   map[string]string
	listedAt time.Time
}

const (
	// staleAfter is how far an agent's clock must be behind another's of its cluster for that to speak in its place.
	staleAfter = 45 * time.Second
	// listedApart is how long there must be between two listings for the later one to be no older by mere delay.
	listedApart = time.Minute
)

// speaksFor are the agents in whose place an agent speaks: itself, and those of its cluster that have fallen silent.
func (d *Detector) speaksFor(a *agent, at time.Time) []int64 {
	ids := []int64{a.id}
	for _, other := range d.agents {
		if other.id != a.id && other.cluster == a.cluster && other.tickedAt.Before(at.Add(-staleAfter)) {
			ids = append(ids, other.id)
		}
	}
	return ids
}

// epoch of the versions of an agent's cluster: the highest that any of its agents knows.
func (d *Detector) epoch(a *agent) int {
	epoch := a.epoch
	for _, other := range d.agents {
		if other.cluster == a.cluster {
			epoch = max(epoch, other.epoch)
		}
	}
	return epoch
}

// member notes that an object is one of the full resync that is open.
func (a *agent) member(o *observed.Observed) {
	meta, kind := object(o)
	if meta.ResyncID == "" || !a.open || meta.ResyncID != a.resync {
		return
	}
	a.members[kind+"/"+meta.UID] = struct{}{}
	if o.Revision == nil {
		a.came[o.ID] = struct{}{}
	}
}

// object that a message is about, and its kind.
func object(o *observed.Observed) (events.ObjectMeta, string) {
	switch {
	case o.Workload != nil:
		return o.Workload.Object, string(o.Workload.Kind)
	case o.Revision != nil:
		return o.Revision.Object, string(o.Revision.Kind)
	default:
		return o.Rejected.Object, o.Rejected.Kind
	}
}

// beginResync takes in the begin of a full resync. One that has begun before says nothing new.
func (d *Detector) beginResync(a *agent, o *observed.Observed) {
	if _, known := a.resyncs[o.Begun.ResyncID]; known {
		return
	}
	a.resyncs[o.Begun.ResyncID] = struct{}{}
	if a.cluster != o.ClusterUID {
		*a = agent{id: a.id, cluster: o.ClusterUID, tickedAt: a.tickedAt, resyncs: a.resyncs}
	}
	a.resync, a.open, a.expected, a.resyncAt, a.selection = o.Begun.ResyncID, true, o.Begun.Count, o.At, o.Begun.Selection
	a.members, a.came = map[string]struct{}{}, map[uuid.UUID]struct{}{}
	a.versions = make(map[string]string, len(o.Begun.ListVersions))
	for _, v := range o.Begun.ListVersions {
		a.versions[v.Kind] = v.ResourceVersion
	}
	d.judgeEpoch(a)
}

// judgeEpoch notices that the cluster's store was restored: everything that is listed now has lower versions than was listed long before.
func (d *Detector) judgeEpoch(a *agent) {
	if len(a.versions) == 0 {
		return
	}
	if a.listedAt.IsZero() {
		a.listed, a.listedAt = a.versions, a.resyncAt
		return
	}
	if a.resyncAt.Sub(a.listedAt) < listedApart {
		return
	}
	lower := true
	for kind, listed := range a.versions {
		before, known := a.listed[kind]
		lower = lower && known && (len(listed) < len(before) || len(listed) == len(before) && listed < before)
	}
	a.listed, a.listedAt = a.versions, a.resyncAt
	if lower {
		a.epoch = d.epoch(a) + 1
	}
}

// endResync takes in the end of a full resync, and what is absent by it.
func (d *Detector) endResync(a *agent, o *observed.Observed) {
	if !a.open || a.resync != o.Ended.ResyncID {
		return
	}
	a.open = false
	if len(a.members) != a.expected || o.Ended.Count != a.expected {
		return // it did not come in whole: nothing is judged by it
	}
	agents := d.speaksFor(a, o.At)
	var absent []*workload
	for key, w := range d.workloads {
		if _, came := a.came[w.id]; !came && key.ClusterUID == a.cluster && slices.Contains(agents, w.agentID) && w.state.Present() {
			absent = append(absent, w)
		}
	}
	byID(absent)
	for _, w := range absent {
		d.absent(a, w, o.At)
	}
	selection := a.selection
	if a.complete == nil || *a.complete != selection {
		a.completeAt = o.At
	}
	a.complete = &selection
}

func (d *Detector) absent(a *agent, w *workload, at time.Time) {
	listed, known := a.versions[w.state.Key.Kind]
	if !known {
		return
	}
	input := d.input(a, at)
	input.AgentID = w.agentID
	input.Absence = &rollout.Absence{ListVersion: listed, Unselected: a.complete != nil && *a.complete != a.selection}
	d.advance(w, input)
}

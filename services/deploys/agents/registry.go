package agents

import (
	"maps"
	"slices"
	"time"

	"lockstep.internal/services/deploys/observation"
	"lockstep.internal/services/deploys/rollout"
)

// Registry holds all agents. It is not safe for concurrent use.
type Registry struct {
	stored  map[int64]Agent
	changed map[int64]*Agent
	// read are unchanged copies of stored agents.
	read map[int64]*Agent
	// epochs caches the epoch of each cluster.
	epochs map[string]int
}

// New returns a registry of the stored agents. It writes to the map only in [Registry.Commit].
func New(stored map[int64]Agent) *Registry {
	return &Registry{
		stored: stored, changed: map[int64]*Agent{}, read: map[int64]*Agent{}, epochs: map[string]int{},
	}
}

// Changed returns the agents that differ from the stored ones, ordered by id.
func (r *Registry) Changed() []Agent {
	all := make([]Agent, 0, len(r.changed))
	for _, id := range slices.Sorted(maps.Keys(r.changed)) {
		all = append(all, *r.changed[id])
	}
	return all
}

// Commit copies the changed agents into the stored ones.
func (r *Registry) Commit() {
	for id, a := range r.changed {
		r.stored[id] = *a
	}
	clear(r.changed)
	clear(r.read)
}

// Agent returns an agent. It returns a new one if the agent is unknown. The caller must not change it.
func (r *Registry) Agent(id int64) *Agent {
	if a := r.changed[id]; a != nil {
		return a
	}
	if a := r.read[id]; a != nil {
		return a
	}
	a, known := r.stored[id]
	if !known {
		a.ID = id
	}
	r.read[id] = &a
	return &a
}

func (r *Registry) edit(a *Agent) *Agent {
	if changed := r.changed[a.ID]; changed != nil {
		return changed
	}
	delete(r.read, a.ID)
	r.changed[a.ID] = a
	return a
}

// inCluster returns all agents of a cluster.
func (r *Registry) inCluster(clusterUID string) []*Agent {
	var all []*Agent
	for id, a := range r.stored {
		if _, changed := r.changed[id]; !changed && a.ClusterUID == clusterUID {
			all = append(all, &a)
		}
	}
	for _, a := range r.changed {
		if a.ClusterUID == clusterUID {
			all = append(all, a)
		}
	}
	return all
}

// Sender returns the agent that sent an observation other than the begin of a full resync, and whether it is in the
// observed cluster. The first observation of an agent sets its cluster.
func (r *Registry) Sender(o *observation.Observation) (*Agent, bool) {
	a := r.Agent(o.AgentID)
	if a.ClusterUID == "" {
		a = r.edit(a)
		a.ClusterUID = o.ClusterUID
		clear(r.epochs)
	}
	return a, a.ClusterUID == o.ClusterUID
}

// ResyncStart is the result of [Registry.BeginResync].
type ResyncStart struct {
	Agent *Agent
	// PreviousCluster is the cluster that the agent left; empty if it stays in its cluster.
	PreviousCluster string
	// Restored reports that the cluster was restored: its resource versions restarted, and its epoch has grown.
	Restored bool
}

// BeginResync begins a full resync. Call it once for each resync: a redelivered begin must not move the agent back to
// its old cluster or selection.
func (r *Registry) BeginResync(o *observation.Observation) ResyncStart {
	a := r.edit(r.Agent(o.AgentID))
	clear(r.epochs)
	start := ResyncStart{Agent: a}
	if a.ClusterUID != o.ClusterUID {
		start.PreviousCluster = a.ClusterUID
	}
	a.beginResync(o)
	if start.Restored = a.detectRestore(); start.Restored {
		a.Epoch = r.epoch(a) + 1
		clear(r.epochs)
	}
	return start
}

// EndResync ends the open full resync. It returns false if o does not belong to that resync.
func (r *Registry) EndResync(o *observation.Observation) (*Agent, bool) {
	a := r.Agent(o.AgentID)
	if !a.ResyncOpen || a.ResyncID != o.ResyncEnded.ResyncID {
		return a, false
	}
	a = r.edit(a)
	a.ResyncOpen = false
	return a, true
}

// CompleteResync records that the ended full resync was complete. Call it after the absent workloads are handled.
func (r *Registry) CompleteResync(a *Agent) {
	a = r.edit(a)
	selection := a.Selection
	if a.SelectionComplete == nil || *a.SelectionComplete != selection {
		a.CompleteSince = a.ResyncAt // a workload created after the list is new
	}
	a.SelectionComplete = &selection
}

// ReleaseCluster prepares the agents of a cluster for another project: their next full resync is a baseline. The epoch
// stays.
func (r *Registry) ReleaseCluster(clusterUID string) {
	for _, a := range r.inCluster(clusterUID) {
		a = r.edit(a)
		a.ResyncOpen, a.SelectionComplete, a.CompleteSince = false, nil, time.Time{}
	}
}

// epoch returns the highest epoch that any agent of the cluster knows.
func (r *Registry) epoch(a *Agent) int {
	if epoch, known := r.epochs[a.ClusterUID]; known {
		return epoch
	}
	epoch := a.Epoch
	for _, other := range r.inCluster(a.ClusterUID) {
		epoch = max(epoch, other.Epoch)
	}
	r.epochs[a.ClusterUID] = epoch
	return epoch
}

// Input returns the fields that all rollout inputs of an agent have in common.
func (r *Registry) Input(a *Agent, observedAt time.Time) rollout.Input {
	input := rollout.Input{AgentID: a.ID, ObservedAt: observedAt, Epoch: r.epoch(a)}
	if a.SelectionComplete != nil && *a.SelectionComplete == a.Selection {
		input.HasBaseline, input.BaselineAt = true, a.CompleteSince
	}
	return input
}

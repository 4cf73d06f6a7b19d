package roster

import (
	"slices"
	"time"

	"lockstep.internal/services/deploys/observed"
	"lockstep.internal/services/deploys/rollout"
)

// Hear gives the agent that says something, other than that a full resync begins. An agent that has said nothing yet is in the cluster that it speaks of; false when it is in another one.
func (r *Roster) Hear(o *observed.Observed) (*Agent, bool) {
	a := r.Agent(o.AgentID)
	if a.ClusterUID == "" {
		a = r.change(a)
		a.ClusterUID = o.ClusterUID
		clear(r.epochs)
	}
	return a, a.ClusterUID == o.ClusterUID
}

// Begun is what the begin of a full resync means.
type Begun struct {
	Agent *Agent
	// Before is the cluster that the agent was in; empty when it has not changed.
	Before string
	// Restored says that a new epoch of the cluster's versions begins.
	Restored bool
}

// Begin takes in that a full resync begins. It is not for one that has begun before: that says nothing new, least of all that the agent is in that cluster, or follows that
// selection.
func (r *Roster) Begin(o *observed.Observed) Begun {
	a := r.change(r.Agent(o.AgentID))
	clear(r.epochs)
	out := Begun{Agent: a}
	if a.ClusterUID != o.ClusterUID {
		out.Before = a.ClusterUID
	}
	a.begin(o)
	if out.Restored = a.restored(); out.Restored {
		a.Epoch = r.epoch(a) + 1
		clear(r.epochs)
	}
	return out
}

// End takes in that a full resync ends; false when it is not the one that is open.
func (r *Roster) End(o *observed.Observed) (*Agent, bool) {
	a := r.Agent(o.AgentID)
	if !a.Open || a.ResyncID != o.Ended.ResyncID {
		return a, false
	}
	a = r.change(a)
	a.Open = false
	return a, true
}

// Complete notes that the full resync that has ended came in whole, after what is absent by it was judged.
func (r *Roster) Complete(a *Agent) {
	a = r.change(a)
	selection := a.Selection
	if a.Complete == nil || *a.Complete != selection {
		a.CompleteAt = a.ResyncAt // what came to be after it was listed is new, even if it took a while to tell
	}
	a.Complete = &selection
}

// Release takes in that a cluster goes from one project to another: what was listed of it so far was listed for others, so that whoever lists it next begins with a
// baseline. Its versions go on.
func (r *Roster) Release(cluster string) {
	for _, a := range r.colleagues(cluster) {
		if a = r.change(a); a.ClusterUID == cluster {
			a.Open, a.Complete, a.CompleteAt = false, nil, time.Time{}
		}
	}
}

// epoch of the versions of an agent's cluster: the highest that any of its agents knows.
func (r *Roster) epoch(a *Agent) int {
	if epoch, there := r.epochs[a.ClusterUID]; there {
		return epoch
	}
	epoch := a.Epoch
	for _, other := range r.colleagues(a.ClusterUID) {
		epoch = max(epoch, other.Epoch)
	}
	r.epochs[a.ClusterUID] = epoch
	return epoch
}

// Input is what an agent's inputs have in common.
func (r *Roster) Input(a *Agent, at time.Time) rollout.Input {
	input := rollout.Input{AgentID: a.ID, ObservedAt: at, Epoch: r.epoch(a)}
	if a.Complete != nil && *a.Complete == a.Selection {
		input.KnownBefore, input.KnownAt = true, a.CompleteAt
	}
	return input
}

// Word is whom somebody speaks for, and when: of time, and of absence.
type Word struct {
	ClusterUID string
	At         time.Time
	// Agents in whose place it counts, in the order of their ids.
	Agents []int64
}

// SpeaksFor says in whose place an agent speaks of time and absence: in its own, and in that of those of its cluster that have fallen silent.
func (r *Roster) SpeaksFor(a *Agent, at time.Time) Word {
	w := Word{ClusterUID: a.ClusterUID, At: at, Agents: []int64{a.ID}}
	for _, other := range r.colleagues(a.ClusterUID) {
		if other.ID != a.ID && other.TickedAt.Before(at.Add(-staleAfter)) {
			w.Agents = append(w.Agents, other.ID)
		}
	}
	slices.Sort(w.Agents)
	return w
}

// Tick takes in an agent's clock; false when it does not go on.
func (r *Roster) Tick(a *Agent, at time.Time) (Word, bool) {
	if !at.After(a.TickedAt) {
		return Word{}, false
	}
	a = r.change(a)
	a.TickedAt = at
	return r.SpeaksFor(a, at), true
}

// Concerns says whether the word is about what an agent has told of in a cluster.
func (w Word) Concerns(cluster string, agentID int64) bool {
	return cluster == w.ClusterUID && slices.Contains(w.Agents, agentID)
}

// Wakes says whether it is time for what wakes at a time, if ever.
func (w Word) Wakes(cluster string, agentID int64, wake time.Time) bool {
	return !wake.IsZero() && !wake.After(w.At) && w.Concerns(cluster, agentID)
}

// Teller is the agent in whose name what has changed stands: the one that told of it last, or else the one by whose word it changed.
func Teller(told, by int64) int64 {
	if told != 0 {
		return told
	}
	return by
}

package agents

import (
	"slices"
	"time"
)

// staleAfter is the time of three ticks. An agent whose last tick is older is stale: other agents of its cluster act
// for it.
const staleAfter = 45 * time.Second

// Authority lists the agents that one agent acts for. Its ticks and full resyncs also apply to their workloads.
type Authority struct {
	ClusterUID string
	At         time.Time
	// AgentIDs in ascending order.
	AgentIDs []int64
}

// Authority returns the agents that a may act for at a time: itself and the stale agents of its cluster.
func (r *Registry) Authority(a *Agent, at time.Time) Authority {
	authority := Authority{ClusterUID: a.ClusterUID, At: at, AgentIDs: []int64{a.ID}}
	for _, other := range r.inCluster(a.ClusterUID) {
		if other.ID != a.ID && other.TickedAt.Before(at.Add(-staleAfter)) {
			authority.AgentIDs = append(authority.AgentIDs, other.ID)
		}
	}
	slices.Sort(authority.AgentIDs)
	return authority
}

// Tick advances the agent's clock. It returns false if the clock does not advance.
func (r *Registry) Tick(a *Agent, at time.Time) (Authority, bool) {
	if !at.After(a.TickedAt) {
		return Authority{}, false
	}
	a = r.edit(a)
	a.TickedAt = at
	return r.Authority(a, at), true
}

// Covers reports whether the authority includes the workloads that an agent reported in a cluster.
func (a Authority) Covers(clusterUID string, agentID int64) bool {
	return clusterUID == a.ClusterUID && slices.Contains(a.AgentIDs, agentID)
}

// Due reports whether the authority covers a state and its wake-up time is reached. The zero time is never due.
func (a Authority) Due(clusterUID string, agentID int64, wakeAt time.Time) bool {
	return !wakeAt.IsZero() && !wakeAt.After(a.At) && a.Covers(clusterUID, agentID)
}

// Reporter returns the agent to which a changed state belongs: the agent that reported it last, or the sender of the
// input.
func Reporter(reported, input int64) int64 {
	if reported != 0 {
		return reported
	}
	return input
}

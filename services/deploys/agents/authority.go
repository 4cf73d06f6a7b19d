package agents

import (
	"slices"
	"time"
)

// staleAfter is three ticks: if its clock is so far behind, others of its cluster act for an agent.
const staleAfter = 45 * time.Second

// Authority names the agents for which the clock and the full resyncs of one agent count.
type Authority struct {
	ClusterUID string
	At         time.Time
	// AgentIDs in ascending order.
	AgentIDs []int64
}

// Authority returns the authority of an agent: for itself, and for the stale agents of its cluster.
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

// Covers reports whether the authority extends to what an agent reported in a cluster.
func (a Authority) Covers(clusterUID string, agentID int64) bool {
	return clusterUID == a.ClusterUID && slices.Contains(a.AgentIDs, agentID)
}

// Due reports whether a tick at this time matters to a state with the given wake-up time; the zero time is never due.
func (a Authority) Due(clusterUID string, agentID int64, wakeAt time.Time) bool {
	return !wakeAt.IsZero() && !wakeAt.After(a.At) && a.Covers(clusterUID, agentID)
}

// Reporter returns the agent to which a changed state belongs: the one that reported it last, else the sender of
// the input that changed it.
func Reporter(reported, input int64) int64 {
	if reported != 0 {
		return reported
	}
	return input
}

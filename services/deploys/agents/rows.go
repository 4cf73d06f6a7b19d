package agents

// Rows counts what an agent has added to the tables. The same fields are the limits of one agent.
type Rows struct {
	// Workloads and Environments that it was the first to report. They stay when they are deleted in the cluster.
	Workloads, Environments int64
	// Members of its newest full resync. A member counts again if it is reported again.
	Members int64
	// Clusters is how often it has moved to another cluster.
	Clusters int64
}

// DefaultLimits returns the limits of one agent: 20 times the largest cluster of 50,000 workloads.
func DefaultLimits() Rows {
	return Rows{Workloads: 1_000_000, Environments: 1_000_000, Members: 2_000_000, Clusters: 1000}
}

// Row selects one of the counts.
type Row func(*Rows) *int64

// Add counts one more row of an agent. It returns false and counts nothing if the agent has as many as the limit.
func (r *Registry) Add(agentID int64, row Row, limits Rows) bool {
	a := r.Agent(agentID)
	if *row(&a.Rows) >= *row(&limits) {
		return false
	}
	*row(&r.edit(a).Rows)++
	return true
}

package ownership

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"lockstep.internal/services/deploys/observation"
)

// Reporter is an agent that has reported an accepted observation.
type Reporter struct {
	AgentID, ProjectID int64
	// Since is the stream position of its first accepted message.
	Since uint64
}

// Claim states which project owns a cluster.
type Claim struct {
	ClusterUID string
	// Since is the first stream position at which the claim applies. It applies until the next claim of the cluster.
	Since uint64
	// ProjectID is 0 after a release to no project.
	ProjectID int64
	// AgentID of the agent that reported the cluster; 0 if an administrator decided.
	AgentID int64
	// UserID of the administrator, and the given reason; empty if an agent reported the cluster.
	UserID int64
	Reason string
	// At is when the claim was stored. No decision uses it.
	At time.Time
}

// ByAdministrator reports whether an administrator made the claim. Otherwise an agent reported the cluster first.
func (c Claim) ByAdministrator() bool { return c.AgentID == 0 }

// Mode states which of the stored claims applies to a message.
type Mode int

const (
	// FirstRead reads new messages: the newest claim applies, and a message about an unclaimed cluster claims it.
	FirstRead Mode = iota
	// Replay reads old messages again: the claim at the stream position of each message applies. No cluster is claimed.
	Replay
	// ReplayRestored reads the messages of a restored stream again. Their positions have changed, so the newest claim
	// applies. No cluster is claimed.
	ReplayRestored
)

// Claims checks observations against the stored claims and reporters. It is not safe for concurrent use.
type Claims struct {
	mode      Mode
	reporters map[int64]Reporter
	claims    map[string][]Claim
	// New decisions, not yet stored.
	newReporters map[int64]Reporter
	newClaims    []Claim
}

// NewClaims returns the Claims with these stored decisions. The claims of a cluster are ordered oldest first. Only
// [Claims.Commit] writes to the maps.
func NewClaims(mode Mode, reporters map[int64]Reporter, claims map[string][]Claim) *Claims {
	return &Claims{mode: mode, reporters: reporters, claims: claims, newReporters: map[int64]Reporter{}}
}

// New returns the new reporters, ordered by agent, and the new claims, oldest first.
func (c *Claims) New() ([]Reporter, []Claim) {
	reporters := slices.SortedFunc(maps.Values(c.newReporters), func(a, b Reporter) int {
		return cmp.Compare(a.AgentID, b.AgentID)
	})
	return reporters, c.newClaims
}

// Commit moves the new decisions to the stored ones.
func (c *Claims) Commit() {
	maps.Copy(c.reporters, c.newReporters)
	for _, claim := range c.newClaims {
		c.claims[claim.ClusterUID] = append(c.claims[claim.ClusterUID], claim)
	}
	clear(c.newReporters)
	c.newClaims = nil
}

// Project returns the project of an agent at a stream position. It returns false if no earlier message of the agent was
// accepted.
func (c *Claims) Project(agentID int64, at uint64) (int64, bool) {
	r, known := c.reporters[agentID]
	if !known {
		r, known = c.newReporters[agentID]
	}
	if !known || c.mode == Replay && at < r.Since {
		return 0, false
	}
	return r.ProjectID, true
}

// AddReporter records the project of an agent that reports for the first time.
func (c *Claims) AddReporter(agentID, projectID int64, at uint64) {
	c.newReporters[agentID] = Reporter{AgentID: agentID, ProjectID: projectID, Since: at}
}

// Admit checks an observation by an agent of a project. It returns a [*ForeignError] if another project owns the
// cluster. The observation claims an unowned cluster, unless it is a tick. agentCluster is the cluster that the agent
// is in; it is empty for an agent without observations.
func (c *Claims) Admit(o *observation.Observation, at uint64, projectID int64, agentCluster string) error {
	claim, claimed := c.claimAt(o.ClusterUID, at)
	if claimed && claim.ProjectID != 0 {
		if claim.ProjectID == projectID {
			return nil
		}
		return &ForeignError{Claim: claim, AgentID: o.AgentID, ProjectID: projectID, Tick: o.Tick}
	}
	inCluster := agentCluster == "" || agentCluster == o.ClusterUID || o.ResyncBegun != nil
	if c.mode == FirstRead && inCluster && !o.Tick {
		c.newClaims = append(c.newClaims,
			Claim{ClusterUID: o.ClusterUID, Since: at, ProjectID: projectID, AgentID: o.AgentID})
	}
	return nil
}

// Release applies the release of a cluster. It returns false if the release has no effect, because the claim changed
// before the release arrived or because the stream was restored.
func (c *Claims) Release(o *observation.Observation, at uint64) bool {
	r := o.ClusterReleased
	claim, claimed := c.claimAt(o.ClusterUID, at)
	switch {
	case c.mode == Replay:
		return claimed && claim.ByAdministrator() && claim.Since == at
	case c.mode == ReplayRestored, !claimed, claim.ProjectID != int64(r.ProjectID), claim.Since != uint64(r.Since):
		return false
	}
	c.newClaims = append(c.newClaims, Claim{
		ClusterUID: o.ClusterUID, Since: at, ProjectID: int64(r.ToProjectID), UserID: int64(r.UserID), Reason: r.Reason,
	})
	return true
}

// claimAt returns the claim that holds at a position; false for a cluster without claims.
func (c *Claims) claimAt(clusterUID string, at uint64) (Claim, bool) {
	for _, claim := range slices.Backward(c.newClaims) {
		if claim.ClusterUID == clusterUID {
			return claim, true
		}
	}
	for _, claim := range slices.Backward(c.claims[clusterUID]) {
		if c.mode != Replay || claim.Since <= at {
			return claim, true
		}
	}
	return Claim{}, false
}

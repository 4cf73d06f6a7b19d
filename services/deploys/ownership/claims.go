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
	// Since is the stream position from which the claim holds, until that of the next claim.
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

// ByAdministrator reports whether an administrator decided, and not the report of an agent.
func (c Claim) ByAdministrator() bool { return c.AgentID == 0 }

// Mode states how stream positions relate to stored decisions.
type Mode int

const (
	// FirstRead reads new messages: the newest claim counts, and unclaimed clusters are claimed.
	FirstRead Mode = iota
	// Reread reads old messages: each is judged by the decision that held at its position. Nothing is claimed.
	Reread
	// RereadRestored rereads a stream that was restored since. Positions have changed, so the newest claim counts.
	RereadRestored
)

// Claims decides by stored claims and reporters. It is not safe for concurrent use.
type Claims struct {
	mode      Mode
	reporters map[int64]Reporter
	claims    map[string][]Claim
	// New decisions, not yet stored.
	newReporters map[int64]Reporter
	newClaims    []Claim
}

// NewClaims returns Claims of the stored decisions. Claims of a cluster are ordered oldest first. It writes to the maps
// only in [Claims.Commit].
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

// Project returns the project of an agent at a stream position; false if no message of it was accepted until then.
func (c *Claims) Project(agentID int64, at uint64) (int64, bool) {
	r, known := c.reporters[agentID]
	if !known {
		r, known = c.newReporters[agentID]
	}
	if !known || c.mode == Reread && at < r.Since {
		return 0, false
	}
	return r.ProjectID, true
}

// AddReporter records the project of an agent that reports for the first time.
func (c *Claims) AddReporter(agentID, projectID int64, at uint64) {
	c.newReporters[agentID] = Reporter{AgentID: agentID, ProjectID: projectID, Since: at}
}

// Admit checks an observation by an agent of a project: a [*ForeignError] if another project owns the cluster. The
// observation claims an unowned cluster, unless it is a tick. agentCluster is the cluster that the agent is in; empty
// for an agent without observations.
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

// Release applies the release of a cluster. It returns false if the release has no effect: it names another claim than
// the current one, or its stream was restored.
func (c *Claims) Release(o *observation.Observation, at uint64) bool {
	r := o.ClusterReleased
	claim, claimed := c.claimAt(o.ClusterUID, at)
	switch {
	case c.mode == Reread:
		return claimed && claim.ByAdministrator() && claim.Since == at
	case c.mode == RereadRestored, !claimed, claim.ProjectID != int64(r.ProjectID), claim.Since != uint64(r.Since):
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
		if c.mode != Reread || claim.Since <= at {
			return claim, true
		}
	}
	return Claim{}, false
}

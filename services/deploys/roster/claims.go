package roster

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"lockstep.internal/services/deploys/observed"
)

// Reporter is an agent that has told something.
type Reporter struct {
	AgentID, ProjectID int64
	// Since is the position on the stream OBSERVED of the first message of it that was taken in.
	Since uint64
}

// Claim says whose a cluster is.
type Claim struct {
	ClusterUID string
	// Since is the position on the stream OBSERVED from which on it is so, until that of the next claim.
	Since uint64
	// ProjectID is 0 for a cluster that was released, and that nobody has reported since.
	ProjectID int64
	// AgentID of the agent that reported the cluster; 0 where an administrator decided.
	AgentID int64
	// UserID of that administrator, and the reason given; 0 where an agent reported it.
	UserID int64
	Reason string
	// At is when it was stored; it decides nothing.
	At time.Time
}

// Decided says that it was an administrator's decision, and no agent's report.
func (c Claim) Decided() bool { return c.AgentID == 0 }

// Reading says what the positions of messages mean to claims.
type Reading int

const (
	// Onwards is that the stream is read for the first time: what was claimed last counts, and what is nobody's is claimed.
	Onwards Reading = iota
	// Again is that it is read once more: each message is judged as it was then, by its position, and nothing is claimed.
	Again
	// Restored is as Again, of a stream that was restored from an older copy meanwhile. Positions are then not those of then, and what was claimed last counts.
	Restored
)

// Claims judges whose clusters are: a cluster is the project's whose agent told of a workload or a full resync there first, until it is released. It is for one
// goroutine.
//
// Whose an agent is comes from the directory, and a release from people: neither is in what agents observe. So what was decided when the stream was read first is
// stored with the position at which it took effect, and whoever reads again goes by that, however directory and claims have changed. A release is besides a message
// of the stream, since much follows from it: rollouts end, and what is said next is said to others. Where it stands among observations is then the same for all
// who read, in whatever batches, and for those who have the stream alone.
type Claims struct {
	reading   Reading
	reporters map[int64]Reporter
	claims    map[string][]Claim
	// What was added, and is not among the others until it is kept.
	reported map[int64]Reporter
	claimed  []Claim
}

// NewClaims goes by what is stored, claims of each cluster in the order in which they were made. It changes that only when it is told to [Claims.Keep] what was added.
func NewClaims(reading Reading, reporters map[int64]Reporter, claims map[string][]Claim) *Claims {
	return &Claims{reading: reading, reporters: reporters, claims: claims, reported: map[int64]Reporter{}}
}

// Added are the agents that have told something for the first time, by their ids, and the claims that were made, in order.
func (c *Claims) Added() ([]Reporter, []Claim) {
	reporters := make([]Reporter, 0, len(c.reported))
	for _, r := range c.reported {
		reporters = append(reporters, r)
	}
	slices.SortFunc(reporters, func(a, b Reporter) int { return int(a.AgentID - b.AgentID) })
	return reporters, c.claimed
}

// Keep puts what was added among what is stored.
func (c *Claims) Keep() {
	if len(c.reported)+len(c.claimed) == 0 {
		return
	}
	maps.Copy(c.reporters, c.reported)
	for _, v := range c.claimed {
		c.claims[v.ClusterUID] = append(c.claims[v.ClusterUID], v)
	}
	clear(c.reported)
	c.claimed = nil
}

// Project is whose an agent is that says something at a position; false for one that had told nothing by then that was taken in.
func (c *Claims) Project(agentID int64, at uint64) (int64, bool) {
	r, known := c.reporters[agentID]
	if !known {
		r, known = c.reported[agentID]
	}
	if !known || c.reading == Again && at < r.Since {
		return 0, false
	}
	return r.ProjectID, true
}

// Report notes whose an agent is that tells something for the first time.
func (c *Claims) Report(agentID, projectID int64, at uint64) {
	c.reported[agentID] = Reporter{AgentID: agentID, ProjectID: projectID, Since: at}
}

// Foreign says that an agent has told of a cluster of another project.
type Foreign struct { //nolint:errname // a word of its own, as the rules say it
	// Claim that the cluster is under.
	Claim Claim
	// AgentID and ProjectID of who told.
	AgentID, ProjectID int64
	// Clock says that it told its time only. An agent that has no concern with workloads has one too, and may share the cluster: that is no fault.
	Clock bool
}

func (f *Foreign) Error() string {
	how := "whose agent reported it first"
	if f.Claim.Decided() {
		how = "which an administrator gave it to"
	}
	return fmt.Sprintf("cluster %q: is of project %d, %s; agent %d is of project %d. If the cluster has moved there, an administrator runs: lockstep deploys clusters release %s --to %d",
		f.Claim.ClusterUID, f.Claim.ProjectID, how, f.AgentID, f.ProjectID, word(f.Claim.ClusterUID), f.ProjectID)
}

// word is the text as one word of a command line: agents say what clusters are called.
func word(text string) string {
	plain := func(r rune) bool {
		return r == '-' || r == '.' || r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
	}
	if text != "" && text[0] != '-' && strings.TrimFunc(text, plain) == "" {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// Admit lets in what an agent of a project says at a position, or refuses it: [*Foreign]. in is the cluster that the agent is in, empty where it has said nothing yet. What is
// nobody's is claimed by what tells of workloads there.
func (c *Claims) Admit(o *observed.Observed, at uint64, projectID int64, in string) error {
	claim, there := c.under(o.ClusterUID, at)
	if there && claim.ProjectID != 0 {
		if claim.ProjectID == projectID {
			return nil
		}
		return &Foreign{Claim: claim, AgentID: o.AgentID, ProjectID: projectID, Clock: o.Tick}
	}
	if in == "" || o.Begun != nil {
		in = o.ClusterUID
	}
	if c.reading == Onwards && in == o.ClusterUID && !o.Tick {
		c.claimed = append(c.claimed, Claim{ClusterUID: o.ClusterUID, Since: at, ProjectID: projectID, AgentID: o.AgentID})
	}
	return nil
}

// Release takes in that a cluster is released, and says whether that takes effect: not where it speaks of another claim than the cluster is under. Somebody was faster then,
// or it is read again of a stream that was restored.
func (c *Claims) Release(o *observed.Observed, at uint64) bool {
	r := o.Released
	claim, there := c.under(o.ClusterUID, at)
	switch {
	case c.reading == Again:
		return there && claim.Decided() && claim.Since == at
	case c.reading == Restored, !there, claim.ProjectID != int64(r.ProjectID), claim.Since != uint64(r.Since):
		return false
	}
	c.claimed = append(c.claimed, Claim{ClusterUID: o.ClusterUID, Since: at, ProjectID: int64(r.ToProjectID), UserID: int64(r.UserID), Reason: r.Reason})
	return true
}

// under is the claim that a cluster is under at a position; false for a cluster that nobody has reported.
func (c *Claims) under(cluster string, at uint64) (Claim, bool) {
	for _, v := range slices.Backward(c.claimed) {
		if v.ClusterUID == cluster {
			return v, true
		}
	}
	for _, v := range slices.Backward(c.claims[cluster]) {
		if c.reading != Again || v.Since <= at {
			return v, true
		}
	}
	return Claim{}, false
}

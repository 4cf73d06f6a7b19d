package ownership

import (
	"fmt"
	"strings"
)

// ForeignError reports an observation of a cluster that another project owns.
type ForeignError struct {
	// Claim of the cluster.
	Claim Claim
	// AgentID and ProjectID of the sender.
	AgentID, ProjectID int64
	// Tick is true for a clock tick. Agents without workloads tick too and may share the cluster, so callers drop the tick
	// without an error.
	Tick bool
}

// Error explains who owns the cluster and how an administrator moves it.
func (f *ForeignError) Error() string {
	reason := "whose agent reported it first"
	if f.Claim.ByAdministrator() {
		reason = "to which an administrator assigned it"
	}
	return fmt.Sprintf("cluster %q: belongs to project %d, %s; agent %d belongs to project %d. "+
		"To move the cluster, an administrator runs: lockstep deploys clusters release %s --to %d",
		f.Claim.ClusterUID, f.Claim.ProjectID, reason, f.AgentID, f.ProjectID,
		shellQuote(f.Claim.ClusterUID), f.ProjectID)
}

// shellQuote quotes a text as one shell word: agents choose the names of clusters.
func shellQuote(text string) string {
	special := func(r rune) bool {
		return r != '-' && r != '.' && r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	}
	if text != "" && text[0] != '-' && !strings.ContainsFunc(text, special) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

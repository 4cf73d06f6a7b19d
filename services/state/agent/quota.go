package agent

import (
	"strconv"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

// MaxObjects limits the stored objects of an agent, deleted ones included. It is more than twice those of 50,000
// workspaces. Each workspace of the agent, also a terminated one, adds one: its deleted Deployment stays stored.
const MaxObjects = 1_000_000

// Usage counts the workspaces of an agent with a desired state other than terminated.
type Usage struct {
	// Agent counts all of them, User those of one user.
	Agent, User int
}

// Limited reports whether the configuration limits the number of workspaces.
func (c Configuration) Limited() bool {
	return c.MaxWorkspaces != Unlimited || c.MaxWorkspacesPerUser != Unlimited
}

// CheckQuota checks whether a user may create one more workspace on an agent. The fault quota_exceeded names the
// limit: first the user's, because the user can act on it.
func (c Configuration) CheckQuota(agent, username string, have Usage) error {
	switch {
	case limitReached(c.MaxWorkspacesPerUser, have.User):
		return exceeded("max_workspaces_per_user", c.MaxWorkspacesPerUser, have.User,
			"user %s has %s on agent %q, the limit per user is %d: "+
				"terminate one, or ask a maintainer to raise max_workspaces_per_user",
			username, workspaces(have.User), agent, c.MaxWorkspacesPerUser)
	case limitReached(c.MaxWorkspaces, have.Agent):
		return exceeded("max_workspaces", c.MaxWorkspaces, have.Agent,
			"agent %q has %s, the limit is %d: terminate one, or ask a maintainer to raise max_workspaces",
			agent, workspaces(have.Agent), c.MaxWorkspaces)
	default:
		return nil
	}
}

func limitReached(limit, have int) bool { return limit != Unlimited && have >= limit }

func exceeded(name string, limit, have int, format string, args ...any) error {
	return fault.New(errcode.QuotaExceeded, format, args...).
		With("limit", name).
		With("max", strconv.Itoa(limit)).
		With("have", strconv.Itoa(have))
}

func workspaces(n int) string {
	if n == 1 {
		return "1 workspace"
	}
	return strconv.Itoa(n) + " workspaces"
}

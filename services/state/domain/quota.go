package domain

import (
	"strconv"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

// Census is how many workspaces there are that are not to be terminated.
type Census struct {
	// OfAgent are all of an agent, OfUser those of them that one user has.
	OfAgent, OfUser int
}

// Limited is that the configuration limits how many workspaces there may be, so that they have to be counted.
func (c AgentConfiguration) Limited() bool {
	return c.MaxWorkspaces != Unlimited || c.MaxWorkspacesPerUser != Unlimited
}

// Admit decides whether a user may have one workspace more on an agent that has these. The fault quota_exceeded names the limit that is reached, first the user's own, about
// which the user can do something.
func (c AgentConfiguration) Admit(agent, username string, have Census) error {
	switch {
	case reached(c.MaxWorkspacesPerUser, have.OfUser):
		return exceeded("max_workspaces_per_user", c.MaxWorkspacesPerUser, have.OfUser,
			"user %s has %s on agent %q, where each user may have %d: terminate one, or ask a maintainer to raise max_workspaces_per_user",
			username, workspaces(have.OfUser), agent, c.MaxWorkspacesPerUser)
	case reached(c.MaxWorkspaces, have.OfAgent):
		return exceeded("max_workspaces", c.MaxWorkspaces, have.OfAgent,
			"agent %q has %s of the %d that it may have: terminate one, or ask a maintainer to raise max_workspaces",
			agent, workspaces(have.OfAgent), c.MaxWorkspaces)
	default:
		return nil
	}
}

func reached(limit, have int) bool { return limit != Unlimited && have >= limit }

func exceeded(name string, limit, have int, format string, args ...any) error {
	return fault.New(errcode.QuotaExceeded, format, args...).With("limit", name).With("max", strconv.Itoa(limit)).With("have", strconv.Itoa(have))
}

func workspaces(n int) string {
	if n == 1 {
		return "1 workspace"
	}
	return strconv.Itoa(n) + " workspaces"
}

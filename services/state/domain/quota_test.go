package domain_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/domain"
)

func TestWhoMayHaveOneWorkspaceMore(t *testing.T) {
	t.Parallel()
	const none = domain.Unlimited
	for name, test := range map[string]struct {
		agent, user int
		have        domain.Census
		refused     string
		details     map[string]string
	}{
		"no limits":             {agent: none, user: none, have: domain.Census{OfAgent: 1000, OfUser: 1000}},
		"below both":            {agent: 3, user: 2, have: domain.Census{OfAgent: 2, OfUser: 1}},
		"others' do not count":  {agent: none, user: 1, have: domain.Census{OfAgent: 9}},
		"of nobody's are there": {agent: 1, user: none, have: domain.Census{}},
		"the agent is full": {
			agent: 3, user: none, have: domain.Census{OfAgent: 3},
			refused: `agent "local" has 3 workspaces of the 3 that it may have: terminate one, or ask a maintainer to raise max_workspaces`,
			details: map[string]string{"limit": "max_workspaces", "max": "3", "have": "3"},
		},
		"the limit was lowered": {
			agent: 1, user: none, have: domain.Census{OfAgent: 5, OfUser: 5},
			refused: `agent "local" has 5 workspaces of the 1 that it may have: terminate one, or ask a maintainer to raise max_workspaces`,
			details: map[string]string{"limit": "max_workspaces", "max": "1", "have": "5"},
		},
		"nothing is allowed": {
			agent: 0, user: none,
			refused: `agent "local" has 0 workspaces of the 0 that it may have: terminate one, or ask a maintainer to raise max_workspaces`,
			details: map[string]string{"limit": "max_workspaces", "max": "0", "have": "0"},
		},
		"the user has enough": {
			agent: 1, user: 1, have: domain.Census{OfAgent: 1, OfUser: 1},
			refused: `user ada has 1 workspace on agent "local", where each user may have 1: terminate one, or ask a maintainer to raise max_workspaces_per_user`,
			details: map[string]string{"limit": "max_workspaces_per_user", "max": "1", "have": "1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := domain.AgentConfiguration{MaxWorkspaces: test.agent, MaxWorkspacesPerUser: test.user}
			require.Equal(t, test.agent != none || test.user != none, c.Limited())
			err := c.Admit("local", "ada", test.have)
			if test.refused == "" {
				require.NoError(t, err)
				return
			}
			require.True(t, fault.Is(err, errcode.QuotaExceeded))
			require.Equal(t, test.refused, fault.From(err).Message)
			require.Equal(t, test.details, fault.From(err).Details)
		})
	}
}

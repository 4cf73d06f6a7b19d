package agent_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/agent"
)

func TestCheckQuota(t *testing.T) {
	t.Parallel()
	const none = agent.Unlimited
	for name, test := range map[string]struct {
		agent, user int
		have        agent.Usage
		refused     string
		details     map[string]string
	}{
		"no limits":            {agent: none, user: none, have: agent.Usage{Agent: 1000, User: 1000}},
		"below both":           {agent: 3, user: 2, have: agent.Usage{Agent: 2, User: 1}},
		"others' do not count": {agent: none, user: 1, have: agent.Usage{Agent: 9}},
		"the user has none":    {agent: 1, user: none, have: agent.Usage{}},
		"the agent is at the limit": {
			agent: 3, user: none, have: agent.Usage{Agent: 3},
			refused: `agent "local" has 3 workspaces, the limit is 3: terminate one, or ask a maintainer to raise max_workspaces`,
			details: map[string]string{"limit": "max_workspaces", "max": "3", "have": "3"},
		},
		"the limit was lowered": {
			agent: 1, user: none, have: agent.Usage{Agent: 5, User: 5},
			refused: `agent "local" has 5 workspaces, the limit is 1: terminate one, or ask a maintainer to raise max_workspaces`,
			details: map[string]string{"limit": "max_workspaces", "max": "1", "have": "5"},
		},
		"nothing is allowed": {
			agent: 0, user: none,
			refused: `agent "local" has 0 workspaces, the limit is 0: terminate one, or ask a maintainer to raise max_workspaces`,
			details: map[string]string{"limit": "max_workspaces", "max": "0", "have": "0"},
		},
		"the user is at the limit": {
			agent: 1, user: 1, have: agent.Usage{Agent: 1, User: 1},
			refused: `user ada has 1 workspace on agent "local", the limit per user is 1: terminate one, or ask a maintainer to raise max_workspaces_per_user`,
			details: map[string]string{"limit": "max_workspaces_per_user", "max": "1", "have": "1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := agent.Configuration{MaxWorkspaces: test.agent, MaxWorkspacesPerUser: test.user}
			require.Equal(t, test.agent != none || test.user != none, c.Limited())
			err := c.CheckQuota("local", "ada", test.have)
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

package agent_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/agent"
)

func TestBeginOfAResyncShowsARestoredCluster(t *testing.T) {
	t.Parallel()
	nonce, err := agent.NewNonce(agent.Versions{"pod": "100"})
	require.NoError(t, err)
	stored := agent.Versions{"pod": "100"}
	for name, tc := range map[string]struct {
		uid           string
		listed, known string
		nonce         string
		epoch         int64
		second        bool
	}{
		"higher list":                           {uid: "c", listed: "100", epoch: 3},
		"lower list":                            {uid: "c", listed: "99", epoch: 3, second: true},
		"lower list, published before it began": {uid: "c", listed: "99", known: "100", epoch: 3},
		"lower list, less was published":        {uid: "c", listed: "98", known: "99", epoch: 3, second: true},
		"lower list after the request":          {uid: "c", listed: "99", known: "100", nonce: nonce, epoch: 4},
		"higher list after the request":         {uid: "c", listed: "100", nonce: nonce, epoch: 3},
		"nonce of somebody else":                {uid: "c", listed: "99", nonce: "mine", epoch: 3, second: true},
		"another cluster":                       {uid: "d", listed: "5", epoch: 4},
	} {
		begun := events.ObservedResyncBegun{
			ClusterUID: tc.uid, Nonce: tc.nonce,
			ListVersions: []events.ListVersion{{Kind: "pod", ResourceVersion: tc.listed}},
		}
		if tc.known != "" {
			begun.KnownVersions = []events.ListVersion{{Kind: "pod", ResourceVersion: tc.known}}
		}
		cluster, unknown := agent.Cluster{AgentID: 7, UID: "c", Epoch: 3}.BeginResync(begun)
		second := unknown && agent.IsBelow(begun, stored)
		require.Equal(t, agent.Cluster{AgentID: 7, UID: tc.uid, Epoch: tc.epoch}, cluster, name)
		require.Equal(t, tc.second, second, name)
	}
}

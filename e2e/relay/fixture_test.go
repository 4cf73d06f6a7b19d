package relay_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/relay"
	"lockstep.internal/services/relay/agent"
	"lockstep.internal/services/state"
	"lockstep.internal/tools/history"
	"lockstep.internal/tools/stack"
)

// shared is a system with one relay and two replicas of each relay agent, all of them programs of
// their own.
var shared = fixture.Share(func(tb testing.TB) stack.Options {
	return stack.Options{
		Programs:    fixture.BuildServices(tb),
		Relays:      1,
		RelayAgents: 2,
		Configure: func(_ string, config any) {
			switch cfg := config.(type) {
			case *agent.Config: // the cluster has no pod network: targets listen on this machine
				cfg.Targets.AllowedAddresses = append(cfg.Targets.AllowedAddresses, "127.0.0.1:*")
			case *state.Config:
				cfg.Workspace.OwnerAccess = true
			case *relay.Config: // a relay on a busy machine is not lost
				cfg.Registry.Lease, cfg.External.AgentTimeout = fixture.Timeout, fixture.Timeout
			}
		},
	}
}, nil, func(s *fixture.System) {
	for _, stream := range topology.Streams() {
		if stream.Name == topology.StreamAgents || stream.Name == topology.StreamAudit {
			require.Empty(s.T, history.Events(stack.Cell, stream, fixture.HistoryRecords(s.Records(stream.Family))))
		}
	}
	s.Secrets.RequireHiddenInStreams(s.T, s)
})

func TestMain(m *testing.M) { os.Exit(fixture.Main(m, 5)) }

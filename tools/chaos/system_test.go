package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/relay/agent"
)

func TestCutHitsTheLinkOfOneReplicaOrThoseOfAll(t *testing.T) {
	t.Parallel()
	s := &system{links: map[string]*link{}}
	t.Cleanup(func() { require.NoError(t, s.stop()) })
	for _, service := range []string{"state", "state#2", "deploys"} {
		s.through(service, nats, "127.0.0.1:1")
	}
	require.ElementsMatch(t, []string{"state#1-nats", "state#2-nats", "state-nats", "deploys#1-nats", "deploys-nats"},
		s.faultTargets()[FaultCut])
	for target, hit := range map[string][]string{
		"state#2-nats": {"state#2-nats"}, "state-nats": {"state#1-nats", "state#2-nats"},
	} {
		fault := Fault{Kind: FaultCut, Target: target}
		require.NoError(t, s.begin(fault))
		var cut []string
		for name, l := range s.links {
			select {
			case <-l.whole:
			default:
				cut = append(cut, name)
			}
		}
		require.ElementsMatch(t, hit, cut)
		require.NoError(t, s.end(t.Context(), fault))
	}
}

func TestRelayAgentHasALinkToEachRelay(t *testing.T) {
	t.Parallel()
	s := &system{links: map[string]*link{}}
	t.Cleanup(func() { require.NoError(t, s.stop()) })
	cfg := agent.DefaultConfig()
	cfg.CredentialsFile = firstAgent + ".json"
	cfg.Relay.URLs = []string{"wss://127.0.0.1:1", "wss://127.0.0.1:2"}
	s.configure("relay-agent-local#2", &cfg)
	var reached []string
	for _, url := range cfg.Relay.URLs {
		for _, l := range s.links {
			if url == "wss://"+l.address() {
				reached = append(reached, l.to)
			}
		}
	}
	require.Equal(t, []string{"127.0.0.1:1", "127.0.0.1:2"}, reached)
}

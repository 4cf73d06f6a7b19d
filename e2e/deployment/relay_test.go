package deployment_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/architecture"
	"lockstep.internal/services/relay/policy"
)

// relayFront is the relay of the compose file with ports of the machine.
const relayFront = "relay-front"

func TestRelayAgentIsInComposeAndScraped(t *testing.T) {
	t.Parallel()
	compose := document[composeFile](t, "docker-compose.yml")
	agent := compose.Services["relay-agent"]
	require.Equal(t, "lockstep/relay-agent:${LOCKSTEP_VERSION:-latest}", agent.Image)
	requireSettings(t, "relay-agent", agent.Environment)
	require.Contains(t, string(content(t, "deploy/prometheus.yaml")),
		`"relay-agent`+agent.Environment["LOCKSTEP_OPS_LISTEN"]+`"`)
	for _, other := range []string{"relay-agent", "cli", "watcher", "dispatcher"} {
		for _, volume := range compose.Services[other].Volumes {
			require.False(t, strings.HasPrefix(volume, "relay-keys:"), "%s has the secret of relays", other)
		}
	}
}

// TestRelaysOfComposeScale is about docker compose up --scale relay=3.
func TestRelaysOfComposeScale(t *testing.T) {
	t.Parallel()
	compose := document[composeFile](t, "docker-compose.yml")
	relay, initialize := compose.Services["relay"], compose.Services["relay-init"].Command
	require.NotContains(t, relay.Environment, "LOCKSTEP_INTERNAL_URL", "it would be the address of all replicas")
	require.Empty(t, relay.Hostname+relay.Container, "each replica has its own host name")
	require.Empty(t, relay.Ports, "one port is for one replica only")
	require.Equal(t, ":8087", relay.Environment["LOCKSTEP_INTERNAL_LISTEN"])
	require.Contains(t, strings.Split(initialize[slices.Index(initialize, "--host")+1], ","),
		relay.Environment["LOCKSTEP_INTERNAL_SERVER_NAME"], "the certificate of all replicas is for this name")
	front := compose.Services[relayFront]
	require.Equal(t, []string{"127.0.0.1:8086:8086", "127.0.0.1:8090:8090"}, front.Ports)
	front.Ports, front.Networks = relay.Ports, relay.Networks
	require.Equal(t, relay, front, "it is one of the relays")
}

func TestExampleOfCallersIsValid(t *testing.T) {
	t.Parallel()
	root, err := architecture.Root()
	require.NoError(t, err)
	rules, err := policy.ReadRules(filepath.Join(root, "deploy", "examples", "callers.yaml"))
	require.NoError(t, err)
	require.NotEmpty(t, rules)
}

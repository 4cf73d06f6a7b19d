package deployment_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/architecture"
	"lockstep.internal/services/relay/policy"
)

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

func TestExampleOfCallersIsValid(t *testing.T) {
	t.Parallel()
	root, err := architecture.Root()
	require.NoError(t, err)
	rules, err := policy.ReadRules(filepath.Join(root, "deploy", "examples", "callers.yaml"))
	require.NoError(t, err)
	require.NotEmpty(t, rules)
}

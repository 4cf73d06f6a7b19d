package deployment_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/config"
	"lockstep.internal/services/deploys"
	"lockstep.internal/services/dispatcher"
	"lockstep.internal/services/relay"
	"lockstep.internal/services/relay/agent"
	"lockstep.internal/services/state"
	"lockstep.internal/services/watcher"
)

// requireSettings fails for a variable that the service does not know.
func requireSettings(t *testing.T, service string, environment map[string]string) {
	t.Helper()
	known := variables(t, service)
	require.NotEmpty(t, environment, service)
	for _, variable := range slices.Sorted(maps.Keys(environment)) {
		if strings.HasPrefix(variable, "LOCKSTEP_") {
			require.Contains(t, known, variable, service)
		}
	}
}

// variables returns the environment variables that a service knows.
func variables(t *testing.T, service string) []string {
	t.Helper()
	var cfg any
	switch service {
	case "deploys":
		defaults := deploys.DefaultConfig()
		cfg = &defaults
	case "dispatcher":
		defaults := dispatcher.DefaultConfig()
		cfg = &defaults
	case "relay":
		defaults := relay.DefaultConfig()
		cfg = &defaults
	case "relay-agent":
		defaults := agent.DefaultConfig()
		cfg = &defaults
	case "state":
		defaults := state.DefaultConfig()
		cfg = &defaults
	case "watcher":
		defaults := watcher.DefaultConfig()
		cfg = &defaults
	default:
		require.FailNow(t, "add the service to this test: "+service)
	}
	binding, err := config.Bind(cfg, "")
	require.NoError(t, err)
	names := make([]string, 0, len(binding.Fields()))
	for _, field := range binding.Fields() {
		names = append(names, field.Env)
	}
	return names
}

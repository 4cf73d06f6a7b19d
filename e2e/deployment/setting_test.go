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
	"lockstep.internal/services/router"
	"lockstep.internal/services/runners"
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
	binding := defaults(t, service)
	names := make([]string, 0, len(binding.Fields()))
	for _, field := range binding.Fields() {
		names = append(names, field.Env)
	}
	return names
}

func TestListenersAreLocalByDefault(t *testing.T) {
	t.Parallel()
	for _, service := range []string{"deploys", "dispatcher", "relay", "relay-agent", "router", "runners", "state", "watcher"} {
		ops := false
		for _, field := range defaults(t, service).Fields() {
			if strings.HasSuffix(field.Key, ".listen") {
				require.True(t, strings.HasPrefix(field.Default, "127.0.0.1:"), "%s: %s is %s", service, field.Key, field.Default)
				ops = ops || field.Key == "ops.listen"
			}
		}
		require.True(t, ops, service)
	}
}

// defaults are the settings of a service with their defaults.
func defaults(t *testing.T, service string) *config.Binding {
	t.Helper()
	var cfg any
	switch service {
	case "deploys":
		c := deploys.DefaultConfig()
		cfg = &c
	case "dispatcher":
		c := dispatcher.DefaultConfig()
		cfg = &c
	case "relay":
		c := relay.DefaultConfig()
		cfg = &c
	case "relay-agent":
		c := agent.DefaultConfig()
		cfg = &c
	case "router":
		c := router.DefaultConfig()
		cfg = &c
	case "runners":
		c := runners.DefaultConfig()
		cfg = &c
	case "state":
		c := state.DefaultConfig()
		cfg = &c
	case "watcher":
		c := watcher.DefaultConfig()
		cfg = &c
	default:
		require.FailNow(t, "add the service to this test: "+service)
	}
	binding, err := config.Bind(cfg, "")
	require.NoError(t, err)
	return binding
}

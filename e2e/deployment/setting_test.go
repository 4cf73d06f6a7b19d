package deployment_test

import (
	"errors"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/config"
	"lockstep.internal/services/admission"
	"lockstep.internal/services/deploys"
	"lockstep.internal/services/dispatcher"
	"lockstep.internal/services/gateway"
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
	for _, service := range []string{
		"admission", "deploys", "dispatcher", "gateway", "relay", "relay-agent", "router", "runners", "state", "watcher",
	} {
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

// requireComplete fails for a setting that the service needs and the environment does not give it. Files exist in the
// container only, so that a problem which names a file below one of the folders is none.
func requireComplete(t *testing.T, service string, environment map[string]string, folders ...string) {
	t.Helper()
	input := config.Input{}
	for name, value := range environment {
		input.Environ = append(input.Environ, name+"="+expand(value))
	}
	_, err := config.Load(defaultConfig(t, service), config.Program{Name: service}, input)
	problems, ok := errors.AsType[config.Problems](err)
	require.True(t, ok || err == nil, "%s: %v", service, err)
	for _, problem := range problems {
		inContainer := slices.ContainsFunc(folders, func(folder string) bool {
			return strings.Contains(problem.Message, folder)
		})
		require.True(t, inContainer, "%s: %v", service, problem)
	}
}

var variable = regexp.MustCompile(`\$\{[A-Z_]+(:[-+])([^}]*)\}`)

// expand replaces variables that are not set, as Compose does.
func expand(text string) string {
	return variable.ReplaceAllStringFunc(text, func(match string) string {
		parts := variable.FindStringSubmatch(match)
		if parts[1] == ":+" {
			return ""
		}
		return parts[2]
	})
}

func TestMissingSettingIsNoticed(t *testing.T) {
	t.Parallel()
	require.Equal(t, "a x b ", expand("a ${X:-x} b ${Y:+y}"))
	_, err := config.Load(defaultConfig(t, "runners"), config.Program{Name: "runners"}, config.Input{})
	require.ErrorContains(t, err, "signing.key_file")
	require.ErrorContains(t, err, "disk.folder")
	require.ErrorContains(t, err, "database.url")
}

// defaults are the settings of a service with their defaults.
func defaults(t *testing.T, service string) *config.Binding {
	t.Helper()
	binding, err := config.Bind(defaultConfig(t, service), "")
	require.NoError(t, err)
	return binding
}

// defaultConfig returns a pointer to the default configuration of a service.
func defaultConfig(t *testing.T, service string) any {
	t.Helper()
	switch service {
	case "admission":
		c := admission.DefaultConfig()
		return &c
	case "deploys":
		c := deploys.DefaultConfig()
		return &c
	case "dispatcher":
		c := dispatcher.DefaultConfig()
		return &c
	case "gateway":
		c := gateway.DefaultConfig()
		return &c
	case "relay":
		c := relay.DefaultConfig()
		return &c
	case "relay-agent":
		c := agent.DefaultConfig()
		return &c
	case "router":
		c := router.DefaultConfig()
		return &c
	case "runners":
		c := runners.DefaultConfig()
		return &c
	case "state":
		c := state.DefaultConfig()
		return &c
	case "watcher":
		c := watcher.DefaultConfig()
		return &c
	default:
		require.FailNow(t, "add the service to this test: "+service)
		return nil
	}
}

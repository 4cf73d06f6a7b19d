package state

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/state/agent"
)

func TestAgentsGetAddressesThatTheyAccept(t *testing.T) {
	t.Parallel()
	cfg := DefaultConfig()
	cfg.NATS.URL = "nats-0:4222, tls://nats-1"
	require.Equal(t, []string{"nats://nats-0:4222", "tls://nats-1"}, cfg.agentURLs())
	require.NotContains(t, errors.Join(cfg.Validate()...).Error(), "agents.urls")

	for want, address := range map[string]string{
		`agents.urls: "nats:4222" is not nats://host:port, tls://host:port or wss://host`: "nats:4222",
		"agents.urls: the URL of n:4222 contains a user":                                  "nats://u:p@n:4222",
	} {
		cfg.Agents.URLs = []string{address}
		require.ErrorContains(t, errors.Join(cfg.Validate()...), want)
	}
}

func TestNamespacePrefixMustFitEachWorkspaceOfTheCell(t *testing.T) {
	t.Parallel()
	cfg := DefaultConfig()
	for prefix, fits := range map[string]bool{
		"ws-": true, "dev-": true, "staging-1": true, "staging-10": false, "": false, "-ws": false, "Dev_": false,
	} {
		cfg.Workspace.NamespacePrefix = prefix
		if fits {
			require.NotContains(t, errors.Join(cfg.Validate()...).Error(), "namespace_prefix", prefix)
		} else {
			require.ErrorContains(t, errors.Join(cfg.Validate()...), `workspace.namespace_prefix: "`+prefix+
				`" is not a prefix of a namespace name: use 1 to 9 characters of a-z, 0-9 and -, such as ws-`)
		}
	}
	cfg.Cell.Number, cfg.Workspace.NamespacePrefix = maxCellNumber, "staging"
	require.ErrorContains(t, errors.Join(cfg.Validate()...), "use 1 to 6 characters", "ids are longer")
}

func TestSettingsOfWorkspacesAreValidatedTogether(t *testing.T) {
	t.Parallel()
	cfg := DefaultConfig()
	require.NotContains(t, errors.Join(cfg.Validate()...).Error(), "workspace.")
	require.Equal(t, agent.DefaultConfiguration(), cfg.Workspace.settings().Configuration(), "the defaults are the same")
	cfg.Workspace.IngressPeers, cfg.Workspace.PrivateRanges = []string{"x:y"}, []string{"10.0.0.0"}
	cfg.Workspace.MaxCPU = "many"
	cfg.Workspace.ProgressDeadline = 0
	for _, want := range []string{
		`workspace.ingress_peers[0]: "y" of "x:y" is not a label: use NAMESPACE:LABEL=VALUE`,
		`workspace.private_ranges[0]: "10.0.0.0" is not a network such as 10.0.0.0/8`,
		`workspace.max_cpu: "many" is not a quantity such as 500m, 2 or 1Gi`,
		`workspace.progress_deadline: 0s is not between 1s and 24h0m0s`,
	} {
		require.ErrorContains(t, errors.Join(cfg.Validate()...), want)
	}
}

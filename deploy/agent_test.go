package deploy_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/deploy"
)

func whole() deploy.Agent {
	return deploy.Agent{
		ID: 4711, Components: deploy.Components(), ImageRepository: "registry.example/lockstep", ImageTag: "v7",
		NATSPorts: []string{"4223", "4224"}, RelayPorts: []string{"8443"},
		RelayURLs:       []string{"wss://a:8443", "wss://b:8443"},
		NamespacePrefix: "dev-",
		RelayCA:         "PEM", Workloads: true, Credentials: []byte(`{"token":"secret"}`),
	}
}

func TestManifestIsOfOneAgent(t *testing.T) {
	t.Parallel()
	out, err := whole().Render()
	require.NoError(t, err)
	require.NotRegexp(t, `agent-1\b`, out)
	require.NotContains(t, out, ":latest")
	require.NotContains(t, out, "relay.example")
	require.NotContains(t, out, "4222")
	require.NotRegexp(t, `\bws-`, out)
	require.Contains(t, out, "request.name.startsWith('dev-')")
	require.Contains(t, out, `{name: LOCKSTEP_NAMESPACE_PREFIX, value: "dev-"}`)
	for _, program := range deploy.Components() {
		require.Contains(t, out, "image: registry.example/lockstep/"+program+":v7\n")
	}
	require.Contains(t, out, `{name: LOCKSTEP_RELAY_URLS, value: "wss://a:8443,wss://b:8443"}`)
	require.Contains(t, out, "{name: LOCKSTEP_RELAY_TLS_CA_FILE, value: /relay-ca/ca.crt}")
	require.Contains(t, out, `{name: LOCKSTEP_WORKLOADS_ENABLED, value: "true"}`)
	require.Contains(t, out, "lockstep-agent-4711-watcher-workloads")
	for _, port := range []string{"4223", "4224", "8443"} {
		require.Contains(t, out, "- {protocol: TCP, port: "+port+"}\n")
	}
	require.Equal(t, 1, strings.Count(out, "kind: Namespace\n"))
	require.Less(t, strings.Index(out, "kind: Namespace\n"), strings.Index(out, "agent-credentials"))
	require.Less(t, strings.Index(out, `"kind":"Secret"`), strings.Index(out, "kind: Deployment\n"))
}

func TestManifestLeavesOutWhatIsNotAsked(t *testing.T) {
	t.Parallel()
	a := whole()
	a.Components, a.RelayCA, a.Workloads, a.Credentials = []string{deploy.Watcher}, "", false, nil
	out, err := a.Render()
	require.NoError(t, err)
	require.NotContains(t, out, `"kind"`)
	require.NotContains(t, out, "relay")
	require.NotContains(t, out, "dispatcher")
	require.NotContains(t, out, "workloads\n")
	require.Contains(t, out, `{name: LOCKSTEP_WORKLOADS_ENABLED, value: "false"}`)
}

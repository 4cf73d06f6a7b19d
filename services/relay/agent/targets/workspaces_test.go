package targets_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/relay/agent/targets"
	"lockstep.internal/services/relay/route"
)

func TestWorkspacesAreServicesInNamespacesWithThePrefix(t *testing.T) {
	t.Parallel()
	own := targets.Workspaces{NamespacePrefix: "ws-", Domain: "svc"}
	hello := route.Workspace{Service: "hello", Namespace: "ws-7-hello", Port: 3000}
	for name, c := range map[string]struct {
		workspaces targets.Workspaces
		to         route.Workspace
		want       string
	}{
		"a workspace":             {own, hello, "hello.ws-7-hello.svc:3000"},
		"of another prefix":       {targets.Workspaces{NamespacePrefix: "dev-", Domain: "svc"}, hello, ""},
		"no workspaces":           {targets.Workspaces{NamespacePrefix: "ws-"}, hello, ""},
		"an agent without prefix": {targets.Workspaces{Domain: "svc"}, hello, ""},
		"the API server":          {own, route.Workspace{Service: "kubernetes", Namespace: "default", Port: 443}, ""},
		"a service named so":      {own, route.Workspace{Service: "ws-7", Namespace: "kube-system", Port: 443}, ""},
	} {
		address, err := c.workspaces.Address(c.to)
		if c.want == "" {
			require.Error(t, err, name)
			continue
		}
		require.NoError(t, err, name)
		require.Equal(t, c.want, address.String(), name)
	}
}

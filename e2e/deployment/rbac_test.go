package deployment_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
)

// agentNamespace is the namespace of the agents in the manifests. It has the Secret with their token.
const agentNamespace = "lockstep-agent-1"

// ownerRole is the ClusterRole that the dispatcher binds to owners of workspaces.
const ownerRole = agentNamespace + "-workspace-owner"

// TestNobodyReadsTheTokenOfTheAgent reads all manifests with permissions. Whoever reads Secrets in the agent's
// namespace, or runs programs there, has its token.
func TestNobodyReadsTheTokenOfTheAgent(t *testing.T) {
	t.Parallel()
	roles, bindings := 0, 0
	for _, name := range manifestFiles(t, "deploy/rbac") {
		for _, raw := range manifests(t, name) {
			switch kind(t, raw) {
			case "ClusterRole", "Role":
				roles++
				if decode[rbacv1.ClusterRole](t, raw).Name == ownerRole {
					continue // nothing here binds it, and the dispatcher only in namespaces of workspaces
				}
				for _, rule := range decode[rbacv1.ClusterRole](t, raw).Rules {
					requireNarrow(t, name, rule)
				}
			case "ClusterRoleBinding":
				bindings++
				require.NotContains(t, []string{"edit", "admin", "cluster-admin", ownerRole},
					decode[rbacv1.ClusterRoleBinding](t, raw).RoleRef.Name, "%s: in the namespace of the agent, too", name)
			case "RoleBinding":
				bindings++
				b := decode[rbacv1.RoleBinding](t, raw)
				require.NotEqual(t, ownerRole, b.RoleRef.Name, name)
				require.False(t, b.Namespace == agentNamespace && b.RoleRef.Kind == "ClusterRole", name)
			}
		}
	}
	require.GreaterOrEqual(t, roles, 5)
	require.GreaterOrEqual(t, bindings, 6)
}

func requireNarrow(t *testing.T, name string, rule rbacv1.PolicyRule) {
	t.Helper()
	for _, list := range [][]string{rule.APIGroups, rule.Resources, rule.Verbs} {
		require.NotContains(t, list, "*", name)
	}
	for _, resource := range []string{
		"pods/exec", "pods/attach", "pods/portforward", "pods/ephemeralcontainers", "serviceaccounts/token",
	} {
		require.NotContains(t, rule.Resources, resource, name)
	}
	for _, verb := range rule.Verbs {
		require.NotEqual(t, "escalate", verb, name)
		if verb == "bind" {
			require.Equal(t, []string{ownerRole}, rule.ResourceNames, name)
		}
		for _, resource := range rule.Resources {
			reads := verb == "get" || verb == "list" || verb == "watch"
			require.False(t, reads && resource == "secrets", "%s: %s secrets", name, verb)
			require.False(t, verb == "impersonate" && resource != "users" && resource != "groups", name)
		}
	}
}

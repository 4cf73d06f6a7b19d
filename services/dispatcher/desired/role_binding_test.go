package desired_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	ownerRole = `{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"lockstep-agent-7-workspace-owner"}`
	owner     = `{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"lockstep:user:9"}`
)

func TestRoleBindingGivesOnePersonTheRoleOfOwners(t *testing.T) {
	t.Parallel()
	named := func(name string) string {
		return `{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"` + name + `"}`
	}
	user := func(name string) string {
		return `[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"` + name + `"}]`
	}
	for _, test := range []struct{ role, subjects, reason string }{
		{ownerRole, "[" + owner + "]", ""},
		{named("cluster-admin"), "[" + owner + "]", "roleRef must be the ClusterRole lockstep-agent-7-workspace-owner"},
		{named("edit"), "[" + owner + "]", "roleRef must be"},
		{named("lockstep-agent-8-workspace-owner"), "[" + owner + "]", "roleRef must be"},
		{
			`{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"lockstep-agent-7-workspace-owner"}`,
			"[" + owner + "]", "roleRef must be",
		},
		{`null`, "[" + owner + "]", "roleRef must be"},
		{`"lockstep-agent-7-workspace-owner"`, "[" + owner + "]", "roleRef must be"},
		{ownerRole, `null`, "subjects must have one entry"},
		{ownerRole, `[]`, "subjects must have one entry"},
		{ownerRole, "[" + owner + "," + owner + "]", "subjects must have one entry"},
		{ownerRole, `["lockstep:user:9"]`, "must be a User lockstep:user:<id>"},
		{ownerRole, user("admin"), "must be a User"},
		{ownerRole, user("lockstep:user:"), "must be a User"},
		{ownerRole, user("lockstep:user:9x"), "must be a User"},
		{ownerRole, user("lockstep:user:-9"), "must be a User"},
		{ownerRole, user("system:anonymous"), "must be a User"},
		{ownerRole, user("lockstep:service:ci"), "must be a User"},
		{ownerRole, `[{"kind":"Group","apiGroup":"rbac.authorization.k8s.io","name":"lockstep:user:9"}]`, "must be a User"},
		{ownerRole, `[{"kind":"ServiceAccount","name":"default","namespace":"kube-system"}]`, "must be a User"},
	} {
		m := manifest("rbac.authorization.k8s.io/v1", "RoleBinding", "w-owner", "ws-7-a", "")
		for field, text := range map[string]string{"roleRef": test.role, "subjects": test.subjects} {
			var decoded any
			require.NoError(t, json.Unmarshal([]byte(text), &decoded))
			m[field] = decoded
		}
		refusal := check(t, m)
		if test.reason == "" {
			require.Nil(t, refusal, "%v", refusal)
			m["userNames"] = []any{"admin"}
			require.ErrorContains(t, check(t, m), "userNames must not be set")
			continue
		}
		require.ErrorContains(t, refusal, test.reason, "%s %s", test.role, test.subjects)
	}
}

package policy_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/directory"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/relay/policy"
	"lockstep.internal/services/relay/route"
)

func TestUserAccess(t *testing.T) {
	t.Parallel()
	agent := directory.Agent{ID: 7, ProjectID: 3, Name: "east"}
	read := policy.Access{Agent: agent, Target: route.KubernetesAPI, ReadOnly: true}
	write := policy.Access{Agent: agent, Target: route.KubernetesAPI}
	shop := policy.Access{Agent: agent, Target: "shop", ReadOnly: true}
	user := policy.Caller{Scope: access.ScopeAdmin, UserID: 5}
	for name, tc := range map[string]struct {
		caller policy.Caller
		role   directory.Role
		access policy.Access
		want   errcode.Code
	}{
		"no role, read":             {user, directory.RoleNone, read, errcode.NotFound},
		"an unknown role":           {user, "emperor", read, errcode.NotFound},
		"a reader reads":            {user, directory.RoleReader, read, ""},
		"a reader writes":           {user, directory.RoleReader, write, errcode.PermissionDenied},
		"a reader reaches a target": {user, directory.RoleReader, shop, errcode.PermissionDenied},
		"a developer writes":        {user, directory.RoleDeveloper, write, ""},
		"an owner reaches a target": {user, directory.RoleOwner, shop, ""},
		"a read token reads": {
			policy.Caller{Scope: access.ScopeRead, UserID: 5}, directory.RoleOwner, read, "",
		},
		"a read token writes": {
			policy.Caller{Scope: access.ScopeRead, UserID: 5, Admin: true}, directory.RoleOwner, write, errcode.PermissionDenied,
		},
		"a read token reaches a target": {
			policy.Caller{Scope: access.ScopeRead, UserID: 5}, directory.RoleOwner, shop, errcode.PermissionDenied,
		},
		"a write token writes": {
			policy.Caller{Scope: access.ScopeWrite, UserID: 5}, directory.RoleDeveloper, write, "",
		},
		"a write token of a reader": {
			policy.Caller{Scope: access.ScopeWrite, UserID: 5}, directory.RoleReader, write, errcode.PermissionDenied,
		},
		"no scope":                       {policy.Caller{UserID: 5}, directory.RoleOwner, read, errcode.PermissionDenied},
		"an administrator without roles": {policy.Caller{Scope: access.ScopeAdmin, UserID: 5, Admin: true}, directory.RoleNone, write, ""},
	} {
		err := policy.CheckUser(tc.caller, tc.role, tc.access)
		if tc.want == "" {
			require.NoError(t, err, name)
		} else {
			require.Equal(t, tc.want, fault.CodeOf(err), name)
		}
	}
	require.ErrorContains(t, policy.CheckUser(user, directory.RoleReader, write), `in the project of agent "east" (7)`)
	require.ErrorContains(t, policy.CheckUser(user, directory.RoleNone, read), "agent 7 does not exist",
		"the name is for members of the project only")
}

func TestServiceAccess(t *testing.T) {
	t.Parallel()
	agent := directory.Agent{ID: 7, ProjectID: 3, Name: "east"}
	read := policy.Access{Agent: agent, Target: route.KubernetesAPI, ReadOnly: true}
	write := policy.Access{Agent: agent, Target: route.KubernetesAPI}
	shop := policy.Access{Agent: agent, Target: "shop", ReadOnly: true}
	kubernetes := []string{route.KubernetesAPI}
	for name, tc := range map[string]struct {
		subject string
		rule    policy.Rule
		access  policy.Access
		allowed bool
	}{
		"its agent": {
			"ci", policy.Rule{Subject: "ci", Agents: []int64{7}, Targets: kubernetes}, write, true,
		},
		"its project": {
			"ci", policy.Rule{Subject: "ci", Projects: []int64{3}, Targets: kubernetes}, write, true,
		},
		"every agent": {"ci", policy.Rule{Subject: "ci", All: true, Targets: kubernetes}, write, true},
		"another agent": {
			"ci", policy.Rule{Subject: "ci", Agents: []int64{8}, Targets: kubernetes}, write, false,
		},
		"no agents":      {"ci", policy.Rule{Subject: "ci", Targets: kubernetes}, read, false},
		"another target": {"ci", policy.Rule{Subject: "ci", All: true, Targets: kubernetes}, shop, false},
		"no targets":     {"ci", policy.Rule{Subject: "ci", All: true}, read, false},
		"read with a read-only rule": {
			"ci", policy.Rule{Subject: "ci", All: true, Targets: kubernetes, ReadOnly: true}, read, true,
		},
		"write with a read-only rule": {
			"ci", policy.Rule{Subject: "ci", All: true, Targets: kubernetes, ReadOnly: true}, write, false,
		},
		"read of another target with a read-only rule": {
			"ci", policy.Rule{Subject: "ci", All: true, Targets: []string{"shop"}, ReadOnly: true}, shop, false,
		},
		"another service": {"cd", policy.Rule{Subject: "ci", All: true, Targets: kubernetes}, read, false},
		"empty subject":   {"", policy.Rule{All: true, Targets: kubernetes}, read, false},
	} {
		err := policy.CheckService(policy.Caller{Subject: tc.subject},
			[]policy.Rule{{Subject: "other", All: true, Targets: kubernetes}, tc.rule}, tc.access)
		if tc.allowed {
			require.NoError(t, err, name)
		} else {
			require.Equal(t, errcode.PermissionDenied, fault.CodeOf(err), name)
		}
	}
}

func TestImpersonation(t *testing.T) {
	t.Parallel()
	developer := policy.Impersonation{
		User: "lockstep:user:5", Groups: []string{"lockstep:role:reader", "lockstep:role:developer"},
	}
	require.Equal(t, developer, policy.Impersonate(policy.Caller{UserID: 5}, directory.RoleDeveloper))
	service := policy.Impersonation{User: "lockstep:service:ci", Groups: []string{"lockstep:services"}}
	require.Equal(t, service, policy.Impersonate(policy.Caller{Subject: "ci"}, ""))
	administrators := []string{
		"lockstep:role:reader", "lockstep:role:developer", "lockstep:role:maintainer", "lockstep:role:owner",
		"lockstep:role:administrator",
	}
	require.Equal(t, administrators, policy.Impersonate(policy.Caller{UserID: 5, Admin: true}, "").Groups)
	require.Empty(t, policy.Impersonate(policy.Caller{UserID: 5}, "").Groups)
}

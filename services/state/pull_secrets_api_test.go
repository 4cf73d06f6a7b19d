package state_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/events"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

// pullSecretOf returns the digest of the pull secret in the last desired state of a workspace; empty without one.
func (b *fixture) pullSecretOf(t *testing.T, agent int64, workspace string) string {
	t.Helper()
	var d events.DesiredWorkspace
	var last string
	require.Eventually(t, func() bool {
		last = b.last(t, topology.StreamDesired, topology.Cell("local").Desired(agent, workspace))
		return last != ""
	}, time.Minute, 10*time.Millisecond, "the workspace is published")
	require.NotContains(t, last, "hunter")
	require.NoError(t, json.Unmarshal([]byte(last), &d))
	for _, s := range d.Secrets {
		if s.Name == d.Name+"-pull" {
			return s.Digest
		}
	}
	return ""
}

func TestPullSecretsReachTheWorkspacesOfTheirProject(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.start(t)
	admin := b.as(t, b.admin)
	project, registered := admin.project()
	agent := registered.GetAgent().GetId()
	create := func(name string) string {
		return call(t, admin.workspaces.CreateWorkspace, &statev1.CreateWorkspaceRequest{
			Name: name, ProjectId: project, AgentId: agent,
		}).GetWorkspace().GetId()
	}
	first := create("first")
	require.Empty(t, b.pullSecretOf(t, agent, first))
	put := func(registry, password string) {
		call(t, admin.pullSecrets.PutPullSecret, &statev1.PutPullSecretRequest{
			ProjectId: project, Registry: registry, Username: "ci", Password: password,
		})
	}
	put("registry.example", "hunter2")
	var digest string
	changes := func(before string) func() bool {
		return func() bool { digest = b.pullSecretOf(t, agent, first); return digest != before }
	}
	require.Eventually(t, changes(""), time.Minute, 10*time.Millisecond)
	require.Equal(t, digest, b.pullSecretOf(t, agent, create("second")), "new workspaces have it at once")

	put("other.example", "hunter3")
	require.Eventually(t, changes(digest), time.Minute, 10*time.Millisecond)
	both := digest
	list := call(t, admin.pullSecrets.ListPullSecrets, &statev1.ListPullSecretsRequest{ProjectId: project})
	require.NotContains(t, list.String(), "hunter")
	require.Len(t, list.GetPullSecrets(), 2)
	require.Equal(t, "other.example", list.GetPullSecrets()[0].GetRegistry())
	require.Equal(t, "ci", list.GetPullSecrets()[0].GetUsername())
	require.NotNil(t, list.GetPullSecrets()[0].GetUpdatedAt())
	put("registry.example", "hunter4")
	require.Eventually(t, changes(both), time.Minute, 10*time.Millisecond)

	for _, registry := range []string{"registry.example", "other.example"} {
		call(t, admin.pullSecrets.RemovePullSecret, &statev1.RemovePullSecretRequest{ProjectId: project, Registry: registry})
	}
	require.Eventually(t, func() bool { return b.pullSecretOf(t, agent, first) == "" }, time.Minute, 10*time.Millisecond)
	refused(t, errcode.NotFound, admin.pullSecrets.RemovePullSecret,
		&statev1.RemovePullSecretRequest{ProjectId: project, Registry: "registry.example"})
	require.Empty(t, call(t, admin.pullSecrets.ListPullSecrets,
		&statev1.ListPullSecretsRequest{ProjectId: project}).GetPullSecrets())
}

func TestOnlyMaintainersChangePullSecrets(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.start(t)
	admin := b.as(t, b.admin)
	project, _ := admin.project()
	put := &statev1.PutPullSecretRequest{
		ProjectId: project, Registry: "registry.example", Username: "ci", Password: "hunter2",
	}
	remove := &statev1.RemovePullSecretRequest{ProjectId: project, Registry: "registry.example"}
	list := &statev1.ListPullSecretsRequest{ProjectId: project}
	member := func(name string, role statev1.Role) as {
		id, user := admin.user(b, name)
		if role != statev1.Role_ROLE_UNSPECIFIED {
			call(t, admin.directory.PutMembership, &statev1.PutMembershipRequest{Membership: &statev1.Membership{
				UserId: id, Scope: statev1.ScopeKind_SCOPE_KIND_PROJECT, ScopeId: project, Role: role,
			}})
		}
		return user
	}
	maintainer, developer := member("mia", statev1.Role_ROLE_MAINTAINER), member("dan", statev1.Role_ROLE_DEVELOPER)
	stranger := member("sam", statev1.Role_ROLE_UNSPECIFIED)
	call(t, maintainer.pullSecrets.PutPullSecret, put)
	require.Len(t, call(t, developer.pullSecrets.ListPullSecrets, list).GetPullSecrets(), 1)
	refused(t, errcode.PermissionDenied, developer.pullSecrets.PutPullSecret, put)
	refused(t, errcode.PermissionDenied, developer.pullSecrets.RemovePullSecret, remove)
	refused(t, errcode.NotFound, stranger.pullSecrets.PutPullSecret, put)
	refused(t, errcode.NotFound, stranger.pullSecrets.RemovePullSecret, remove)
	refused(t, errcode.NotFound, stranger.pullSecrets.ListPullSecrets, list)
	refused(t, errcode.NotFound, admin.pullSecrets.PutPullSecret, &statev1.PutPullSecretRequest{
		ProjectId: project + 1_000_000, Registry: "registry.example", Username: "ci", Password: "hunter2",
	})
	for _, bad := range []*statev1.PutPullSecretRequest{
		{ProjectId: project, Registry: "https://registry.example", Username: "ci", Password: "hunter2"},
		{ProjectId: project, Registry: "registry.example", Password: "hunter2"},
		{ProjectId: project, Registry: "registry.example", Username: "ci"},
	} {
		refused(t, errcode.InvalidArgument, maintainer.pullSecrets.PutPullSecret, bad)
	}
	call(t, maintainer.pullSecrets.RemovePullSecret, remove)
}

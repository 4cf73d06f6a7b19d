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

func TestOwnerSharesAWorkspaceWithPeopleOfItsProject(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.start(t)
	admin := b.as(t, b.admin)
	project, _ := admin.project()
	_, adas := admin.member(b, "ada", project)
	bob, bobs := admin.member(b, "bob", project)
	eve, eves := admin.user(b, "eve")
	w := call(t, adas.workspaces.CreateWorkspace, &statev1.CreateWorkspaceRequest{Name: "w"}).GetWorkspace()
	published := func(want ...events.AccessShare) func() bool {
		return func() bool {
			last := b.last(t, topology.StreamAccess, topology.Cell("local").AccessWorkspace(w.GetId()))
			var e events.AccessWorkspace
			return last != "" && json.Unmarshal([]byte(last), &e) == nil && len(e.Shares) == len(want) &&
				(len(want) == 0 || e.Shares[0].UserID == want[0].UserID && (e.Shares[0].Port == nil) == (want[0].Port == nil))
		}
	}
	share := func(user int64, port int32) *statev1.ShareWorkspaceRequest {
		return &statev1.ShareWorkspaceRequest{Workspace: theWorkspace(), UserId: user, Port: port}
	}

	refused(t, errcode.PermissionDenied, bobs.shares.ShareWorkspace, share(bob, 0))
	refused(t, errcode.PermissionDenied, admin.shares.ShareWorkspace, share(bob, 0))
	refused(t, errcode.NotFound, eves.shares.ShareWorkspace, share(eve, 0))
	refused(t, errcode.FailedPrecondition, adas.shares.ShareWorkspace, share(eve, 0)) // no role in the project
	refused(t, errcode.NotFound, adas.shares.ShareWorkspace, share(9999, 0))
	refused(t, errcode.InvalidArgument, adas.shares.ShareWorkspace, share(bob, 70000))
	named := func(name string) *statev1.ShareWorkspaceRequest {
		return &statev1.ShareWorkspaceRequest{Workspace: theWorkspace(), Username: name}
	}
	// Nobody learns which names exist.
	for _, name := range []string{"eve", "nobody"} {
		refused(t, errcode.FailedPrecondition, adas.shares.ShareWorkspace, named(name))
		refused(t, errcode.PermissionDenied, bobs.shares.ShareWorkspace, named(name))
		refused(t, errcode.NotFound, eves.shares.ShareWorkspace, named(name))
		refused(t, errcode.NotFound, adas.shares.UnshareWorkspace,
			&statev1.UnshareWorkspaceRequest{Workspace: theWorkspace(), Username: name})
	}
	refused(t, errcode.InvalidArgument, adas.shares.ShareWorkspace,
		&statev1.ShareWorkspaceRequest{Workspace: theWorkspace(), Username: "bob", UserId: bob})
	require.Equal(t, bob, call(t, adas.shares.ShareWorkspace, named("bob")).GetShares()[0].GetUserId())
	call(t, adas.shares.UnshareWorkspace, &statev1.UnshareWorkspaceRequest{Workspace: theWorkspace(), Username: "bob"})
	refused(t, errcode.InvalidArgument, adas.shares.ShareWorkspace, share(w.GetUserId(), 0))

	shared := call(t, adas.shares.ShareWorkspace, share(bob, 3000)).GetShares()
	require.Len(t, shared, 1)
	require.EqualValues(t, 3000, shared[0].GetPort())
	toPort := published(events.AccessShare{UserID: int(bob), Port: new(3000)})
	require.Eventually(t, toPort, time.Minute, 10*time.Millisecond)
	call(t, adas.workspaces.SetDesiredState, desire(statev1.DesiredState_DESIRED_STATE_STOPPED))
	got := call(t, adas.workspaces.GetWorkspace, &statev1.GetWorkspaceRequest{Workspace: theWorkspace()}).GetWorkspace()
	require.Len(t, got.GetShares(), 1, "other changes keep the shares")

	refused(t, errcode.NotFound, adas.shares.UnshareWorkspace,
		&statev1.UnshareWorkspaceRequest{Workspace: theWorkspace(), UserId: bob, Port: 80})
	call(t, adas.shares.UnshareWorkspace, &statev1.UnshareWorkspaceRequest{Workspace: theWorkspace(), UserId: bob})
	require.Eventually(t, published(), time.Minute, 10*time.Millisecond)

	// The share ends with the last role in the project.
	call(t, adas.shares.ShareWorkspace, share(bob, 0))
	require.Eventually(t, published(events.AccessShare{UserID: int(bob)}), time.Minute, 10*time.Millisecond)
	call(t, admin.directory.DeleteMembership, &statev1.DeleteMembershipRequest{
		UserId: bob, Scope: statev1.ScopeKind_SCOPE_KIND_PROJECT, ScopeId: project,
	})
	require.Eventually(t, published(), time.Minute, 10*time.Millisecond)
	require.Empty(t, call(t, adas.shares.ListShares, &statev1.ListSharesRequest{Workspace: theWorkspace()}).GetShares())
	refused(t, errcode.NotFound, bobs.shares.ListShares, &statev1.ListSharesRequest{Workspace: theWorkspace()})
}

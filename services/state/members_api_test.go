package state_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

func TestMembersHaveNames(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.start(t)
	admin := b.as(t, b.admin)
	project, _ := admin.project()
	ada, adas := admin.user(b, "ada")
	bob, bobs := admin.user(b, "bob")
	scope := statev1.ScopeKind_SCOPE_KIND_PROJECT
	put := func(username string, id int64, role statev1.Role) *statev1.PutMembershipRequest {
		return &statev1.PutMembershipRequest{Membership: &statev1.Membership{
			UserId: id, Username: username, Scope: scope, ScopeId: project, Role: role,
		}}
	}
	list := func(a as) map[string]int64 {
		names := map[string]int64{}
		request := &statev1.ListMembershipsRequest{Scope: scope, ScopeId: project}
		for _, m := range call(t, a.directory.ListMemberships, request).GetMemberships() {
			names[m.GetUsername()] = m.GetUserId()
		}
		return names
	}

	added := call(t, admin.directory.PutMembership, put("ada", 0, statev1.Role_ROLE_OWNER)).GetMembership()
	require.Equal(t, ada, added.GetUserId())
	require.Equal(t, map[string]int64{"ada": ada}, list(admin))
	call(t, adas.directory.PutMembership, put("bob", 0, statev1.Role_ROLE_READER))
	require.Equal(t, map[string]int64{"ada": ada, "bob": bob}, list(bobs), "a reader sees the members")

	refused(t, errcode.NotFound, adas.directory.PutMembership, put("eve", 0, statev1.Role_ROLE_READER))
	refused(t, errcode.InvalidArgument, adas.directory.PutMembership, put("bob", bob, statev1.Role_ROLE_READER))
	refused(t, errcode.InvalidArgument, adas.directory.PutMembership, put("B o b", 0, statev1.Role_ROLE_READER))
	refused(t, errcode.InvalidArgument, adas.directory.PutMembership, put("", 0, statev1.Role_ROLE_READER))
	// The answer does not tell others who exists.
	for _, name := range []string{"ada", "eve"} {
		refused(t, errcode.PermissionDenied, bobs.directory.PutMembership, put(name, 0, statev1.Role_ROLE_READER))
		refused(t, errcode.PermissionDenied, bobs.directory.DeleteMembership,
			&statev1.DeleteMembershipRequest{Username: name, Scope: scope, ScopeId: project})
	}

	call(t, adas.directory.DeleteMembership,
		&statev1.DeleteMembershipRequest{Username: "bob", Scope: scope, ScopeId: project})
	require.Equal(t, map[string]int64{"ada": ada}, list(adas))
	refused(t, errcode.NotFound, adas.directory.DeleteMembership,
		&statev1.DeleteMembershipRequest{Username: "bob", Scope: scope, ScopeId: project})
	refused(t, errcode.NotFound, bobs.directory.ListMemberships,
		&statev1.ListMembershipsRequest{Scope: scope, ScopeId: project})
}

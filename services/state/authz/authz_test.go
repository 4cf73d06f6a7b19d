package authz_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/state/authz"
	"lockstep.internal/services/state/directory"
)

func actions() []authz.Action {
	return []authz.Action{
		authz.Read,
		authz.CreateWorkspace,
		authz.ManageWorkspace,
		authz.ManageAgents,
		authz.ManageTemplates,
		authz.ManagePullSecrets,
		authz.ManageMembers,
		authz.ManageCell,
	}
}

func TestPermissionsOfRoles(t *testing.T) {
	t.Parallel()
	for role, want := range map[directory.Role][]bool{
		//                     read   create manage agents templ. pull members cell
		directory.RoleNone:       {false, false, false, false, false, false, false, false},
		directory.RoleReader:     {true, false, false, false, false, false, false, false},
		directory.RoleDeveloper:  {true, true, false, false, false, false, false, false},
		directory.RoleMaintainer: {true, true, true, true, true, true, false, false},
		directory.RoleOwner:      {true, true, true, true, true, true, true, false},
		"emperor":                {false, false, false, false, false, false, false, false},
	} {
		for i, action := range actions() {
			require.Equal(t, want[i], authz.Allowed(directory.User{ID: 1}, role, false, action), "%s %s", role, action)
		}
	}
}

func TestDeveloperManagesOnlyOwnWorkspaces(t *testing.T) {
	t.Parallel()
	user := directory.User{ID: 1}
	require.True(t, authz.Allowed(user, directory.RoleDeveloper, true, authz.ManageWorkspace))
	require.False(t, authz.Allowed(user, directory.RoleDeveloper, false, authz.ManageWorkspace))
	require.False(
		t,
		authz.Allowed(user, directory.RoleReader, true, authz.ManageWorkspace),
		"an owner without a role may not manage the workspace",
	)
}

func TestAdministratorsMayDoEverythingAndBlockedUsersNothing(t *testing.T) {
	t.Parallel()
	for _, action := range actions() {
		require.True(t, authz.Allowed(directory.User{ID: 1, Admin: true}, directory.RoleNone, false, action))
		require.False(t, authz.Allowed(directory.User{ID: 1, Admin: true, Blocked: true}, directory.RoleOwner, true, action))
		require.False(t, authz.Allowed(directory.User{}, directory.RoleOwner, true, action), "nobody")
	}
	require.False(t, authz.Allowed(directory.User{ID: 1}, directory.RoleOwner, true, "fly"))
}

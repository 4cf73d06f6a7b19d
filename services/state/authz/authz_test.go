package authz_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/state"
	"lockstep.internal/services/state/authz"
)

func actions() []authz.Action {
	return []authz.Action{authz.Read, authz.CreateWorkspace, authz.ManageWorkspace, authz.ManageAgents, authz.ManageTemplates, authz.ManageMembers, authz.ManageCell}
}

func TestEachRoleMayWhatItsNameSays(t *testing.T) {
	t.Parallel()
	for role, want := range map[state.Role][]bool{
		//                     read   create manage agents templ. members cell
		state.RoleNone:       {false, false, false, false, false, false, false},
		state.RoleReader:     {true, false, false, false, false, false, false},
		state.RoleDeveloper:  {true, true, false, false, false, false, false},
		state.RoleMaintainer: {true, true, true, true, true, false, false},
		state.RoleOwner:      {true, true, true, true, true, true, false},
		"emperor":            {false, false, false, false, false, false, false},
	} {
		for i, action := range actions() {
			require.Equal(t, want[i], authz.Allowed(state.User{ID: 1}, role, false, action), "%s %s", role, action)
		}
	}
}

func TestADeveloperManagesOnlyOwnWorkspaces(t *testing.T) {
	t.Parallel()
	user := state.User{ID: 1}
	require.True(t, authz.Allowed(user, state.RoleDeveloper, true, authz.ManageWorkspace))
	require.False(t, authz.Allowed(user, state.RoleDeveloper, false, authz.ManageWorkspace))
	require.False(t, authz.Allowed(user, state.RoleReader, true, authz.ManageWorkspace), "who lost the role lost the workspace")
}

func TestAdministratorsMayEverythingAndTheBlockedNothing(t *testing.T) {
	t.Parallel()
	for _, action := range actions() {
		require.True(t, authz.Allowed(state.User{ID: 1, Admin: true}, state.RoleNone, false, action))
		require.False(t, authz.Allowed(state.User{ID: 1, Admin: true, Blocked: true}, state.RoleOwner, true, action))
		require.False(t, authz.Allowed(state.User{}, state.RoleOwner, true, action), "nobody")
	}
	require.False(t, authz.Allowed(state.User{ID: 1}, state.RoleOwner, true, "fly"))
}

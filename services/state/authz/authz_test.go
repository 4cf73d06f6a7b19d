package authz_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/state/authz"
	"lockstep.internal/services/state/domain"
)

func actions() []authz.Action {
	return []authz.Action{authz.Read, authz.CreateWorkspace, authz.ManageWorkspace, authz.ManageAgents, authz.ManageTemplates, authz.ManageMembers, authz.ManageCell}
}

func TestEachRoleMayWhatItsNameSays(t *testing.T) {
	t.Parallel()
	for role, want := range map[domain.Role][]bool{
		//                     read   create manage agents templ. members cell
		domain.RoleNone:       {false, false, false, false, false, false, false},
		domain.RoleReader:     {true, false, false, false, false, false, false},
		domain.RoleDeveloper:  {true, true, false, false, false, false, false},
		domain.RoleMaintainer: {true, true, true, true, true, false, false},
		domain.RoleOwner:      {true, true, true, true, true, true, false},
		"emperor":             {false, false, false, false, false, false, false},
	} {
		for i, action := range actions() {
			require.Equal(t, want[i], authz.Allowed(domain.User{ID: 1}, role, false, action), "%s %s", role, action)
		}
	}
}

func TestADeveloperManagesOnlyOwnWorkspaces(t *testing.T) {
	t.Parallel()
	user := domain.User{ID: 1}
	require.True(t, authz.Allowed(user, domain.RoleDeveloper, true, authz.ManageWorkspace))
	require.False(t, authz.Allowed(user, domain.RoleDeveloper, false, authz.ManageWorkspace))
	require.False(t, authz.Allowed(user, domain.RoleReader, true, authz.ManageWorkspace), "who lost the role lost the workspace")
}

func TestAdministratorsMayEverythingAndTheBlockedNothing(t *testing.T) {
	t.Parallel()
	for _, action := range actions() {
		require.True(t, authz.Allowed(domain.User{ID: 1, Admin: true}, domain.RoleNone, false, action))
		require.False(t, authz.Allowed(domain.User{ID: 1, Admin: true, Blocked: true}, domain.RoleOwner, true, action))
		require.False(t, authz.Allowed(domain.User{}, domain.RoleOwner, true, action), "nobody")
	}
	require.False(t, authz.Allowed(domain.User{ID: 1}, domain.RoleOwner, true, "fly"))
}

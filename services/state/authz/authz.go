// Package authz decides who may do what. It is pure: the caller gives the user, the user's highest role in the
// scope, including inherited roles, and whether the user owns the object.
//
// A blocked user may do nothing, an administrator everything. For other users each action needs a role.
package authz

import "lockstep.internal/services/state/directory"

// Action is something that a caller wants to do, in words for the caller.
type Action string

// Actions.
const (
	// Read anything in a scope.
	Read Action = "read"
	// CreateWorkspace in a project.
	CreateWorkspace Action = "create workspaces"
	// ManageWorkspace changes or terminates a workspace: developers their own, maintainers any.
	ManageWorkspace Action = "manage workspaces"
	// ManageAgents registers and revokes agents of a project.
	ManageAgents Action = "manage agents"
	// ManageTemplates of a project.
	ManageTemplates Action = "manage templates"
	// ManagePullSecrets of a project.
	ManagePullSecrets Action = "manage pull secrets"
	// ManageMembers of a scope, and create groups and projects in it.
	ManageMembers Action = "manage members"
	// ManageCell creates organizations, users and templates for all projects. Administrators only.
	ManageCell Action = "manage the cell"
)

// Allowed reports whether the user, with a role in the scope, may act.
func Allowed(user directory.User, role directory.Role, own bool, action Action) bool {
	if user.Blocked || user.ID == 0 {
		return false
	}
	if user.Admin {
		return true
	}
	need, ok := requiredRole(action, own)
	return ok && role.Rank() >= need.Rank()
}

func requiredRole(action Action, own bool) (directory.Role, bool) {
	switch action {
	case Read:
		return directory.RoleReader, true
	case CreateWorkspace:
		return directory.RoleDeveloper, true
	case ManageWorkspace:
		if own {
			return directory.RoleDeveloper, true
		}
		return directory.RoleMaintainer, true
	case ManageAgents, ManageTemplates, ManagePullSecrets:
		return directory.RoleMaintainer, true
	case ManageMembers:
		return directory.RoleOwner, true
	case ManageCell:
		return directory.RoleNone, false
	default:
		return directory.RoleNone, false
	}
}

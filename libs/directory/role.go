package directory

import (
	"slices"

	"lockstep.internal/schemas/gen/events"
)

// Role in an organization, a group or a project. Each role includes the permissions of the previous roles.
type Role = events.MembershipRole

// Roles. RoleNone may do nothing.
const (
	RoleNone       Role = ""
	RoleReader          = events.MembershipRoleReader
	RoleDeveloper       = events.MembershipRoleDeveloper
	RoleMaintainer      = events.MembershipRoleMaintainer
	RoleOwner           = events.MembershipRoleOwner
)

// Includes reports whether role permits what least permits. An unknown role includes nothing.
func Includes(role, least Role) bool {
	ranks := []Role{RoleReader, RoleDeveloper, RoleMaintainer, RoleOwner}
	has, needs := slices.Index(ranks, role), slices.Index(ranks, least)
	return has >= 0 && needs >= 0 && has >= needs
}

func higher(a, b Role) Role {
	if Includes(b, RoleReader) && (!Includes(a, RoleReader) || Includes(b, a)) {
		return b
	}
	return a
}

// Kind of a scope.
type Kind = events.MembershipScope

// Kinds of scopes.
const (
	Organization = events.MembershipScopeOrganization
	Group        = events.MembershipScopeGroup
	Project      = events.MembershipScopeProject
)

// Scope is one organization, group or project.
type Scope struct {
	Kind Kind
	ID   int64
}

// Membership is the direct role of a user in a scope.
type Membership struct {
	Scope Scope
	Role  Role
}

package api

import (
	"cmp"
	"context"
	"fmt"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/admin"
	"lockstep.internal/services/state/authz"
	"lockstep.internal/services/state/directory"
)

// access authorizes callers.
type access struct{ directory *admin.Directory }

// allow returns nil if the caller may act in the scope. own is true if the caller owns the resource. It returns the
// fault not_found if the caller may not read the resource, and permission_denied if the caller may only read it. The
// error names the resource, such as workspace "a".
func (a access) allow(
	ctx context.Context, scope directory.Scope, own bool, action authz.Action, resource string,
) error {
	user := caller(ctx)
	role := directory.RoleNone
	if !user.Admin {
		var err error
		if role, err = a.directory.Role(ctx, user.ID, scope); err != nil {
			return fmt.Errorf("authorize: %w", err)
		}
	}
	switch {
	case authz.Allowed(user, role, own, action):
		return nil
	case action == authz.Read || !authz.Allowed(user, role, own, authz.Read):
		return fault.New(errcode.NotFound, "%s does not exist", resource)
	default:
		return fault.New(
			errcode.PermissionDenied,
			"user %s may not %s with the role %s: %s needs a higher one",
			user.Username,
			action,
			cmp.Or(role, "none"),
			resource,
		)
	}
}

// administer returns nil if the caller is an administrator.
func (a access) administer(ctx context.Context) error {
	if user := caller(ctx); !authz.Allowed(user, directory.RoleNone, false, authz.ManageCell) {
		return fault.New(errcode.PermissionDenied, "user %s is not an administrator of this cell", user.Username)
	}
	return nil
}

// owner returns whose tokens or keys a request is about: the caller's, or any user's for an administrator.
func (a access) owner(ctx context.Context, userID int64) (int64, error) {
	if userID == 0 || userID == caller(ctx).ID {
		return caller(ctx).ID, nil
	}
	return userID, a.administer(ctx)
}

// visible returns the projects that the caller may read; nil for all.
func (a access) visible(ctx context.Context) ([]int64, error) {
	user := caller(ctx)
	if user.Admin {
		return nil, nil
	}
	projects, err := a.directory.VisibleProjects(ctx, user.ID)
	if err != nil {
		return nil, fmt.Errorf("authorize: %w", err)
	}
	return projects, nil
}

func projectScope(id int64) directory.Scope {
	return directory.Scope{Kind: directory.ScopeProject, ID: id}
}

package connectapi

import (
	"context"
	"fmt"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/authz"
	"lockstep.internal/services/state/domain"
	"lockstep.internal/services/state/postgres"
)

// access answers whether the caller may do what it asks for.
type access struct{ directory *postgres.Directory }

// allow returns nil when the caller may act on a thing in the scope. What it may not even read does not exist for it; what it may read but not
// do is permission_denied. The thing is named in the error, as in "workspace \"a\"".
func (a access) allow(ctx context.Context, scope domain.Scope, own bool, action authz.Action, thing string) error {
	user := caller(ctx)
	role := domain.RoleNone
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
		return fault.New(errcode.NotFound, "%s does not exist", thing)
	default:
		return fault.New(errcode.PermissionDenied, "user %s may not %s: %s needs a higher role than %q in %s %d", user.Username, action, thing, role, scope.Kind, scope.ID)
	}
}

// administer returns nil when the caller is an administrator.
func (a access) administer(ctx context.Context) error {
	if user := caller(ctx); !authz.Allowed(user, domain.RoleNone, false, authz.ManageCell) {
		return fault.New(errcode.PermissionDenied, "user %s is no administrator of this cell", user.Username)
	}
	return nil
}

// visible is which projects the caller may read: nil means every one.
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

func projectScope(id int64) domain.Scope { return domain.Scope{Kind: domain.ScopeProject, ID: id} }

package api

import (
	"context"
	"fmt"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/directory"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/admission/chain"
	"lockstep.internal/services/admission/controller"
)

// permissions authorizes callers.
type permissions struct{ directory Directory }

// manage returns nil if the caller may manage the controllers of an owner. Without the role reader in it, the error is
// not_found.
func (p permissions) manage(ctx context.Context, owner controller.Owner) error {
	switch owner.Level {
	case chain.LevelInstance:
		return access.RequireAdministrator(ctx)
	case chain.LevelGroup:
		return p.require(ctx, directory.Scope{Kind: directory.Group, ID: owner.ID}, directory.RoleOwner,
			fmt.Sprintf("group %d", owner.ID))
	default:
		return p.require(ctx, directory.Scope{Kind: directory.Project, ID: owner.ID}, directory.RoleMaintainer,
			fmt.Sprintf("project %d", owner.ID))
	}
}

// organization returns the organization of a project or group; 0 for one that does not exist, and for the instance.
func (p permissions) organization(owner controller.Owner) int64 {
	kind := directory.Project
	if owner.Level == chain.LevelGroup {
		kind = directory.Group
	}
	place, _ := p.directory.Place(directory.Scope{Kind: kind, ID: owner.ID})
	return place.Organization
}

// require returns nil if the scope exists and the caller has at least this role in it. resource names the object.
func (p permissions) require(
	ctx context.Context, scope directory.Scope, least directory.Role, resource string,
) error {
	caller, known := access.CallerFrom(ctx)
	if _, exists := p.directory.Place(scope); !exists {
		return fault.New(errcode.NotFound, "%s does not exist", resource)
	}
	if known && caller.Admin {
		return nil
	}
	role := directory.RoleNone
	if known {
		role = p.directory.Role(caller.UserID, scope)
	}
	switch {
	case directory.Includes(role, least):
		return nil
	case !directory.Includes(role, directory.RoleReader):
		return fault.New(errcode.NotFound, "%s does not exist", resource)
	default:
		return fault.New(errcode.PermissionDenied, "user %d may not do this: %s needs the role %s in %s %d, not %s",
			caller.UserID, resource, least, scope.Kind, scope.ID, role)
	}
}

// owner returns the owner of a request.
func ownerOf(level chain.Level, known bool, id int64) (controller.Owner, error) {
	switch {
	case !known:
		return controller.Owner{}, fault.New(errcode.InvalidArgument, "level: give project, group or instance").
			With("field", "level")
	case level == chain.LevelInstance && id != 0:
		return controller.Owner{}, fault.New(errcode.InvalidArgument, "owner_id: the instance has none").
			With("field", "owner_id")
	case level != chain.LevelInstance && id <= 0:
		return controller.Owner{}, fault.New(errcode.InvalidArgument, "owner_id is missing: give the id of the %s", level).
			With("field", "owner_id")
	}
	return controller.Owner{Level: level, ID: id}, nil
}

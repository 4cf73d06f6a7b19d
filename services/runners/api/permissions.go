package api

import (
	"context"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/directory"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

// Directory has the positions of projects and the roles of users. [directory.Directory] implements it.
type Directory interface {
	// Role returns the highest role of a user in a scope, direct or inherited.
	Role(userID int64, scope directory.Scope) directory.Role
	// Place returns the position of a project, and false if it does not exist.
	Place(scope directory.Scope) (directory.Place, bool)
}

// permissions authorizes callers.
type permissions struct{ directory Directory }

// require returns nil if the caller has at least this role in the project. Without the role reader it returns
// not_found, else permission_denied. resource names the object in the error, such as job 7.
func (p permissions) require(ctx context.Context, projectID int64, least directory.Role, resource string) error {
	caller, known := access.CallerFrom(ctx)
	if known && caller.Admin {
		return nil
	}
	role := directory.RoleNone
	if known {
		role = p.directory.Role(caller.UserID, project(projectID))
	}
	switch {
	case directory.Includes(role, least):
		return nil
	case !directory.Includes(role, directory.RoleReader):
		return notFound(resource)
	default:
		return fault.New(errcode.PermissionDenied, "user %d may not do this: %s needs the role %s in project %d, not %s",
			caller.UserID, resource, least, projectID, role)
	}
}

func notFound(resource string) error {
	return fault.New(errcode.NotFound, "%s does not exist", resource)
}

func project(id int64) directory.Scope { return directory.Scope{Kind: directory.Project, ID: id} }

// callerID returns the user of a request, which package access has authenticated.
func callerID(ctx context.Context) int64 {
	caller, _ := access.CallerFrom(ctx)
	return caller.UserID
}

// changer returns the role that changes something of a project.
func changer(protected bool) directory.Role {
	if protected {
		return directory.RoleMaintainer
	}
	return directory.RoleDeveloper
}

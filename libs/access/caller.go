package access

import (
	"context"
	"fmt"

	"lockstep.internal/libs/directory"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

type callerKey struct{}

// CallerFrom is who makes the call of this context; false where no verifier has let it in.
func CallerFrom(ctx context.Context) (Caller, bool) {
	c, ok := ctx.Value(callerKey{}).(Caller)
	return c, ok
}

// WithCaller is for calls from within, and for tests: a context of a call by this caller.
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// Roles is what decisions about agents ask; a [directory.Directory].
type Roles interface {
	AgentRole(userID, agentID int64) directory.Role
	Agents(userID int64, least directory.Role) []int64
}

// RequireAgentRole returns nil when the caller may do with things of an agent what this role may.
// What it may not even read does not exist for it: not_found; what it may read but not do is
// permission_denied. The thing is named in the error, as in "rollout x".
func RequireAgentRole(ctx context.Context, roles Roles, agentID int64, least directory.Role, thing string) error {
	c, known := CallerFrom(ctx)
	if c.Admin {
		return nil
	}
	role := directory.RoleNone
	if known {
		role = roles.AgentRole(c.UserID, agentID)
	}
	switch {
	case directory.Includes(role, least):
		return nil
	case !directory.Includes(role, directory.RoleReader):
		return fault.New(errcode.NotFound, "%s does not exist", thing)
	default:
		return fault.New(errcode.PermissionDenied, "user %d may not do this: %s needs the role %s in the project of agent %d, not %s", c.UserID, thing, least, agentID, role)
	}
}

// AgentsWithRole are those whose things the caller may deal with as this role may; all is that no
// agent is left out, and then there is no list.
func AgentsWithRole(ctx context.Context, roles Roles, least directory.Role) (agents []int64, all bool) {
	c, known := CallerFrom(ctx)
	switch {
	case !known:
		return []int64{}, false
	case c.Admin:
		return nil, true
	default:
		return roles.Agents(c.UserID, least), false
	}
}

// RequireAdministrator returns nil when the caller is an administrator of the cell.
func RequireAdministrator(ctx context.Context) error {
	c, known := CallerFrom(ctx)
	switch {
	case !known:
		return fault.New(errcode.Unauthenticated, "nobody is known to make this call")
	case !c.Admin:
		return fault.New(errcode.PermissionDenied, "user %s is no administrator of this cell", fmt.Sprint(c.UserID))
	default:
		return nil
	}
}

package access

import (
	"context"
	"fmt"

	"lockstep.internal/libs/directory"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

type callerKey struct{}

// CallerFrom returns the caller of the request, false when no verifier has authenticated it.
func CallerFrom(ctx context.Context) (Caller, bool) {
	c, ok := ctx.Value(callerKey{}).(Caller)
	return c, ok
}

// WithCaller returns a context of a request by this caller, for internal calls and tests.
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// Roles answers the questions of role checks. [directory.Directory] implements it.
type Roles interface {
	AgentRole(userID, agentID int64) directory.Role
	Agents(userID int64, minimum directory.Role) []int64
}

// RequireAgentRole returns nil when the caller has at minimum this role in the agent's project.
// Without read access it returns not_found, else permission_denied. resource names the object in the error, such as
// "rollout x".
func RequireAgentRole(ctx context.Context, roles Roles, agentID int64, minimum directory.Role, resource string) error {
	c, known := CallerFrom(ctx)
	if c.Admin {
		return nil
	}
	role := directory.RoleNone
	if known {
		role = roles.AgentRole(c.UserID, agentID)
	}
	switch {
	case directory.Includes(role, minimum):
		return nil
	case !directory.Includes(role, directory.RoleReader):
		return fault.New(errcode.NotFound, "%s does not exist", resource)
	default:
		return fault.New(
			errcode.PermissionDenied, "user %d may not do this: %s needs the role %s in the project of agent %d, not %s",
			c.UserID, resource, minimum, agentID, role,
		)
	}
}

// AgentsWithRole returns the agents in whose projects the caller has at minimum this role. all means
// every agent; agents is then nil.
func AgentsWithRole(ctx context.Context, roles Roles, minimum directory.Role) (agents []int64, all bool) {
	c, known := CallerFrom(ctx)
	switch {
	case !known:
		return []int64{}, false
	case c.Admin:
		return nil, true
	default:
		return roles.Agents(c.UserID, minimum), false
	}
}

var errNoCaller = fault.New(errcode.Unauthenticated, "the request has no authenticated caller")

// RequireAdministrator returns nil when the caller is an administrator of the cell.
func RequireAdministrator(ctx context.Context) error {
	c, known := CallerFrom(ctx)
	switch {
	case !known:
		return errNoCaller
	case !c.Admin:
		return fault.New(errcode.PermissionDenied, "user %s is not an administrator of this cell", fmt.Sprint(c.UserID))
	default:
		return nil
	}
}

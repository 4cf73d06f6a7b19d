package policy

import (
	"slices"
	"time"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/directory"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/kubename"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/relay/auth"
	"lockstep.internal/services/relay/route"
)

// Caller is the user or the service that makes a request, with its token.
type Caller struct {
	// UserID of a user; 0 for a service.
	UserID int64
	// Admin reports whether the user is an administrator of the cell.
	Admin bool
	// Subject of a service, from its token.
	Subject string
	// Scope of the token. A service has [access.ScopeAdmin]: its rules limit it.
	Scope access.Scope
	// Secret that signed the token of a service; zero for a user.
	Secret auth.SecretID
	// TokenID is the user's personal access token; 0 for none.
	TokenID int64
	// TokenExpiresAt is when the personal access token or the service's token is no longer accepted. Zero for never.
	TokenExpiresAt time.Time
}

// Identity names a caller, whichever token it uses.
type Identity struct {
	UserID  int64
	Subject string
}

// Identity returns who the caller is.
func (c Caller) Identity() Identity { return Identity{UserID: c.UserID, Subject: c.Subject} }

// Access is the permission that a request needs.
type Access struct {
	Agent directory.Agent
	// Target is [route.KubernetesAPI], a name in the agent's configuration, or a [route.Workspace].
	Target string
	// ReadOnly reports whether the request changes nothing.
	ReadOnly bool
}

// CheckUser returns nil if a user with this role in the agent's project may have the access. Faults: not_found for a
// user without a role in the project, permission_denied for a lower role and for a token without the scope.
func CheckUser(c Caller, role directory.Role, a Access) error {
	required, scope := directory.RoleDeveloper, access.ScopeWrite
	if a.ReadOnly && a.Target == route.KubernetesAPI {
		required, scope = directory.RoleReader, access.ScopeRead
	}
	switch {
	case route.IsWorkspace(a.Target) && (c.Admin || directory.Includes(role, directory.RoleReader)):
		return fault.New(errcode.PermissionDenied, "user %d: workspaces are entered through the gateway", c.UserID)
	case c.Admin || directory.Includes(role, required):
		return c.Scope.Require(scope, "this request")
	case !directory.Includes(role, directory.RoleReader):
		return fault.New(errcode.NotFound, "agent %d does not exist", a.Agent.ID)
	}
	return fault.New(errcode.PermissionDenied, "user %d needs the role %s in the project of %s: it has %s", c.UserID,
		required, a.Agent, role)
}

// Rule grants access to a service.
type Rule struct {
	// Subject of the service. Required.
	Subject string
	// A rule matches an agent that is in Agents, or whose project is in Projects, or every agent if All is set.
	Agents   []int64
	Projects []int64
	All      bool
	// Targets that may be reached. Required without Workspaces.
	Targets []string
	// Workspaces allows all ports of workspaces.
	Workspaces bool
	// ReadOnly allows only read requests to the Kubernetes API.
	ReadOnly bool
}

func (r Rule) allows(c Caller, a Access) bool {
	return r.Subject == c.Subject && (r.All || slices.Contains(r.Agents, a.Agent.ID) || slices.Contains(r.Projects,
		a.Agent.ProjectID)) && r.includes(a.Target) &&
		(!r.ReadOnly || a.ReadOnly && a.Target == route.KubernetesAPI)
}

func (r Rule) includes(target string) bool {
	return slices.Contains(r.Targets, target) || r.Workspaces && route.IsWorkspace(target)
}

// Names reports whether a rule is for the service.
func Names(rules []Rule, subject string) bool {
	return slices.ContainsFunc(rules, func(r Rule) bool { return r.Subject == subject })
}

// CheckService returns nil if one of the rules lets the service have the access, else the fault permission_denied.
func CheckService(c Caller, rules []Rule, a Access) error {
	for _, r := range rules {
		if c.Subject != "" && r.allows(c, a) {
			return nil
		}
	}
	return fault.New(errcode.PermissionDenied,
		"service %q has no rule for %s of agent %d: add one to external.callers_file", c.Subject, a.Target, a.Agent.ID)
}

// Prefix of impersonated user and group names.
const Prefix = kubename.Prefix

// Impersonation is the Kubernetes user and groups of a caller.
type Impersonation struct {
	User   string
	Groups []string
}

// Impersonate returns the impersonation of a user with this role, or of a service.
func Impersonate(c Caller, role directory.Role) Impersonation {
	if c.UserID == 0 {
		return Impersonation{User: Prefix + "service:" + c.Subject, Groups: []string{Prefix + "services"}}
	}
	out := Impersonation{User: kubename.User(c.UserID)}
	for _, each := range []directory.Role{
		directory.RoleReader, directory.RoleDeveloper, directory.RoleMaintainer, directory.RoleOwner,
	} {
		if c.Admin || directory.Includes(role, each) {
			out.Groups = append(out.Groups, Prefix+"role:"+string(each))
		}
	}
	if c.Admin {
		out.Groups = append(out.Groups, Prefix+"role:administrator")
	}
	return out
}

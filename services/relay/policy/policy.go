package policy

import (
	"slices"
	"strconv"

	"lockstep.internal/libs/directory"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/relay/route"
)

// Caller is who makes a request: a user, or a service.
type Caller struct {
	// UserID of a user; 0 for a service.
	UserID int64
	// Admin is that the user is an administrator of the cell.
	Admin bool
	// Subject of a service: what its token says of it.
	Subject string
}

// Access is what a request is for.
type Access struct {
	AgentID   int64
	ProjectID int64
	Target    string
	// Reads is that nothing can be changed by it.
	Reads bool
}

// User returns nil if a user with this role in the agent's project may have the access. Faults: not_found for who may not even know of the agent, permission_denied.
func User(c Caller, role directory.Role, a Access) error {
	least := directory.RoleDeveloper
	if a.Reads && a.Target == route.KubernetesAPI {
		least = directory.RoleReader
	}
	switch {
	case c.Admin || directory.Includes(role, least):
		return nil
	case !directory.Includes(role, directory.RoleReader):
		return fault.New(errcode.NotFound, "agent %d does not exist", a.AgentID)
	}
	return fault.New(errcode.PermissionDenied, "user %d may not do this: it needs the role %s in the project of agent %d, not %s", c.UserID, least, a.AgentID, role)
}

// Rule lets a service do something.
type Rule struct {
	// Subject whom it is for. Required.
	Subject string
	// Agents and Projects that may be reached: one of them is enough. All is every agent.
	Agents   []int64
	Projects []int64
	All      bool
	// Targets that may be reached. Required.
	Targets []string
	// ReadOnly allows what reads the Kubernetes API, and nothing else.
	ReadOnly bool
}

func (r Rule) allows(c Caller, a Access) bool {
	return r.Subject == c.Subject && (r.All || slices.Contains(r.Agents, a.AgentID) || slices.Contains(r.Projects, a.ProjectID)) && slices.Contains(r.Targets, a.Target) &&
		(!r.ReadOnly || a.Reads && a.Target == route.KubernetesAPI)
}

// Service returns nil if one of the rules lets the service have the access, else the fault permission_denied.
func Service(c Caller, rules []Rule, a Access) error {
	for _, r := range rules {
		if c.Subject != "" && r.allows(c, a) {
			return nil
		}
	}
	return fault.New(errcode.PermissionDenied, "no rule of the relay's configuration lets the service %q reach %s of agent %d", c.Subject, a.Target, a.AgentID)
}

// Prefix of all users and groups that are impersonated.
const Prefix = "lockstep:"

// Impersonation is as whom a caller appears in a cluster.
type Impersonation struct {
	User   string
	Groups []string
}

// Impersonate says so of a user with this role, or of a service, which has no role.
func Impersonate(c Caller, role directory.Role) Impersonation {
	if c.UserID == 0 {
		return Impersonation{User: Prefix + "service:" + c.Subject, Groups: []string{Prefix + "services"}}
	}
	out := Impersonation{User: Prefix + "user:" + strconv.FormatInt(c.UserID, 10)}
	for _, each := range []directory.Role{directory.RoleReader, directory.RoleDeveloper, directory.RoleMaintainer, directory.RoleOwner} {
		if c.Admin || directory.Includes(role, each) {
			out.Groups = append(out.Groups, Prefix+"role:"+string(each))
		}
	}
	if c.Admin {
		out.Groups = append(out.Groups, Prefix+"role:administrator")
	}
	return out
}

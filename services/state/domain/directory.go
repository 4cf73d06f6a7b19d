package domain

import (
	"cmp"
	"slices"
	"time"
)

// Organization holds groups.
type Organization struct {
	ID   int64
	Name string
}

// Group holds groups and projects. ParentID is 0 directly below the organization.
type Group struct {
	ID             int64
	OrganizationID int64
	ParentID       int64
	Name           string
}

// Project holds workspaces and agents. Path is the names from the organization down, joined by slashes.
type Project struct {
	ID             int64
	OrganizationID int64
	GroupID        int64
	Name           string
	Path           string
}

// User is a person or a program that calls the API.
type User struct {
	ID       int64
	Username string
	Admin    bool
	Blocked  bool
}

// Token is a personal access token without its value. The zero time means never.
type Token struct {
	ID         int64
	UserID     int64
	Name       string
	CreatedAt  time.Time
	ExpiresAt  time.Time
	LastUsedAt time.Time
	Revoked    bool
}

// Agent is a cluster, or a part of one, that dials out to Lockstep.
type Agent struct {
	ID             int64
	ProjectID      int64
	Name           string
	CurvePublicKey string
	CreatedAt      time.Time
	LastSeenAt     time.Time
	ClusterUID     string
	Revoked        bool
	// TokenHash is the SHA-256 of the token that it authenticates with.
	TokenHash []byte
	// Configuration as of its revision, which grows with every change.
	Configuration         AgentConfiguration
	ConfigurationRevision int64
}

// Subscriber is a tool outside of Lockstep that reads deploy facts from NATS. Several may have had the same name, of which one is not revoked.
type Subscriber struct {
	ID   int64
	Name string
	// Filter is the whole subjects that it may hear.
	Filter string
	// FromBeginning gives it all that the stream has, and not only what was stored since CreatedAt.
	FromBeginning bool
	// UserID is who made it.
	UserID    int64
	CreatedAt time.Time
	Revoked   bool
}

// Since is when the first fact was stored that it gets; the zero time for the oldest there is.
func (s Subscriber) Since() time.Time {
	if s.FromBeginning {
		return time.Time{}
	}
	return s.CreatedAt
}

// Resync is one full report of what a cluster has.
type Resync struct {
	ID string
	// Cause is why the watcher did it. Nonce is that of the request that it answers; empty without one.
	Cause, Nonce string
	// Outcome is open, complete or incomplete.
	Outcome string
	// Count of its objects.
	Count int64
	// EndedAt is zero while it is open.
	BegunAt, EndedAt time.Time
}

// Template is what workspaces are made from. ProjectID 0 serves every project.
type Template struct {
	ProjectID int64
	Name      string
	Spec      Spec
	UpdatedAt time.Time
}

// Role in an organization, a group or a project; each may do what those before it may.
type Role string

// Roles.
const (
	RoleNone       Role = ""
	RoleReader     Role = "reader"
	RoleDeveloper  Role = "developer"
	RoleMaintainer Role = "maintainer"
	RoleOwner      Role = "owner"
)

// Rank orders roles; an unknown one ranks as none.
func (r Role) Rank() int {
	return max(0, slices.Index([]Role{RoleNone, RoleReader, RoleDeveloper, RoleMaintainer, RoleOwner}, r))
}

// HighestRole is the role that counts where several are inherited.
func HighestRole(roles []Role) Role {
	if len(roles) == 0 {
		return RoleNone
	}
	return slices.MaxFunc(roles, func(a, b Role) int { return cmp.Compare(a.Rank(), b.Rank()) })
}

// ScopeKind is the kind of what a membership is in.
type ScopeKind string

// Kinds of scopes.
const (
	ScopeOrganization ScopeKind = "organization"
	ScopeGroup        ScopeKind = "group"
	ScopeProject      ScopeKind = "project"
)

// Scope is one organization, group or project.
type Scope struct {
	Kind ScopeKind
	ID   int64
}

// Membership is a user's role in a scope.
type Membership struct {
	UserID int64
	Scope  Scope
	Role   Role
}

// Package directory is the domain model of organizations, groups, projects, users, tokens, memberships and
// subscribers. Each published type has an Entry method. The package is pure.
package directory

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"lockstep.internal/libs/access"
	libdirectory "lockstep.internal/libs/directory"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
)

// Entry is an event on the stream DIRECTORY. The last entry of a kind and key is the current one.
type Entry struct {
	Kind, Key string
	// Data is the payload, such as events.DirectoryUser.
	Data any
}

// Key returns the entry key of a numeric id.
func Key(id int64) string { return strconv.FormatInt(id, 10) }

// Organization holds groups.
type Organization struct {
	ID        int64
	Name      string
	Residence Residence
	// OtherCell is the cell that the organization goes to, comes from or is in. Empty for [ResidenceHere].
	OtherCell topology.Cell
}

// Entry returns the directory entry of the organization. It does not contain the name.
func (o Organization) Entry() Entry {
	return Entry{"organization", Key(o.ID), events.DirectoryOrganization{OrganizationID: int(o.ID)}}
}

// Removed returns the directory entry of the organization after its removal.
func (o Organization) Removed() Entry {
	return Entry{"organization", Key(o.ID), events.DirectoryOrganization{OrganizationID: int(o.ID), Deleted: true}}
}

// Group holds groups and projects. ParentID is 0 directly below the organization.
type Group struct {
	ID             int64
	OrganizationID int64
	ParentID       int64
	Name           string
}

// Entry returns the directory entry of the group. It does not contain the name.
func (g Group) Entry() Entry {
	return Entry{"group", Key(g.ID), events.DirectoryGroup{
		GroupID: int(g.ID), OrganizationID: int(g.OrganizationID), ParentGroupID: int(g.ParentID),
	}}
}

// Removed returns the directory entry of the group after its removal.
func (g Group) Removed() Entry {
	return Entry{"group", Key(g.ID), events.DirectoryGroup{
		GroupID: int(g.ID), OrganizationID: int(g.OrganizationID), ParentGroupID: int(g.ParentID), Deleted: true,
	}}
}

// Project holds workspaces and agents. Path is the names from the organization to the project, joined by slashes.
type Project struct {
	ID             int64
	OrganizationID int64
	GroupID        int64
	Name           string
	Path           string
}

// Entry returns the directory entry of the project. It does not contain the name.
func (p Project) Entry() Entry {
	return Entry{"project", Key(p.ID), events.DirectoryProject{
		ProjectID: int(p.ID), GroupID: int(p.GroupID), OrganizationID: int(p.OrganizationID),
	}}
}

// Removed returns the directory entry of the project after its removal.
func (p Project) Removed() Entry {
	return Entry{"project", Key(p.ID), events.DirectoryProject{
		ProjectID: int(p.ID), GroupID: int(p.GroupID), OrganizationID: int(p.OrganizationID), Deleted: true,
	}}
}

// User is a person or a program that calls the API.
type User struct {
	ID       int64
	Username string
	Admin    bool
	Blocked  bool
	// RevokedTokens are the tokens that were revoked within [access.RevocationPeriod]. Only entries need them.
	RevokedTokens []int64
}

// UserEntryVersion is the version of a user's directory entry. Version 0 has no username_hash. Raise it when the
// entries of existing users must be published again with more fields.
const UserEntryVersion = 1

// Entry returns the directory entry of the user. It contains a hash of the username only.
func (u User) Entry() Entry {
	state := events.UserStateActive
	if u.Blocked {
		state = events.UserStateBlocked
	}
	entry := events.DirectoryUser{
		UserID: int(u.ID), State: state, Admin: u.Admin, UsernameHash: libdirectory.HashUsername(u.Username),
	}
	for _, token := range u.RevokedTokens {
		entry.RevokedTokens = append(entry.RevokedTokens, int(token))
	}
	return Entry{"user", Key(u.ID), entry}
}

// Removed returns the directory entry of the user after its removal.
func (u User) Removed() Entry {
	return Entry{"user", Key(u.ID), events.DirectoryUser{UserID: int(u.ID), State: events.UserStateBlocked, Deleted: true}}
}

// Token is a personal access token without its value. A zero time means never.
type Token struct {
	ID     int64
	UserID int64
	Name   string
	Scope  access.Scope
	// CreatedBy is the token whose caller created it; 0 means none.
	CreatedBy  int64
	CreatedAt  time.Time
	ExpiresAt  time.Time
	LastUsedAt time.Time
	Revoked    bool
}

// Subscriber is an external tool that reads deploy events from NATS. Names of subscribers that are not revoked
// are unique.
type Subscriber struct {
	ID   int64
	Name string
	// Filter is the subject filter of the events that it may read.
	Filter string
	// FromBeginning delivers all events of the stream, instead of those since CreatedAt.
	FromBeginning bool
	// UserID created it.
	UserID    int64
	CreatedAt time.Time
	Revoked   bool
}

// Since returns the time from which events are delivered; zero means all events.
func (s Subscriber) Since() time.Time {
	if s.FromBeginning {
		return time.Time{}
	}
	return s.CreatedAt
}

// Role in an organization, a group or a project. Each role includes the permissions of the lower roles.
type Role string

// Roles, from the lowest to the highest.
const (
	RoleNone       Role = ""
	RoleReader     Role = "reader"
	RoleDeveloper  Role = "developer"
	RoleMaintainer Role = "maintainer"
	RoleOwner      Role = "owner"
)

// Rank orders roles. An unknown role ranks as none.
func (r Role) Rank() int {
	return max(0, slices.Index([]Role{RoleNone, RoleReader, RoleDeveloper, RoleMaintainer, RoleOwner}, r))
}

// HighestRole returns the highest of several inherited roles.
func HighestRole(roles []Role) Role {
	if len(roles) == 0 {
		return RoleNone
	}
	return slices.MaxFunc(roles, func(a, b Role) int { return cmp.Compare(a.Rank(), b.Rank()) })
}

// ScopeKind is the kind of a Scope.
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
	// Username of the user, in lists for the API. It is not published.
	Username string
}

// Entry returns the directory entry of the membership. ended marks it as deleted.
func (m Membership) Entry(ended bool) Entry {
	return Entry{"membership", fmt.Sprintf("%d-%s-%d", m.UserID, m.Scope.Kind, m.Scope.ID), events.DirectoryMembership{
		UserID: int(m.UserID), Scope: events.MembershipScope(m.Scope.Kind), ScopeID: int(m.Scope.ID),
		Role: events.MembershipRole(m.Role), Deleted: ended,
	}}
}

package api

import (
	"google.golang.org/protobuf/types/known/durationpb"

	libaccess "lockstep.internal/libs/access"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/services/state/agent"
	"lockstep.internal/services/state/directory"
)

// convertAll converts each element.
func convertAll[T, U any](in []T, convert func(T) U) []U {
	out := make([]U, len(in))
	for i := range in {
		out[i] = convert(in[i])
	}
	return out
}

func organization(o directory.Organization) *statev1.Organization {
	return &statev1.Organization{
		Id: o.ID, Name: o.Name, Residence: residences()[o.Residence], OtherCell: string(o.OtherCell),
	}
}

func residences() map[directory.Residence]statev1.Residence {
	return map[directory.Residence]statev1.Residence{
		directory.ResidenceHere:     statev1.Residence_RESIDENCE_HERE,
		directory.ResidenceLeaving:  statev1.Residence_RESIDENCE_LEAVING,
		directory.ResidenceArriving: statev1.Residence_RESIDENCE_ARRIVING,
		directory.ResidenceAway:     statev1.Residence_RESIDENCE_AWAY,
	}
}

func group(g directory.Group) *statev1.Group {
	return &statev1.Group{Id: g.ID, OrganizationId: g.OrganizationID, ParentGroupId: g.ParentID, Name: g.Name}
}

func project(p directory.Project) *statev1.Project {
	return &statev1.Project{Id: p.ID, OrganizationId: p.OrganizationID, GroupId: p.GroupID, Name: p.Name, Path: p.Path}
}

func user(u directory.User) *statev1.User {
	return &statev1.User{Id: u.ID, Username: u.Username, Admin: u.Admin, Blocked: u.Blocked}
}

func accessToken(t directory.Token) *statev1.Token {
	return &statev1.Token{
		Id: t.ID, UserId: t.UserID, Name: t.Name, CreatedAt: timestamp(t.CreatedAt), ExpiresAt: timestamp(t.ExpiresAt),
		LastUsedAt: timestamp(t.LastUsedAt), Revoked: t.Revoked, Scope: tokenScope(t.Scope),
		CreatedBy: t.CreatedBy,
	}
}

func agentMessage(a agent.Agent, namespacePrefix string) *statev1.Agent {
	return &statev1.Agent{
		Id:            a.ID,
		Name:          a.Name,
		ProjectId:     a.ProjectID,
		CreatedAt:     timestamp(a.CreatedAt),
		LastSeenAt:    timestamp(a.LastSeenAt),
		ClusterUid:    a.ClusterUID,
		Revoked:       a.Revoked,
		ClockOffset:   durationpb.New(a.ClockOffset),
		Objects:       a.Objects,
		Configuration: configuration(a.Configuration, a.ConfigurationRevision),

		PreviousTokenValidUntil: timestamp(a.PreviousTokenValidUntil),
		NamespacePrefix:         namespacePrefix,
		OwnSettings:             a.OwnSettings,
	}
}

func membership(m directory.Membership) *statev1.Membership {
	out := &statev1.Membership{UserId: m.UserID, ScopeId: m.Scope.ID, Username: m.Username}
	for k, v := range scopeKinds() {
		if v == m.Scope.Kind {
			out.Scope = k
		}
	}
	for k, v := range roles() {
		if v == m.Role {
			out.Role = k
		}
	}
	return out
}

func scopeKinds() map[statev1.ScopeKind]directory.ScopeKind {
	return map[statev1.ScopeKind]directory.ScopeKind{
		statev1.ScopeKind_SCOPE_KIND_ORGANIZATION: directory.ScopeOrganization,
		statev1.ScopeKind_SCOPE_KIND_GROUP:        directory.ScopeGroup,
		statev1.ScopeKind_SCOPE_KIND_PROJECT:      directory.ScopeProject,
	}
}

func tokenScopes() map[statev1.TokenScope]libaccess.Scope {
	return map[statev1.TokenScope]libaccess.Scope{
		statev1.TokenScope_TOKEN_SCOPE_READ:  libaccess.ScopeRead,
		statev1.TokenScope_TOKEN_SCOPE_WRITE: libaccess.ScopeWrite,
		statev1.TokenScope_TOKEN_SCOPE_ADMIN: libaccess.ScopeAdmin,
	}
}

// tokenScope is unspecified for an unknown scope.
func tokenScope(s libaccess.Scope) statev1.TokenScope {
	for message, scope := range tokenScopes() {
		if scope == s {
			return message
		}
	}
	return statev1.TokenScope_TOKEN_SCOPE_UNSPECIFIED
}

func roles() map[statev1.Role]directory.Role {
	return map[statev1.Role]directory.Role{
		statev1.Role_ROLE_READER:     directory.RoleReader,
		statev1.Role_ROLE_DEVELOPER:  directory.RoleDeveloper,
		statev1.Role_ROLE_MAINTAINER: directory.RoleMaintainer,
		statev1.Role_ROLE_OWNER:      directory.RoleOwner,
	}
}

// scopeKind is empty for an unknown kind.
func scopeKind(k statev1.ScopeKind) directory.ScopeKind { return scopeKinds()[k] }

// role is RoleNone for an unknown role.
func role(r statev1.Role) directory.Role { return roles()[r] }

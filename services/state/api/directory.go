package api

import (
	"context"
	"fmt"

	"connectrpc.com/connect"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/schemas/gen/lockstep/state/v1/statev1connect"
	"lockstep.internal/services/state/authz"
	"lockstep.internal/services/state/directory"
	"lockstep.internal/services/state/postgres"
)

type directoryService struct {
	statev1connect.UnimplementedDirectoryServiceHandler
	access

	sessions *sessionCache
}

func (s *directoryService) WhoAmI(
	ctx context.Context,
	_ *connect.Request[statev1.WhoAmIRequest],
) (*connect.Response[statev1.WhoAmIResponse], error) {
	return connect.NewResponse(&statev1.WhoAmIResponse{User: user(caller(ctx))}), nil
}

func (s *directoryService) CreateOrganization(
	ctx context.Context,
	r *connect.Request[statev1.CreateOrganizationRequest],
) (*connect.Response[statev1.CreateOrganizationResponse], error) {
	if err := directory.CheckName(r.Msg.GetName()); err != nil {
		return nil, err
	}
	if err := s.administer(ctx); err != nil {
		return nil, err
	}
	o, err := s.directory.CreateOrganization(ctx, r.Msg.GetName())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&statev1.CreateOrganizationResponse{Organization: organization(o)}), nil
}

func (s *directoryService) ListOrganizations(
	ctx context.Context,
	r *connect.Request[statev1.ListOrganizationsRequest],
) (*connect.Response[statev1.ListOrganizationsResponse], error) {
	p, err := page(r.Msg.GetPageSize(), r.Msg.GetPageToken())
	if err != nil {
		return nil, err
	}
	userID := caller(ctx).ID
	if caller(ctx).Admin {
		userID = 0 // all
	}
	found, err := s.directory.Organizations(ctx, userID, p)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&statev1.ListOrganizationsResponse{
		Organizations: convertAll(
			found,
			organization,
		),
		NextPageToken: next(found, p, func(o directory.Organization) int64 { return o.ID }),
	}), nil
}

func (s *directoryService) CreateGroup(
	ctx context.Context,
	r *connect.Request[statev1.CreateGroupRequest],
) (*connect.Response[statev1.CreateGroupResponse], error) {
	if err := directory.CheckName(r.Msg.GetName()); err != nil {
		return nil, err
	}
	scope := directory.Scope{Kind: directory.ScopeGroup, ID: r.Msg.GetParentGroupId()}
	if scope.ID == 0 {
		scope = directory.Scope{Kind: directory.ScopeOrganization, ID: r.Msg.GetOrganizationId()}
	} else if r.Msg.GetOrganizationId() != 0 {
		return nil, fault.New(errcode.InvalidArgument, "give parent_group_id or organization_id, not both").
			With("field", "organization_id")
	}
	if err := id(string(scope.Kind)+"_id", scope.ID); err != nil {
		return nil, err
	}
	if err := s.allow(ctx, scope, false, authz.ManageMembers, scopeName(scope)); err != nil {
		return nil, err
	}
	g, err := s.directory.CreateGroup(
		ctx,
		directory.Group{OrganizationID: r.Msg.GetOrganizationId(), ParentID: r.Msg.GetParentGroupId(), Name: r.Msg.GetName()},
	)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&statev1.CreateGroupResponse{Group: group(g)}), nil
}

func (s *directoryService) ListGroups(
	ctx context.Context,
	r *connect.Request[statev1.ListGroupsRequest],
) (*connect.Response[statev1.ListGroupsResponse], error) {
	p, err := page(r.Msg.GetPageSize(), r.Msg.GetPageToken())
	if err != nil {
		return nil, err
	}
	scope := directory.Scope{Kind: directory.ScopeOrganization, ID: r.Msg.GetOrganizationId()}
	if err := s.allow(ctx, scope, false, authz.Read, scopeName(scope)); err != nil {
		return nil, err
	}
	found, err := s.directory.Groups(ctx, scope.ID, p)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(
		&statev1.ListGroupsResponse{
			Groups:        convertAll(found, group),
			NextPageToken: next(found, p, func(g directory.Group) int64 { return g.ID }),
		},
	), nil
}

func (s *directoryService) CreateProject(
	ctx context.Context,
	r *connect.Request[statev1.CreateProjectRequest],
) (*connect.Response[statev1.CreateProjectResponse], error) {
	if err := directory.CheckName(r.Msg.GetName()); err != nil {
		return nil, err
	}
	scope := directory.Scope{Kind: directory.ScopeGroup, ID: r.Msg.GetGroupId()}
	if err := id("group_id", scope.ID); err != nil {
		return nil, err
	}
	if err := s.allow(ctx, scope, false, authz.ManageMembers, scopeName(scope)); err != nil {
		return nil, err
	}
	p, err := s.directory.CreateProject(ctx, scope.ID, r.Msg.GetName())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&statev1.CreateProjectResponse{Project: project(p)}), nil
}

func (s *directoryService) ListProjects(
	ctx context.Context,
	r *connect.Request[statev1.ListProjectsRequest],
) (*connect.Response[statev1.ListProjectsResponse], error) {
	p, err := page(r.Msg.GetPageSize(), r.Msg.GetPageToken())
	if err != nil {
		return nil, err
	}
	visible, err := s.visible(ctx)
	if err != nil {
		return nil, err
	}
	found, err := s.directory.Projects(ctx, r.Msg.GetGroupId(), visible, p)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(
		&statev1.ListProjectsResponse{
			Projects:      convertAll(found, project),
			NextPageToken: next(found, p, func(p directory.Project) int64 { return p.ID }),
		},
	), nil
}

func (s *directoryService) CreateUser(
	ctx context.Context,
	r *connect.Request[statev1.CreateUserRequest],
) (*connect.Response[statev1.CreateUserResponse], error) {
	if err := directory.CheckUsername(r.Msg.GetUsername()); err != nil {
		return nil, err
	}
	if err := s.administer(ctx); err != nil {
		return nil, err
	}
	u, err := s.directory.CreateUser(ctx, r.Msg.GetUsername(), r.Msg.GetAdmin())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&statev1.CreateUserResponse{User: user(u)}), nil
}

func (s *directoryService) ListUsers(
	ctx context.Context,
	r *connect.Request[statev1.ListUsersRequest],
) (*connect.Response[statev1.ListUsersResponse], error) {
	p, err := page(r.Msg.GetPageSize(), r.Msg.GetPageToken())
	if err != nil {
		return nil, err
	}
	if err := s.administer(ctx); err != nil {
		return nil, err
	}
	found, err := s.directory.Users(ctx, p)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(
		&statev1.ListUsersResponse{
			Users:         convertAll(found, user),
			NextPageToken: next(found, p, func(u directory.User) int64 { return u.ID }),
		},
	), nil
}

func (s *directoryService) BlockUser(
	ctx context.Context,
	r *connect.Request[statev1.BlockUserRequest],
) (*connect.Response[statev1.BlockUserResponse], error) {
	if err := id("id", r.Msg.GetId()); err != nil {
		return nil, err
	}
	if err := s.administer(ctx); err != nil {
		return nil, err
	}
	if r.Msg.GetId() == caller(ctx).ID {
		return nil, fault.New(errcode.FailedPrecondition, "you cannot block yourself: ask another administrator")
	}
	defer s.sessions.invalidate()
	spare := postgres.Spare{Caller: sessionOf(ctx).token.ID, OtherUsers: r.Msg.GetKeepOtherUsers()}
	u, revoked, err := s.directory.BlockUser(ctx, r.Msg.GetId(), spare)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&statev1.BlockUserResponse{User: user(u), Revoked: convertAll(revoked, accessToken)}), nil
}

func (s *directoryService) UnblockUser(
	ctx context.Context,
	r *connect.Request[statev1.UnblockUserRequest],
) (*connect.Response[statev1.UnblockUserResponse], error) {
	if err := id("id", r.Msg.GetId()); err != nil {
		return nil, err
	}
	if err := s.administer(ctx); err != nil {
		return nil, err
	}
	defer s.sessions.invalidate()
	u, revoked, err := s.directory.UnblockUser(ctx, r.Msg.GetId())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&statev1.UnblockUserResponse{User: user(u), Revoked: convertAll(revoked, accessToken)}), nil
}

func (s *directoryService) PutMembership(
	ctx context.Context,
	r *connect.Request[statev1.PutMembershipRequest],
) (*connect.Response[statev1.PutMembershipResponse], error) {
	requested := r.Msg.GetMembership()
	m := directory.Membership{
		UserID:   requested.GetUserId(),
		Username: requested.GetUsername(),
		Scope:    directory.Scope{Kind: scopeKind(requested.GetScope()), ID: requested.GetScopeId()},
		Role:     role(requested.GetRole()),
	}
	if err := membershipFields(m); err != nil {
		return nil, err
	}
	if m.Role == directory.RoleNone {
		return nil, fault.New(errcode.InvalidArgument, "role is missing: give reader, developer, maintainer or owner").
			With("field", "role")
	}
	if err := s.allowMembers(ctx, m.Scope); err != nil {
		return nil, err
	}
	if err := s.findMember(ctx, &m); err != nil {
		return nil, err
	}
	if err := s.directory.PutMembership(ctx, m); err != nil {
		return nil, err
	}
	return connect.NewResponse(&statev1.PutMembershipResponse{Membership: membership(m)}), nil
}

func (s *directoryService) DeleteMembership(
	ctx context.Context,
	r *connect.Request[statev1.DeleteMembershipRequest],
) (*connect.Response[statev1.DeleteMembershipResponse], error) {
	m := directory.Membership{
		UserID:   r.Msg.GetUserId(),
		Username: r.Msg.GetUsername(),
		Scope:    directory.Scope{Kind: scopeKind(r.Msg.GetScope()), ID: r.Msg.GetScopeId()},
	}
	if err := membershipFields(m); err != nil {
		return nil, err
	}
	if err := s.allowMembers(ctx, m.Scope); err != nil {
		return nil, err
	}
	if err := s.findMember(ctx, &m); err != nil {
		return nil, err
	}
	if err := s.directory.DeleteMembership(ctx, m.UserID, m.Scope); err != nil {
		return nil, err
	}
	return connect.NewResponse(&statev1.DeleteMembershipResponse{}), nil
}

func (s *directoryService) ListMemberships(
	ctx context.Context,
	r *connect.Request[statev1.ListMembershipsRequest],
) (*connect.Response[statev1.ListMembershipsResponse], error) {
	scope := directory.Scope{Kind: scopeKind(r.Msg.GetScope()), ID: r.Msg.GetScopeId()}
	byUser, byScope := r.Msg.GetUserId() != 0, scope.ID != 0
	if byUser == byScope {
		return nil, fault.New(errcode.InvalidArgument, "give either user_id or scope and scope_id").With("field", "user_id")
	}
	if byUser && r.Msg.GetUserId() != caller(ctx).ID {
		if err := s.administer(ctx); err != nil {
			return nil, err
		}
	}
	if byScope {
		if err := s.allow(ctx, scope, false, authz.Read, scopeName(scope)); err != nil {
			return nil, err
		}
	}
	found, err := s.directory.Memberships(ctx, r.Msg.GetUserId(), scope)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&statev1.ListMembershipsResponse{Memberships: convertAll(found, membership)}), nil
}

// allowMembers checks that the scope exists and that the caller may change its members.
func (s *directoryService) allowMembers(ctx context.Context, scope directory.Scope) error {
	if err := s.allow(ctx, scope, false, authz.ManageMembers, scopeName(scope)); err != nil {
		return err
	}
	return s.directory.ScopeExists(ctx, scope)
}

// findMember sets the id of a user who is given by name. The caller must be allowed to change members: others cannot
// find out who exists.
func (s *directoryService) findMember(ctx context.Context, m *directory.Membership) error {
	if m.Username == "" {
		return nil
	}
	u, err := s.directory.UserByName(ctx, m.Username)
	m.UserID = u.ID
	return err
}

func membershipFields(m directory.Membership) error {
	switch {
	case m.Username != "" && m.UserID != 0:
		return fault.New(errcode.InvalidArgument, "give user_id or username, not both").With("field", "username")
	case m.Username != "":
		if err := directory.CheckUsername(m.Username); err != nil {
			return err
		}
	default:
		if err := id("user_id", m.UserID); err != nil {
			return err
		}
	}
	if m.Scope.Kind == "" {
		return fault.New(errcode.InvalidArgument, "scope is missing: give organization, group or project").
			With("field", "scope")
	}
	return id("scope_id", m.Scope.ID)
}

func scopeName(scope directory.Scope) string { return fmt.Sprintf("%s %d", scope.Kind, scope.ID) }

package client

import (
	"context"
	"slices"
	"strings"

	"connectrpc.com/connect"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

const pageSize = 500

// Projects lists all projects that the caller may read, by path.
func (a *API) Projects(ctx context.Context) ([]*statev1.Project, error) {
	var all []*statev1.Project
	for token := ""; ; {
		response, err := a.Directory.ListProjects(
			ctx, connect.NewRequest(&statev1.ListProjectsRequest{PageSize: pageSize, PageToken: token}),
		)
		if err != nil {
			return nil, err
		}
		all = append(all, response.Msg.GetProjects()...)
		if token = response.Msg.GetNextPageToken(); token == "" {
			slices.SortFunc(all, func(a, b *statev1.Project) int { return strings.Compare(a.GetPath(), b.GetPath()) })
			return all, nil
		}
	}
}

// Users lists all users, by name. Only administrators may.
func (a *API) Users(ctx context.Context) ([]*statev1.User, error) {
	var all []*statev1.User
	for token := ""; ; {
		response, err := a.Directory.ListUsers(
			ctx, connect.NewRequest(&statev1.ListUsersRequest{PageSize: pageSize, PageToken: token}),
		)
		if err != nil {
			return nil, err
		}
		all = append(all, response.Msg.GetUsers()...)
		if token = response.Msg.GetNextPageToken(); token == "" {
			slices.SortFunc(all, func(a, b *statev1.User) int { return strings.Compare(a.GetUsername(), b.GetUsername()) })
			return all, nil
		}
	}
}

// Organizations lists the organizations that the caller may read.
func (a *API) Organizations(ctx context.Context) ([]*statev1.Organization, error) {
	var all []*statev1.Organization
	for token := ""; ; {
		response, err := a.Directory.ListOrganizations(
			ctx, connect.NewRequest(&statev1.ListOrganizationsRequest{PageSize: pageSize, PageToken: token}),
		)
		if err != nil {
			return nil, err
		}
		all = append(all, response.Msg.GetOrganizations()...)
		if token = response.Msg.GetNextPageToken(); token == "" {
			return all, nil
		}
	}
}

// Groups lists the groups of an organization.
func (a *API) Groups(ctx context.Context, organization int64) ([]*statev1.Group, error) {
	var all []*statev1.Group
	for token := ""; ; {
		response, err := a.Directory.ListGroups(ctx,
			connect.NewRequest(&statev1.ListGroupsRequest{OrganizationId: organization, PageSize: pageSize, PageToken: token}))
		if err != nil {
			return nil, err
		}
		all = append(all, response.Msg.GetGroups()...)
		if token = response.Msg.GetNextPageToken(); token == "" {
			return all, nil
		}
	}
}

// EnsureProject returns the project at a path organization/group[/group…]/project. It creates the
// project, its organization and its groups if they are missing.
func (a *API) EnsureProject(ctx context.Context, path string) (*statev1.Project, error) {
	above, name := split(path)
	if strings.Count(path, "/") < 2 {
		return nil, fault.New(errcode.InvalidArgument, "project path %q must be organization/group/project", path)
	}
	projects, err := a.Projects(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range projects {
		if p.GetPath() == path {
			return p, nil
		}
	}
	parent, err := a.EnsureGroup(ctx, above)
	if err != nil {
		return nil, err
	}
	created, err := a.Directory.CreateProject(
		ctx, connect.NewRequest(&statev1.CreateProjectRequest{GroupId: parent.GetId(), Name: name}),
	)
	if err != nil {
		return nil, err
	}
	return created.Msg.GetProject(), nil
}

// EnsureGroup returns the group at a path organization/group[/group…]. It creates the group, its organization and the
// groups above it if they are missing.
func (a *API) EnsureGroup(ctx context.Context, path string) (*statev1.Group, error) {
	names := strings.Split(path, "/")
	if len(names) < 2 {
		return nil, fault.New(errcode.InvalidArgument, "group path %q must be organization/group", path)
	}
	organization, err := a.ensureOrganization(ctx, names[0])
	if err != nil {
		return nil, err
	}
	all, err := a.Groups(ctx, organization)
	if err != nil {
		return nil, err
	}
	var parent *statev1.Group
	for _, name := range names[1:] {
		if parent, err = a.ensureGroup(ctx, all, organization, parent, name); err != nil {
			return nil, err
		}
	}
	return parent, nil
}

// split returns the path above a name, and the name.
func split(path string) (above, name string) {
	at := strings.LastIndexByte(path, '/')
	return path[:max(at, 0)], path[at+1:]
}

func (a *API) ensureOrganization(ctx context.Context, name string) (int64, error) {
	all, err := a.Organizations(ctx)
	if err != nil {
		return 0, err
	}
	for _, o := range all {
		if o.GetName() == name {
			return o.GetId(), nil
		}
	}
	created, err := a.Directory.CreateOrganization(ctx, connect.NewRequest(&statev1.CreateOrganizationRequest{Name: name}))
	if err != nil {
		return 0, err
	}
	return created.Msg.GetOrganization().GetId(), nil
}

// ensureGroup returns the group with a name below parent, nil for the organization. all are those that exist.
func (a *API) ensureGroup(
	ctx context.Context, all []*statev1.Group, organization int64, parent *statev1.Group, name string,
) (*statev1.Group, error) {
	for _, g := range all {
		if g.GetName() == name && g.GetParentGroupId() == parent.GetId() {
			return g, nil
		}
	}
	request := &statev1.CreateGroupRequest{OrganizationId: organization, Name: name}
	if parent != nil {
		request = &statev1.CreateGroupRequest{ParentGroupId: parent.GetId(), Name: name}
	}
	created, err := a.Directory.CreateGroup(ctx, connect.NewRequest(request))
	if err != nil {
		return nil, err
	}
	return created.Msg.GetGroup(), nil
}

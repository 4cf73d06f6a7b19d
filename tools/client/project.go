package client

import (
	"context"
	"strings"

	"connectrpc.com/connect"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

const pageSize = 500

// Projects lists all projects that the caller may read.
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
			return all, nil
		}
	}
}

// EnsureProject returns the project at a path organization/group[/group…]/project. It creates the
// project, its organization and its groups if they are missing.
func (a *API) EnsureProject(ctx context.Context, path string) (*statev1.Project, error) {
	names := strings.Split(path, "/")
	if len(names) < 3 {
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
	organization, err := a.ensureOrganization(ctx, names[0])
	if err != nil {
		return nil, err
	}
	var parent int64
	for _, name := range names[1 : len(names)-1] {
		if parent, err = a.ensureGroup(ctx, organization, parent, name); err != nil {
			return nil, err
		}
	}
	created, err := a.Directory.CreateProject(
		ctx, connect.NewRequest(&statev1.CreateProjectRequest{GroupId: parent, Name: names[len(names)-1]}),
	)
	if err != nil {
		return nil, err
	}
	return created.Msg.GetProject(), nil
}

func (a *API) ensureOrganization(ctx context.Context, name string) (int64, error) {
	for token := ""; ; {
		response, err := a.Directory.ListOrganizations(
			ctx, connect.NewRequest(&statev1.ListOrganizationsRequest{PageSize: pageSize, PageToken: token}),
		)
		if err != nil {
			return 0, err
		}
		for _, o := range response.Msg.GetOrganizations() {
			if o.GetName() == name {
				return o.GetId(), nil
			}
		}
		if token = response.Msg.GetNextPageToken(); token == "" {
			break
		}
	}
	created, err := a.Directory.CreateOrganization(ctx, connect.NewRequest(&statev1.CreateOrganizationRequest{Name: name}))
	if err != nil {
		return 0, err
	}
	return created.Msg.GetOrganization().GetId(), nil
}

func (a *API) ensureGroup(ctx context.Context, organization, parent int64, name string) (int64, error) {
	for token := ""; ; {
		response, err := a.Directory.ListGroups(ctx,
			connect.NewRequest(&statev1.ListGroupsRequest{OrganizationId: organization, PageSize: pageSize, PageToken: token}))
		if err != nil {
			return 0, err
		}
		for _, g := range response.Msg.GetGroups() {
			if g.GetName() == name && g.GetParentGroupId() == parent {
				return g.GetId(), nil
			}
		}
		if token = response.Msg.GetNextPageToken(); token == "" {
			break
		}
	}
	request := &statev1.CreateGroupRequest{OrganizationId: organization, Name: name}
	if parent != 0 {
		request = &statev1.CreateGroupRequest{ParentGroupId: parent, Name: name}
	}
	created, err := a.Directory.CreateGroup(ctx, connect.NewRequest(request))
	if err != nil {
		return 0, err
	}
	return created.Msg.GetGroup().GetId(), nil
}

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
	"lockstep.internal/services/state/workspace"
)

type templateService struct {
	statev1connect.UnimplementedTemplateServiceHandler
	access
}

func (s *templateService) PutTemplate(
	ctx context.Context,
	r *connect.Request[statev1.PutTemplateRequest],
) (*connect.Response[statev1.PutTemplateResponse], error) {
	if err := directory.CheckName(r.Msg.GetName()); err != nil {
		return nil, err
	}
	asked := r.Msg.GetSpec()
	if len(asked.GetSecretEnv())+len(asked.GetSecretFiles()) > 0 {
		return nil, fault.New(errcode.InvalidArgument,
			"a template cannot have secrets: give them when you create a workspace").
			With("field", "spec")
	}
	spec := specOf(asked)
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	var err error
	if r.Msg.GetProjectId() == 0 {
		err = s.administer(ctx)
	} else {
		err = s.allow(
			ctx,
			projectScope(r.Msg.GetProjectId()),
			false,
			authz.ManageTemplates,
			fmt.Sprintf("project %d", r.Msg.GetProjectId()),
		)
	}
	if err != nil {
		return nil, err
	}
	t, err := s.directory.PutTemplate(
		ctx,
		workspace.Template{ProjectID: r.Msg.GetProjectId(), Name: r.Msg.GetName(), Spec: spec},
	)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&statev1.PutTemplateResponse{Template: template(t)}), nil
}

func (s *templateService) GetTemplate(
	ctx context.Context,
	r *connect.Request[statev1.GetTemplateRequest],
) (*connect.Response[statev1.GetTemplateResponse], error) {
	if err := s.allowRead(ctx, r.Msg.GetProjectId()); err != nil {
		return nil, err
	}
	t, err := s.directory.Template(ctx, r.Msg.GetProjectId(), r.Msg.GetName())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&statev1.GetTemplateResponse{Template: template(t)}), nil
}

func (s *templateService) ListTemplates(
	ctx context.Context,
	r *connect.Request[statev1.ListTemplatesRequest],
) (*connect.Response[statev1.ListTemplatesResponse], error) {
	if err := s.allowRead(ctx, r.Msg.GetProjectId()); err != nil {
		return nil, err
	}
	found, err := s.directory.Templates(ctx, r.Msg.GetProjectId())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&statev1.ListTemplatesResponse{Templates: convertAll(found, template)}), nil
}

// allowRead authorizes the reader of templates. Everybody may read those of project 0.
func (s *templateService) allowRead(ctx context.Context, projectID int64) error {
	if projectID == 0 {
		return nil
	}
	return s.allow(ctx, projectScope(projectID), false, authz.Read, fmt.Sprintf("project %d", projectID))
}

func template(t workspace.Template) *statev1.Template {
	return &statev1.Template{Name: t.Name, ProjectId: t.ProjectID, Spec: spec(t.Spec), UpdatedAt: timestamp(t.UpdatedAt)}
}

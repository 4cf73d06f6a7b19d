package api

import (
	"context"
	"fmt"
	"time"

	"connectrpc.com/connect"

	"lockstep.internal/libs/apirequest"
	"lockstep.internal/libs/directory"
	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	"lockstep.internal/schemas/gen/lockstep/runners/v1/runnersv1connect"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/postgres"
	"lockstep.internal/services/runners/schedule"
)

// source is how the API creates pipelines, as $CI_PIPELINE_SOURCE.
const source = "api"

type pipelineService struct {
	runnersv1connect.UnimplementedPipelineServiceHandler

	views           postgres.Views
	allowed         permissions
	scheduler       Scheduler
	directory       Directory
	jobChanges      *postgres.JobChanges
	pipelineChanges *postgres.PipelineChanges
	streams         *streams
	now             func() time.Time
}

func pipelineName(id int64) string { return fmt.Sprintf("pipeline %d", id) }

func (s *pipelineService) CreatePipeline(
	ctx context.Context, r *connect.Request[runnersv1.CreatePipelineRequest],
) (*connect.Response[runnersv1.CreatePipelineResponse], error) {
	m := r.Msg
	if err := apirequest.RequireID("project_id", m.GetProjectId()); err != nil {
		return nil, err
	}
	resource := fmt.Sprintf("project %d", m.GetProjectId())
	if err := s.allowed.require(ctx, m.GetProjectId(), changer(m.GetProtected()), resource); err != nil {
		return nil, err
	}
	place, known := s.directory.Place(project(m.GetProjectId()))
	if !known {
		return nil, notFound(resource)
	}
	request := schedule.Request{
		ProjectID: m.GetProjectId(), OrganizationID: place.Organization, UserID: callerID(ctx), Source: source,
		Ref: m.GetRef(), Protected: m.GetProtected(), File: m.GetFile(), FileName: m.GetFileName(), ID: m.GetRequestId(),
	}
	for _, v := range m.GetVariables() {
		request.Variables = append(request.Variables, job.Variable{
			Key: v.GetKey(), Value: v.GetValue(), Masked: v.GetMasked(), File: v.GetFile(), Raw: v.GetRaw(),
		})
	}
	created, err := s.scheduler.Create(ctx, request)
	if err != nil {
		return nil, err
	}
	_, message, err := s.load(ctx, created.ID)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&runnersv1.CreatePipelineResponse{Pipeline: message}), nil
}

// find returns a pipeline if the caller has the role that least returns for it.
func (s *pipelineService) find(
	ctx context.Context, id int64, least func(*schedule.Pipeline) directory.Role,
) (*schedule.Pipeline, error) {
	if err := apirequest.RequireID("id", id); err != nil {
		return nil, err
	}
	found, err := s.views.Pipeline(ctx, id)
	if err != nil {
		return nil, err
	}
	if found == nil {
		return nil, notFound(pipelineName(id))
	}
	if err := s.allowed.require(ctx, found.ProjectID, least(found), pipelineName(id)); err != nil {
		return nil, err
	}
	return found, nil
}

// load returns a pipeline that the caller may read, with its jobs.
func (s *pipelineService) load(
	ctx context.Context, id int64,
) ([]schedule.Attempt, *runnersv1.Pipeline, error) {
	found, err := s.find(ctx, id, func(*schedule.Pipeline) directory.Role { return directory.RoleReader })
	if err != nil {
		return nil, nil, err
	}
	attempts, err := s.views.Attempts(ctx, id)
	if err != nil {
		return nil, nil, err
	}
	ids := make([]int64, len(attempts))
	for i := range attempts {
		ids[i] = attempts[i].Job.ID
	}
	details, err := s.views.Details(ctx, ids, s.now())
	if err != nil {
		return nil, nil, err
	}
	return attempts, pipelineWithJobs(found, attempts, details), nil
}

func (s *pipelineService) GetPipeline(
	ctx context.Context, r *connect.Request[runnersv1.GetPipelineRequest],
) (*connect.Response[runnersv1.GetPipelineResponse], error) {
	_, message, err := s.load(ctx, r.Msg.GetId())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&runnersv1.GetPipelineResponse{Pipeline: message}), nil
}

func (s *pipelineService) ListPipelines(
	ctx context.Context, r *connect.Request[runnersv1.ListPipelinesRequest],
) (*connect.Response[runnersv1.ListPipelinesResponse], error) {
	id := r.Msg.GetProjectId()
	if err := apirequest.RequireID("project_id", id); err != nil {
		return nil, err
	}
	if err := s.allowed.require(ctx, id, directory.RoleReader, fmt.Sprintf("project %d", id)); err != nil {
		return nil, err
	}
	states, err := statesOf(pipelineStates, r.Msg.GetStates())
	if err != nil {
		return nil, err
	}
	page, err := pageOf(r.Msg.GetPageSize(), r.Msg.GetPageToken(), defaultPipelines)
	if err != nil {
		return nil, err
	}
	found, err := s.views.Pipelines(ctx, id, states, page)
	if err != nil {
		return nil, err
	}
	out := &runnersv1.ListPipelinesResponse{
		NextPageToken: apirequest.NextPage(found, page.Size, func(p schedule.Pipeline) int64 { return p.ID }),
	}
	for i := range found {
		out.Pipelines = append(out.Pipelines, pipelineMessage(&found[i]))
	}
	return connect.NewResponse(out), nil
}

func (s *pipelineService) CancelPipeline(
	ctx context.Context, r *connect.Request[runnersv1.CancelPipelineRequest],
) (*connect.Response[runnersv1.CancelPipelineResponse], error) {
	id := r.Msg.GetId()
	message, err := s.change(ctx, id, false, func() error { return s.scheduler.CancelPipeline(ctx, id, callerID(ctx)) })
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&runnersv1.CancelPipelineResponse{Pipeline: message}), nil
}

func (s *pipelineService) RetryPipeline(
	ctx context.Context, r *connect.Request[runnersv1.RetryPipelineRequest],
) (*connect.Response[runnersv1.RetryPipelineResponse], error) {
	id := r.Msg.GetId()
	message, err := s.change(ctx, id, true, func() error { return s.scheduler.RetryPipeline(ctx, id) })
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&runnersv1.RetryPipelineResponse{Pipeline: message}), nil
}

// change changes a pipeline and returns it. runs: jobs of it run afterwards, which needs the role of its creator.
func (s *pipelineService) change(
	ctx context.Context, id int64, runs bool, change func() error,
) (*runnersv1.Pipeline, error) {
	least := func(p *schedule.Pipeline) directory.Role { return changer(runs && p.Protected) }
	if _, err := s.find(ctx, id, least); err != nil {
		return nil, err
	}
	if err := change(); err != nil {
		return nil, err
	}
	_, message, err := s.load(ctx, id)
	return message, err
}

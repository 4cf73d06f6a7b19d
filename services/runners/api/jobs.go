package api

import (
	"context"
	"fmt"
	"time"

	"connectrpc.com/connect"

	"lockstep.internal/libs/apirequest"
	"lockstep.internal/libs/directory"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	"lockstep.internal/schemas/gen/lockstep/runners/v1/runnersv1connect"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/postgres"
)

type jobService struct {
	runnersv1connect.UnimplementedJobServiceHandler

	views     postgres.Views
	allowed   permissions
	scheduler Scheduler
	registry  Registry
	contacts  Contacts
	directory Directory
	now       func() time.Time
}

func jobName(id int64) string { return fmt.Sprintf("job %d", id) }

// find returns a job if the caller has the role that least returns for it.
func (s *jobService) find(ctx context.Context, id int64, least func(*job.Job) directory.Role) (*job.Job, error) {
	if err := apirequest.RequireID("id", id); err != nil {
		return nil, err
	}
	found, err := s.views.Job(ctx, id)
	if err != nil {
		return nil, err
	}
	if found == nil {
		return nil, notFound(jobName(id))
	}
	if err := s.allowed.require(ctx, found.ProjectID, least(found), jobName(id)); err != nil {
		return nil, err
	}
	return found, nil
}

// read returns a job that the caller may read.
func (s *jobService) read(ctx context.Context, id int64) (*job.Job, error) {
	return s.find(ctx, id, func(*job.Job) directory.Role { return directory.RoleReader })
}

func (s *jobService) message(ctx context.Context, j *job.Job) (*runnersv1.Job, error) {
	details, err := s.views.Details(ctx, []int64{j.ID}, s.now())
	if err != nil {
		return nil, err
	}
	return jobMessage(j, details[j.ID]), nil
}

// get returns the message of a job that the caller may read.
func (s *jobService) get(ctx context.Context, id int64) (*runnersv1.Job, error) {
	found, err := s.read(ctx, id)
	if err != nil {
		return nil, err
	}
	return s.message(ctx, found)
}

func (s *jobService) GetJob(
	ctx context.Context, r *connect.Request[runnersv1.GetJobRequest],
) (*connect.Response[runnersv1.GetJobResponse], error) {
	message, err := s.get(ctx, r.Msg.GetId())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&runnersv1.GetJobResponse{Job: message}), nil
}

func (s *jobService) ListJobs(
	ctx context.Context, r *connect.Request[runnersv1.ListJobsRequest],
) (*connect.Response[runnersv1.ListJobsResponse], error) {
	filter, err := s.filter(ctx, r.Msg)
	if err != nil {
		return nil, err
	}
	page, err := pageOf(r.Msg.GetPageSize(), r.Msg.GetPageToken(), defaultJobs)
	if err != nil {
		return nil, err
	}
	found, err := s.views.Jobs(ctx, filter, page)
	if err != nil {
		return nil, err
	}
	ids := make([]int64, len(found))
	for i := range found {
		ids[i] = found[i].ID
	}
	details, err := s.views.Details(ctx, ids, s.now())
	if err != nil {
		return nil, err
	}
	out := &runnersv1.ListJobsResponse{
		NextPageToken: apirequest.NextPage(found, page.Size, func(j job.Job) int64 { return j.ID }),
	}
	for i := range found {
		out.Jobs = append(out.Jobs, jobMessage(&found[i], details[found[i].ID]))
	}
	return connect.NewResponse(out), nil
}

// filter returns the filter of a request, if the caller may read the project.
func (s *jobService) filter(ctx context.Context, m *runnersv1.ListJobsRequest) (postgres.JobFilter, error) {
	f := postgres.JobFilter{ProjectID: m.GetProjectId(), PipelineID: m.GetPipelineId(), Retried: m.GetRetried()}
	projectID, resource := f.ProjectID, fmt.Sprintf("project %d", f.ProjectID)
	switch {
	case f.ProjectID < 0 || f.PipelineID < 0 || (f.ProjectID == 0) == (f.PipelineID == 0):
		return f, fault.New(errcode.InvalidArgument, "project_id or pipeline_id: give one of them, positive").
			With("field", "project_id")
	case f.PipelineID != 0:
		resource = pipelineName(f.PipelineID)
		found, err := s.views.Pipeline(ctx, f.PipelineID)
		if err != nil {
			return f, err
		}
		if found == nil {
			return f, notFound(resource)
		}
		projectID = found.ProjectID
	}
	if err := s.allowed.require(ctx, projectID, directory.RoleReader, resource); err != nil {
		return f, err
	}
	var err error
	f.States, err = statesOf(jobStates, m.GetStates())
	return f, err
}

func (s *jobService) CancelJob(
	ctx context.Context, r *connect.Request[runnersv1.CancelJobRequest],
) (*connect.Response[runnersv1.CancelJobResponse], error) {
	id := r.Msg.GetId()
	if _, err := s.find(ctx, id, func(*job.Job) directory.Role { return directory.RoleDeveloper }); err != nil {
		return nil, err
	}
	if err := s.scheduler.CancelJob(ctx, id, callerID(ctx)); err != nil {
		return nil, err
	}
	message, err := s.get(ctx, id)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&runnersv1.CancelJobResponse{Job: message}), nil
}

func (s *jobService) RetryJob(
	ctx context.Context, r *connect.Request[runnersv1.RetryJobRequest],
) (*connect.Response[runnersv1.RetryJobResponse], error) {
	id := r.Msg.GetId()
	if _, err := s.find(ctx, id, func(j *job.Job) directory.Role { return changer(j.Protected) }); err != nil {
		return nil, err
	}
	created, err := s.scheduler.RetryJob(ctx, id)
	if err != nil {
		return nil, err
	}
	message, err := s.get(ctx, created)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&runnersv1.RetryJobResponse{Job: message}), nil
}

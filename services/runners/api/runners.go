package api

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"connectrpc.com/connect"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/apirequest"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	"lockstep.internal/schemas/gen/lockstep/runners/v1/runnersv1connect"
	"lockstep.internal/services/runners/registration"
	"lockstep.internal/services/runners/runner"
)

// Runners manages the runners of the cell and authorizes its callers. [registration.Service] implements it.
type Runners interface {
	Create(ctx context.Context, caller access.Caller, request registration.NewRunner) (registration.Issued, error)
	Get(ctx context.Context, caller access.Caller, id int64) (runner.Runner, error)
	List(caller access.Caller, filter registration.Filter) (page []runner.Runner, more bool)
	Managers(ctx context.Context, caller access.Caller, id int64) ([]runner.Manager, error)
	LastContacts(ctx context.Context, ids ...int64) (map[int64]time.Time, error)
	Update(
		ctx context.Context, caller access.Caller, id, revision int64, edit func(*runner.Settings),
	) (runner.Runner, error)
	Link(ctx context.Context, caller access.Caller, id, projectID int64) (runner.Runner, error)
	Unlink(ctx context.Context, caller access.Caller, id, projectID int64) (runner.Runner, error)
	Delete(ctx context.Context, caller access.Caller, id int64) error
	ResetToken(ctx context.Context, caller access.Caller, id int64) (registration.Issued, error)
}

// defaultRunners is the number of runners on a page.
const defaultRunners = 100

type runnerService struct {
	runnersv1connect.UnimplementedRunnerServiceHandler

	runners Runners
	now     func() time.Time
}

func caller(ctx context.Context) access.Caller {
	c, _ := access.CallerFrom(ctx) // package access has authenticated it
	return c
}

// CreateRunner creates a runner and links it to further projects. If that is not possible, it deletes the runner.
func (s *runnerService) CreateRunner(
	ctx context.Context, r *connect.Request[runnersv1.CreateRunnerRequest],
) (*connect.Response[runnersv1.CreateRunnerResponse], error) {
	kind, found := typeOf(r.Msg.GetType())
	if !found {
		return nil, fault.New(errcode.InvalidArgument, "type: give the type of the runner").With("field", "type")
	}
	edit, err := editOf(r.Msg.GetSettings(), slices.Sorted(maps.Keys(setters)))
	if err != nil {
		return nil, err
	}
	request := registration.NewRunner{Type: kind, GroupID: r.Msg.GetGroupId()}
	edit(&request.Settings)
	projects := r.Msg.GetSettings().GetProjectIds()
	if len(projects) > 0 {
		request.ProjectID, projects = projects[0], projects[1:]
	}
	// A locked runner cannot be linked. It takes no jobs before it is complete.
	complete := request.Settings
	if len(projects) > 0 {
		request.Settings.Locked, request.Settings.Paused = false, true
	}
	issued, err := s.runners.Create(ctx, caller(ctx), request)
	if err != nil {
		return nil, err
	}
	created := issued.Runner
	if len(projects) > 0 {
		if created, err = s.complete(ctx, created.ID, projects, complete); err != nil {
			return nil, errors.Join(err, s.runners.Delete(context.WithoutCancel(ctx), caller(ctx), issued.Runner.ID))
		}
	}
	message, err := s.message(ctx, created)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&runnersv1.CreateRunnerResponse{Runner: message, Token: issued.Token}), nil
}

// complete links a new runner to further projects and gives it all its settings.
func (s *runnerService) complete(
	ctx context.Context, id int64, projects []int64, complete runner.Settings,
) (runner.Runner, error) {
	for _, projectID := range projects {
		if _, err := s.runners.Link(ctx, caller(ctx), id, projectID); err != nil {
			return runner.Runner{}, err
		}
	}
	return s.runners.Update(ctx, caller(ctx), id, 0, func(settings *runner.Settings) { *settings = complete })
}

// GetRunner returns a runner, with its managers if the caller manages it: they have addresses.
func (s *runnerService) GetRunner(
	ctx context.Context, r *connect.Request[runnersv1.GetRunnerRequest],
) (*connect.Response[runnersv1.GetRunnerResponse], error) {
	if err := apirequest.RequireID("id", r.Msg.GetId()); err != nil {
		return nil, err
	}
	found, err := s.runners.Get(ctx, caller(ctx), r.Msg.GetId())
	if err != nil {
		return nil, err
	}
	message, err := s.message(ctx, found)
	if err != nil {
		return nil, err
	}
	managers, err := s.runners.Managers(ctx, caller(ctx), found.ID)
	if err != nil && !fault.Is(err, errcode.PermissionDenied) {
		return nil, err
	}
	for _, m := range managers {
		message.Managers = append(message.Managers, s.managerMessage(m))
	}
	return connect.NewResponse(&runnersv1.GetRunnerResponse{Runner: message}), nil
}

func (s *runnerService) ListRunners(
	ctx context.Context, r *connect.Request[runnersv1.ListRunnersRequest],
) (*connect.Response[runnersv1.ListRunnersResponse], error) {
	m := r.Msg
	size, err := apirequest.PageSize(m.GetPageSize(), defaultRunners)
	if err != nil {
		return nil, err
	}
	filter := registration.Filter{ProjectID: m.GetProjectId(), Tags: m.GetTags(), Limit: apirequest.MaxPageSize}
	if filter.AfterID, err = apirequest.PageToken(m.GetPageToken()); err != nil {
		return nil, err
	}
	if filter.ProjectID < 0 {
		return nil, fault.New(errcode.InvalidArgument, "project_id: not an id").With("field", "project_id")
	}
	if m.GetType() != runnersv1.RunnerType_RUNNER_TYPE_UNSPECIFIED {
		var known bool
		if filter.Type, known = typeOf(m.GetType()); !known {
			return nil, fault.New(errcode.InvalidArgument, "type: not a type of runners").With("field", "type")
		}
	}
	page, err := s.list(ctx, filter, m.GetStatus(), size)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&runnersv1.ListRunnersResponse{
		Runners: page, NextPageToken: apirequest.NextPage(page, size, (*runnersv1.Runner).GetId),
	}), nil
}

// list returns up to size runners with a status; all for none.
func (s *runnerService) list(
	ctx context.Context, filter registration.Filter, status runnersv1.RunnerStatus, size int,
) ([]*runnersv1.Runner, error) {
	var page []*runnersv1.Runner
	for more := true; more; {
		var found []runner.Runner
		if found, more = s.runners.List(caller(ctx), filter); len(found) == 0 {
			break
		}
		filter.AfterID = found[len(found)-1].ID
		messages, err := s.messages(ctx, found)
		if err != nil {
			return nil, err
		}
		for _, m := range messages {
			if status != runnersv1.RunnerStatus_RUNNER_STATUS_UNSPECIFIED && m.GetStatus() != status {
				continue
			}
			if page = append(page, m); len(page) == size {
				return page, nil
			}
		}
	}
	return page, nil
}

// UpdateRunner changes settings, and then the links to projects. After an error some changes may be stored: a repeated
// request completes them.
func (s *runnerService) UpdateRunner(
	ctx context.Context, r *connect.Request[runnersv1.UpdateRunnerRequest],
) (*connect.Response[runnersv1.UpdateRunnerResponse], error) {
	id := r.Msg.GetId()
	if err := apirequest.RequireID("id", id); err != nil {
		return nil, err
	}
	paths := r.Msg.GetUpdateMask().GetPaths()
	if len(paths) == 0 {
		return nil, fault.New(errcode.InvalidArgument, "update_mask is missing: give one or more of %s", settingNames()).
			With("field", "update_mask")
	}
	edited := slices.DeleteFunc(slices.Clone(paths), func(path string) bool { return path == pathProjects })
	edit, err := editOf(r.Msg.GetSettings(), edited)
	if err != nil {
		return nil, err
	}
	var updated runner.Runner
	changes := []func() error{func() error {
		updated, err = s.runners.Update(ctx, caller(ctx), id, 0, edit)
		return err
	}}
	if slices.Contains(paths, pathProjects) {
		changes = append(changes, func() error {
			updated, err = s.link(ctx, id, r.Msg.GetSettings().GetProjectIds())
			return err
		})
	}
	if r.Msg.GetSettings().GetLocked() {
		slices.Reverse(changes) // a locked runner cannot be linked
	}
	for _, change := range changes {
		if err := change(); err != nil {
			return nil, err
		}
	}
	message, err := s.message(ctx, updated)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&runnersv1.UpdateRunnerResponse{Runner: message}), nil
}

// link links a runner to these projects, and to no others.
func (s *runnerService) link(ctx context.Context, id int64, projects []int64) (runner.Runner, error) {
	r, err := s.runners.Get(ctx, caller(ctx), id)
	if err != nil {
		return r, err
	}
	before := r.ProjectIDs
	for _, projectID := range projects {
		if !slices.Contains(r.ProjectIDs, projectID) {
			if r, err = s.runners.Link(ctx, caller(ctx), id, projectID); err != nil {
				return r, err
			}
		}
	}
	for _, projectID := range before {
		if !slices.Contains(projects, projectID) {
			if r, err = s.runners.Unlink(ctx, caller(ctx), id, projectID); err != nil {
				return r, err
			}
		}
	}
	return r, nil
}

func (s *runnerService) DeleteRunner(
	ctx context.Context, r *connect.Request[runnersv1.DeleteRunnerRequest],
) (*connect.Response[runnersv1.DeleteRunnerResponse], error) {
	if err := apirequest.RequireID("id", r.Msg.GetId()); err != nil {
		return nil, err
	}
	if err := s.runners.Delete(ctx, caller(ctx), r.Msg.GetId()); err != nil {
		return nil, err
	}
	return connect.NewResponse(&runnersv1.DeleteRunnerResponse{}), nil
}

func (s *runnerService) ResetRunnerToken(
	ctx context.Context, r *connect.Request[runnersv1.ResetRunnerTokenRequest],
) (*connect.Response[runnersv1.ResetRunnerTokenResponse], error) {
	if err := apirequest.RequireID("id", r.Msg.GetId()); err != nil {
		return nil, err
	}
	issued, err := s.runners.ResetToken(ctx, caller(ctx), r.Msg.GetId())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&runnersv1.ResetRunnerTokenResponse{
		Token: issued.Token, ExpiresAt: timestamp(issued.Runner.TokenExpiresAt),
	}), nil
}

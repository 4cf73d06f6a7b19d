package api

import (
	"context"
	"maps"
	"slices"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	"lockstep.internal/schemas/gen/lockstep/runners/v1/runnersv1connect"
	"lockstep.internal/services/runners/runner"
)

// RunnerView is a runner with its managers.
type RunnerView struct {
	Runner   runner.Runner
	Managers []runner.Manager
}

// Runners changes and lists the runners of the cell. It authorizes the caller: a runner that the caller may not see is
// the fault not_found.
type Runners interface {
	// Create creates a runner of the type, group or projects and settings of r, and returns it with its token.
	Create(ctx context.Context, caller access.Caller, r runner.Runner) (created RunnerView, token string, err error)
	Get(ctx context.Context, caller access.Caller, id int64) (RunnerView, error)
	// List returns the runners that the caller may see, by id. projectID: those that take jobs of a project; 0 for all.
	List(ctx context.Context, caller access.Caller, projectID int64) ([]RunnerView, error)
	// Update stores what change does to the settings and projects of a runner. change may be called more than once.
	Update(ctx context.Context, caller access.Caller, id int64, change func(r *runner.Runner)) (RunnerView, error)
	Delete(ctx context.Context, caller access.Caller, id int64) error
	// ResetToken returns a new token and when it expires; the zero time for never.
	ResetToken(ctx context.Context, caller access.Caller, id int64) (token string, expiresAt time.Time, err error)
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

func (s *runnerService) CreateRunner(
	ctx context.Context, r *connect.Request[runnersv1.CreateRunnerRequest],
) (*connect.Response[runnersv1.CreateRunnerResponse], error) {
	kind, found := typeOf(r.Msg.GetType())
	if !found {
		return nil, fault.New(errcode.InvalidArgument, "type: give the type of the runner").With("field", "type")
	}
	set, err := changeOf(r.Msg.GetSettings(), slices.Sorted(maps.Keys(setters)))
	if err != nil {
		return nil, err
	}
	asked := runner.Runner{Type: kind, GroupID: r.Msg.GetGroupId()}
	set(&asked)
	created, token, err := s.runners.Create(ctx, caller(ctx), asked)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&runnersv1.CreateRunnerResponse{
		Runner: s.message(created, true), Token: token,
	}), nil
}

func (s *runnerService) GetRunner(
	ctx context.Context, r *connect.Request[runnersv1.GetRunnerRequest],
) (*connect.Response[runnersv1.GetRunnerResponse], error) {
	if err := requireID("id", r.Msg.GetId()); err != nil {
		return nil, err
	}
	found, err := s.runners.Get(ctx, caller(ctx), r.Msg.GetId())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&runnersv1.GetRunnerResponse{Runner: s.message(found, true)}), nil
}

func (s *runnerService) ListRunners(
	ctx context.Context, r *connect.Request[runnersv1.ListRunnersRequest],
) (*connect.Response[runnersv1.ListRunnersResponse], error) {
	size, err := pageSize(r.Msg.GetPageSize(), defaultRunners)
	if err != nil {
		return nil, err
	}
	after, err := pageToken(r.Msg.GetPageToken())
	if err != nil {
		return nil, err
	}
	if r.Msg.GetProjectId() < 0 {
		return nil, fault.New(errcode.InvalidArgument, "project_id: not an id").With("field", "project_id")
	}
	all, err := s.runners.List(ctx, caller(ctx), r.Msg.GetProjectId())
	if err != nil {
		return nil, err
	}
	var page []RunnerView
	for _, v := range all {
		if v.Runner.ID > after && s.selects(r.Msg, v) && len(page) < size {
			page = append(page, v)
		}
	}
	out := &runnersv1.ListRunnersResponse{
		NextPageToken: nextPage(page, size, func(v RunnerView) int64 { return v.Runner.ID }),
	}
	for _, v := range page {
		out.Runners = append(out.Runners, s.message(v, false))
	}
	return connect.NewResponse(out), nil
}

// selects reports whether a request selects a runner.
func (s *runnerService) selects(m *runnersv1.ListRunnersRequest, v RunnerView) bool {
	if kind, found := typeOf(m.GetType()); found && v.Runner.Type != kind {
		return false
	}
	status := m.GetStatus()
	if status != runnersv1.RunnerStatus_RUNNER_STATUS_UNSPECIFIED && statuses[v.Runner.Status(v.Managers, s.now())] != status {
		return false
	}
	return !slices.ContainsFunc(m.GetTags(), func(tag string) bool { return !slices.Contains(v.Runner.Tags, tag) })
}

func (s *runnerService) UpdateRunner(
	ctx context.Context, r *connect.Request[runnersv1.UpdateRunnerRequest],
) (*connect.Response[runnersv1.UpdateRunnerResponse], error) {
	if err := requireID("id", r.Msg.GetId()); err != nil {
		return nil, err
	}
	paths := r.Msg.GetUpdateMask().GetPaths()
	if len(paths) == 0 {
		return nil, fault.New(errcode.InvalidArgument, "update_mask is missing: give one or more of %s", settingNames()).
			With("field", "update_mask")
	}
	change, err := changeOf(r.Msg.GetSettings(), paths)
	if err != nil {
		return nil, err
	}
	updated, err := s.runners.Update(ctx, caller(ctx), r.Msg.GetId(), change)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&runnersv1.UpdateRunnerResponse{Runner: s.message(updated, true)}), nil
}

func (s *runnerService) DeleteRunner(
	ctx context.Context, r *connect.Request[runnersv1.DeleteRunnerRequest],
) (*connect.Response[runnersv1.DeleteRunnerResponse], error) {
	if err := requireID("id", r.Msg.GetId()); err != nil {
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
	if err := requireID("id", r.Msg.GetId()); err != nil {
		return nil, err
	}
	token, expiresAt, err := s.runners.ResetToken(ctx, caller(ctx), r.Msg.GetId())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&runnersv1.ResetRunnerTokenResponse{Token: token, ExpiresAt: timestamp(expiresAt)}), nil
}

func (s *runnerService) message(v RunnerView, withManagers bool) *runnersv1.Runner {
	r, now := &v.Runner, s.now()
	out := &runnersv1.Runner{
		Id: r.ID, Type: types[r.Type], OrganizationId: r.OrganizationID, GroupId: r.GroupID,
		Status: statuses[r.Status(v.Managers, now)], ContactedAt: timestamp(runner.LastContact(v.Managers)),
		CreatedBy: r.CreatedBy, CreatedAt: timestamp(r.CreatedAt), TokenExpiresAt: timestamp(r.TokenExpiresAt),
		Settings: &runnersv1.RunnerSettings{
			Description: r.Description, MaintenanceNote: r.MaintenanceNote, Tags: r.Tags, RunUntagged: r.RunUntagged,
			Locked: r.Locked, Protected: r.Protected, Paused: r.Paused, ProjectIds: r.ProjectIDs, UserIds: r.UserIDs,
			GroupIds: r.GroupIDs,
		},
	}
	if r.MaximumTimeout > 0 {
		out.Settings.MaximumTimeout = durationpb.New(r.MaximumTimeout)
	}
	if !withManagers {
		return out
	}
	for _, m := range v.Managers {
		out.Managers = append(out.Managers, &runnersv1.Manager{
			Id: m.ID, SystemId: m.SystemID, Status: statuses[m.Status(now)], ContactedAt: timestamp(m.ContactedAt),
			Version: m.Info.Version, Platform: m.Info.Platform, Architecture: m.Info.Architecture,
			Executor: m.Info.Executor, Address: m.Address,
		})
	}
	return out
}

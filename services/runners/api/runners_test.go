package api_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	"lockstep.internal/services/runners/api"
	"lockstep.internal/services/runners/runner"
)

// runners are runners in memory, which the administrator alone may use. Package registration has the real ones.
type runners struct {
	mu    sync.Mutex
	views map[int64]api.RunnerView
	now   time.Time
}

func newRunners() *runners {
	return &runners{views: map[int64]api.RunnerView{}, now: time.Now().UTC().Truncate(time.Millisecond)}
}

func (r *runners) Create(
	_ context.Context, caller access.Caller, asked runner.Runner,
) (api.RunnerView, string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !caller.Admin {
		return api.RunnerView{}, "", fault.New(errcode.PermissionDenied, "not an administrator")
	}
	asked.ID, asked.CreatedBy, asked.CreatedAt = int64(len(r.views)+1), caller.UserID, r.now
	r.views[asked.ID] = api.RunnerView{Runner: asked}
	return r.views[asked.ID], "glrt-secret", nil
}

func (r *runners) find(caller access.Caller, id int64) (api.RunnerView, error) {
	v, found := r.views[id]
	if !found || !caller.Admin {
		return v, fault.New(errcode.NotFound, "runner %d does not exist", id)
	}
	return v, nil
}

func (r *runners) Get(_ context.Context, caller access.Caller, id int64) (api.RunnerView, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.find(caller, id)
}

func (r *runners) List(_ context.Context, caller access.Caller, _ int64) ([]api.RunnerView, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []api.RunnerView
	for id := range int64(len(r.views)) {
		if v, err := r.find(caller, id+1); err == nil {
			all = append(all, v)
		}
	}
	return all, nil
}

func (r *runners) Update(
	_ context.Context, caller access.Caller, id int64, change func(*runner.Runner),
) (api.RunnerView, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v, err := r.find(caller, id)
	if err == nil {
		change(&v.Runner)
		r.views[id] = v
	}
	return v, err
}

func (r *runners) Delete(_ context.Context, caller access.Caller, id int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, err := r.find(caller, id)
	if err == nil {
		delete(r.views, id)
	}
	return err
}

func (r *runners) ResetToken(_ context.Context, caller access.Caller, id int64) (string, time.Time, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, err := r.find(caller, id)
	return "glrt-new", r.now.Add(time.Hour), err
}

func (r *runners) contacted(id int64, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := r.views[id]
	v.Managers = append(v.Managers, runner.Manager{
		ID: 77, RunnerID: id, SystemID: "s_1", Info: runner.Info{Version: "18.0.0"}, CreatedAt: at, ContactedAt: at,
	})
	r.views[id] = v
}

func TestRunnerIsManaged(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	client := f.as(admin)
	settings := &runnersv1.RunnerSettings{
		Description: "a runner", MaintenanceNote: "note", Tags: []string{"gpu", "linux"}, RunUntagged: true, Locked: true,
		Protected: true, Paused: true, MaximumTimeout: durationpb.New(time.Hour), ProjectIds: []int64{projectID},
		UserIds: []int64{8}, GroupIds: []int64{9},
	}
	made, err := client.CreateRunner(t.Context(), connect.NewRequest(&runnersv1.CreateRunnerRequest{
		Type: runnersv1.RunnerType_RUNNER_TYPE_PROJECT, Settings: settings,
	}))
	require.NoError(t, err)
	require.Equal(t, "glrt-secret", made.Msg.GetToken())
	require.Equal(t, settings.String(), made.Msg.GetRunner().GetSettings().String(), "every setting is kept")
	require.Equal(t, runnersv1.RunnerStatus_RUNNER_STATUS_NEVER_CONTACTED, made.Msg.GetRunner().GetStatus())
	id := made.Msg.GetRunner().GetId()

	updated, err := client.UpdateRunner(t.Context(), connect.NewRequest(&runnersv1.UpdateRunnerRequest{
		Id: id, Settings: &runnersv1.RunnerSettings{Description: "changed", Tags: []string{"ignored"}},
		UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"paused", "description", "maximum_timeout"}},
	}))
	require.NoError(t, err)
	settings.Paused, settings.Description, settings.MaximumTimeout = false, "changed", nil
	require.Equal(t, settings.String(), updated.Msg.GetRunner().GetSettings().String(), "the others stay")

	f.runners.contacted(id, time.Now())
	got, err := client.GetRunner(t.Context(), connect.NewRequest(&runnersv1.GetRunnerRequest{Id: id}))
	require.NoError(t, err)
	require.Equal(t, runnersv1.RunnerStatus_RUNNER_STATUS_ONLINE, got.Msg.GetRunner().GetStatus())
	require.Equal(t, "18.0.0", got.Msg.GetRunner().GetManagers()[0].GetVersion())

	reset, err := client.ResetRunnerToken(t.Context(), connect.NewRequest(&runnersv1.ResetRunnerTokenRequest{Id: id}))
	require.NoError(t, err)
	require.Equal(t, "glrt-new", reset.Msg.GetToken())
	_, err = client.DeleteRunner(t.Context(), connect.NewRequest(&runnersv1.DeleteRunnerRequest{Id: id}))
	require.NoError(t, err)
	_, err = client.GetRunner(t.Context(), connect.NewRequest(&runnersv1.GetRunnerRequest{Id: id}))
	requireCode(t, errcode.NotFound, err)
}

func TestInvalidRequestsAboutRunners(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	client := f.as(admin)
	_, err := client.CreateRunner(t.Context(), connect.NewRequest(&runnersv1.CreateRunnerRequest{}))
	requireCode(t, errcode.InvalidArgument, err)
	_, err = client.CreateRunner(t.Context(), connect.NewRequest(&runnersv1.CreateRunnerRequest{
		Type:     runnersv1.RunnerType_RUNNER_TYPE_INSTANCE,
		Settings: &runnersv1.RunnerSettings{MaximumTimeout: &durationpb.Duration{Seconds: 1, Nanos: -1}},
	}))
	requireCode(t, errcode.InvalidArgument, err)
	for _, mask := range [][]string{nil, {"token_hash"}} {
		_, err = client.UpdateRunner(t.Context(), connect.NewRequest(&runnersv1.UpdateRunnerRequest{
			Id: 1, UpdateMask: &fieldmaskpb.FieldMask{Paths: mask},
		}))
		requireCode(t, errcode.InvalidArgument, err)
		require.ErrorContains(t, err, "maximum_timeout, paused")
	}
}

func TestRunnersAreListedInPages(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	client := f.as(admin)
	for i := range 5 {
		tags := []string{"linux"}
		if i%2 == 0 {
			tags = append(tags, "gpu")
		}
		_, err := client.CreateRunner(t.Context(), connect.NewRequest(&runnersv1.CreateRunnerRequest{
			Type: runnersv1.RunnerType_RUNNER_TYPE_INSTANCE, Settings: &runnersv1.RunnerSettings{Tags: tags},
		}))
		require.NoError(t, err)
	}
	f.runners.contacted(5, time.Now())
	list := func(m *runnersv1.ListRunnersRequest) (ids []int64, next string) {
		t.Helper()
		got, err := client.ListRunners(t.Context(), connect.NewRequest(m))
		require.NoError(t, err)
		for _, r := range got.Msg.GetRunners() {
			ids = append(ids, r.GetId())
		}
		return ids, got.Msg.GetNextPageToken()
	}
	ids, next := list(&runnersv1.ListRunnersRequest{Tags: []string{"gpu"}, PageSize: 2})
	require.Equal(t, []int64{1, 3}, ids)
	ids, next = list(&runnersv1.ListRunnersRequest{Tags: []string{"gpu"}, PageSize: 2, PageToken: next})
	require.Equal(t, []int64{5}, ids)
	require.Empty(t, next)
	ids, _ = list(&runnersv1.ListRunnersRequest{Status: runnersv1.RunnerStatus_RUNNER_STATUS_ONLINE})
	require.Equal(t, []int64{5}, ids)
	ids, _ = list(&runnersv1.ListRunnersRequest{Type: runnersv1.RunnerType_RUNNER_TYPE_GROUP})
	require.Empty(t, ids)
	got, err := f.as(stranger).ListRunners(t.Context(), connect.NewRequest(&runnersv1.ListRunnersRequest{}))
	require.NoError(t, err)
	require.Empty(t, got.Msg.GetRunners())
}

package api_test

import (
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"lockstep.internal/schemas/gen/errcode"
	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	"lockstep.internal/services/runners/runner"
)

// settings returns settings of which none has its default.
func settings() *runnersv1.RunnerSettings {
	return &runnersv1.RunnerSettings{
		Description: "a runner", MaintenanceNote: "note", Tags: []string{"gpu", "linux"}, RunUntagged: true, Locked: true,
		Protected: true, Paused: true, MaximumTimeout: durationpb.New(time.Hour),
		ProjectIds: []int64{projectID, otherProject}, UserIds: []int64{8}, GroupIds: []int64{9},
	}
}

func TestRunnerIsManaged(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	client := f.as(admin)
	made, err := client.CreateRunner(t.Context(), connect.NewRequest(&runnersv1.CreateRunnerRequest{
		Type: runnersv1.RunnerType_RUNNER_TYPE_PROJECT, Settings: settings(),
	}))
	require.NoError(t, err)
	id, want := made.Msg.GetRunner().GetId(), settings()
	require.Equal(t, want.String(), made.Msg.GetRunner().GetSettings().String(), "every setting is kept")
	require.Equal(t, runnersv1.RunnerStatus_RUNNER_STATUS_NEVER_CONTACTED, made.Msg.GetRunner().GetStatus())
	require.EqualValues(t, 1, made.Msg.GetRunner().GetOrganizationId())
	_, err = f.registry.Authenticate(t.Context(), made.Msg.GetToken())
	require.NoError(t, err)

	update := func(s *runnersv1.RunnerSettings, paths ...string) {
		t.Helper()
		updated, err := client.UpdateRunner(t.Context(), connect.NewRequest(&runnersv1.UpdateRunnerRequest{
			Id: id, Settings: s, UpdateMask: &fieldmaskpb.FieldMask{Paths: paths},
		}))
		require.NoError(t, err)
		require.Equal(t, want.String(), updated.Msg.GetRunner().GetSettings().String(), "the others stay")
	}
	want.Paused, want.Description, want.MaximumTimeout = false, "changed", nil
	update(&runnersv1.RunnerSettings{Description: "changed", Tags: []string{"ignored"}},
		"paused", "description", "maximum_timeout")
	want.Locked, want.ProjectIds = false, []int64{projectID}
	update(&runnersv1.RunnerSettings{ProjectIds: []int64{projectID}}, "project_ids", "locked")
	want.Locked, want.ProjectIds = true, []int64{projectID, otherProject}
	update(&runnersv1.RunnerSettings{Locked: true, ProjectIds: want.GetProjectIds()}, "locked", "project_ids")

	_, err = f.registry.Manager(t.Context(), id, "s_1", runner.Info{Version: "18.0.0"}, "192.0.2.1")
	require.NoError(t, err)
	for user, managers := range map[int64]int{admin: 1, maintainer: 1, reader: 0} {
		got, err := f.as(user).GetRunner(t.Context(), connect.NewRequest(&runnersv1.GetRunnerRequest{Id: id}))
		require.NoError(t, err)
		require.Equal(t, runnersv1.RunnerStatus_RUNNER_STATUS_ONLINE, got.Msg.GetRunner().GetStatus())
		require.Len(t, got.Msg.GetRunner().GetManagers(), managers, "who manages the runner sees addresses")
	}
	_, err = f.as(stranger).GetRunner(t.Context(), connect.NewRequest(&runnersv1.GetRunnerRequest{Id: id}))
	requireCode(t, errcode.NotFound, err)

	reset, err := client.ResetRunnerToken(t.Context(), connect.NewRequest(&runnersv1.ResetRunnerTokenRequest{Id: id}))
	require.NoError(t, err)
	_, err = f.registry.Authenticate(t.Context(), made.Msg.GetToken())
	requireCode(t, errcode.PermissionDenied, err, "the old token is void")
	_, err = f.registry.Authenticate(t.Context(), reset.Msg.GetToken())
	require.NoError(t, err)
	_, err = f.as(developer).DeleteRunner(t.Context(), connect.NewRequest(&runnersv1.DeleteRunnerRequest{Id: id}))
	requireCode(t, errcode.PermissionDenied, err)
	_, err = client.DeleteRunner(t.Context(), connect.NewRequest(&runnersv1.DeleteRunnerRequest{Id: id}))
	require.NoError(t, err)
	_, err = client.GetRunner(t.Context(), connect.NewRequest(&runnersv1.GetRunnerRequest{Id: id}))
	requireCode(t, errcode.NotFound, err)
}

func TestRunnerThatCannotBeCompletedIsNotCreated(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, err := f.as(maintainer).CreateRunner(t.Context(), connect.NewRequest(&runnersv1.CreateRunnerRequest{
		Type: runnersv1.RunnerType_RUNNER_TYPE_PROJECT, Settings: settings(),
	}))
	requireCode(t, errcode.NotFound, err, "the maintainer has no role in the second project")
	require.Empty(t, f.registry.All())
}

func TestInvalidRequestsAboutRunners(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	client := f.as(admin)
	for name, m := range map[string]*runnersv1.CreateRunnerRequest{
		"no type": {},
		"a type":  {Type: 77},
		"duration": {Type: 1, Settings: &runnersv1.RunnerSettings{
			MaximumTimeout: &durationpb.Duration{Nanos: -1, Seconds: 1},
		}},
		"no tags":   {Type: 1, Settings: &runnersv1.RunnerSettings{}},
		"no owner":  {Type: 3, Settings: &runnersv1.RunnerSettings{RunUntagged: true}},
		"two types": {Type: 1, GroupId: 3, Settings: &runnersv1.RunnerSettings{RunUntagged: true}},
	} {
		_, err := client.CreateRunner(t.Context(), connect.NewRequest(m))
		requireCode(t, errcode.InvalidArgument, err, name)
	}
	for _, mask := range [][]string{nil, {"token_hash"}} {
		_, err := client.UpdateRunner(t.Context(), connect.NewRequest(&runnersv1.UpdateRunnerRequest{
			Id: 1, UpdateMask: &fieldmaskpb.FieldMask{Paths: mask},
		}))
		requireCode(t, errcode.InvalidArgument, err)
		require.ErrorContains(t, err, "user_ids, project_ids")
	}
	for name, m := range map[string]*runnersv1.ListRunnersRequest{
		"size": {PageSize: -1}, "token": {PageToken: "x"}, "project": {ProjectId: -1}, "type": {Type: 77},
	} {
		_, err := client.ListRunners(t.Context(), connect.NewRequest(m))
		requireCode(t, errcode.InvalidArgument, err, name)
	}
}

func TestRunnersAreListedInPages(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var ids []int64
	for i := range 5 {
		tags := []string{"linux"}
		if i%2 == 0 {
			tags = append(tags, "gpu")
		}
		ids = append(ids, f.runner(runner.InstanceType, 0, i >= 3, runner.Settings{Tags: tags}))
	}
	own := f.runner(runner.ProjectType, projectID, false, runner.Settings{RunUntagged: true})
	elsewhere := f.runner(runner.ProjectType, otherProject, false, runner.Settings{RunUntagged: true})
	list := func(user int64, m *runnersv1.ListRunnersRequest) (found []int64, next string) {
		t.Helper()
		got, err := f.as(user).ListRunners(t.Context(), connect.NewRequest(m))
		require.NoError(t, err)
		for _, r := range got.Msg.GetRunners() {
			found = append(found, r.GetId())
			require.Empty(t, r.GetManagers())
		}
		return found, got.Msg.GetNextPageToken()
	}
	found, next := list(admin, &runnersv1.ListRunnersRequest{Tags: []string{"gpu"}, PageSize: 2})
	require.Equal(t, []int64{ids[0], ids[2]}, found)
	found, next = list(admin, &runnersv1.ListRunnersRequest{Tags: []string{"gpu"}, PageSize: 2, PageToken: next})
	require.Equal(t, ids[4:], found)
	require.Empty(t, next)
	online := runnersv1.RunnerStatus_RUNNER_STATUS_ONLINE
	found, next = list(admin, &runnersv1.ListRunnersRequest{Status: online, PageSize: 1})
	require.Equal(t, ids[3:4], found)
	found, _ = list(admin, &runnersv1.ListRunnersRequest{Status: online, PageSize: 2, PageToken: next})
	require.Equal(t, ids[4:], found)
	project := runnersv1.RunnerType_RUNNER_TYPE_PROJECT
	found, _ = list(admin, &runnersv1.ListRunnersRequest{Type: project})
	require.Equal(t, []int64{own, elsewhere}, found)
	found, _ = list(reader, &runnersv1.ListRunnersRequest{Type: project})
	require.Equal(t, []int64{own}, found, "who reads the project sees its runners")
	found, _ = list(stranger, &runnersv1.ListRunnersRequest{Type: project})
	require.Empty(t, found)
	found, _ = list(admin, &runnersv1.ListRunnersRequest{ProjectId: otherProject})
	require.Equal(t, append(ids, elsewhere), found)
}

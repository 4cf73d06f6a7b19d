package cli

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
)

func TestRunnerCreatePrintsTheTokenAndHowToUseIt(t *testing.T) {
	t.Parallel()
	f := newFakeRunners(t)
	out, stderr := f.runs("runners", "create", "--project", "web", "--tags", "shell,arm64", "--run-untagged",
		"--description", "build-host", "--maximum-timeout", "2h", "--serve-user", "alice", "--serve-group", "platform")
	require.Equal(t, "glrt-secret\n", out, "standard output has the token only")
	server := f.flags[3][:len(f.flags[3])-1]
	require.Equal(t, `created runner 12: store the token now, it is not shown again

Connect a gitlab-runner with the token:
  gitlab-runner register --non-interactive --url `+server+` --token glrt-secret --executor shell
  gitlab-runner run
`, stderr)
	f.requireLast(&runnersv1.CreateRunnerRequest{
		Type: runnersv1.RunnerType_RUNNER_TYPE_PROJECT, Settings: &runnersv1.RunnerSettings{
			Tags: []string{"shell", "arm64"}, RunUntagged: true, Description: "build-host", ProjectIds: []int64{3},
			MaximumTimeout: durationpb.New(2 * time.Hour), UserIds: []int64{4}, GroupIds: []int64{2},
		},
	})
	f.runs("runners", "create", "--group", "platform")
	f.requireLast(&runnersv1.CreateRunnerRequest{
		Type: runnersv1.RunnerType_RUNNER_TYPE_GROUP, GroupId: 2, Settings: &runnersv1.RunnerSettings{},
	})
	out, _ = f.runs("runners", "create", "--type", "instance", "-o", "json")
	require.Contains(t, out, `"token": "glrt-secret"`)
}

func TestRunnersAreShown(t *testing.T) {
	t.Parallel()
	f := newFakeRunners(t)
	out, _ := f.runs("runners", "list", "--project", "web", "--type", "project", "--status", "never_contacted", "--tags",
		"shell")
	require.Regexp(t, `(?m)^12 +build-host +project +acme/platform/web +shell,arm64 and untagged jobs +never_contact`,
		out)
	f.requireLast(&runnersv1.ListRunnersRequest{
		ProjectId: 3, Type: runnersv1.RunnerType_RUNNER_TYPE_PROJECT,
		Status: runnersv1.RunnerStatus_RUNNER_STATUS_NEVER_CONTACTED, Tags: []string{"shell"}, PageSize: 500,
	})
	out, _ = f.runs("runners", "get", "build-host")
	require.Regexp(t, `(?m)^runner +12\s+description +build-host`, out)
	require.Regexp(t, `(?m)^s_1 +online +never +17.9.3 +linux/arm64 +shell`, out)
}

func TestRunnerSettingsAreChanged(t *testing.T) {
	t.Parallel()
	f := newFakeRunners(t)
	for _, tc := range []struct {
		args     []string
		settings *runnersv1.RunnerSettings
		paths    []string
	}{
		{[]string{"pause", "build-host"}, &runnersv1.RunnerSettings{Paused: true}, []string{"paused"}},
		{[]string{"resume", "12"}, &runnersv1.RunnerSettings{}, []string{"paused"}},
		{
			[]string{"update", "12", "--tags", "a,b", "--run-untagged=false", "--project", "web"},
			&runnersv1.RunnerSettings{Tags: []string{"a", "b"}, ProjectIds: []int64{3}},
			[]string{"project_ids", "run_untagged", "tags"},
		},
		{
			[]string{"update", "12", "--tags=", "--serve-user=", "--maximum-timeout=0s"},
			&runnersv1.RunnerSettings{},
			[]string{"maximum_timeout", "user_ids", "tags"},
		},
	} {
		f.runs(append([]string{"runners"}, tc.args...)...)
		update, ok := f.last.(*runnersv1.UpdateRunnerRequest)
		require.True(t, ok)
		require.True(t, proto.Equal(tc.settings, update.GetSettings()), "%v", update)
		require.ElementsMatch(t, tc.paths, update.GetUpdateMask().GetPaths())
		require.EqualValues(t, 12, update.GetId())
	}
}

func TestEachSettingOfRunnersHasAFlag(t *testing.T) {
	t.Parallel()
	fields := (&runnersv1.RunnerSettings{}).ProtoReflect().Descriptor().Fields()
	var paths, known []string
	for i := range fields.Len() {
		paths = append(paths, string(fields.Get(i).Name()))
	}
	for flag, path := range settingFields() {
		known = append(known, path)
		require.NotNil(t, (&app{}).runnerUpdate().Flags().Lookup(flag), flag)
	}
	require.ElementsMatch(t, paths, known)
	_, err := fieldmaskpb.New(&runnersv1.RunnerSettings{}, known...)
	require.NoError(t, err)
}

func TestRunnerDeleteAndResetToken(t *testing.T) {
	t.Parallel()
	f := newFakeRunners(t)
	_, stderr := f.runs("runners", "delete", "build-host", "--yes")
	require.Equal(t, "deleted runner 12\n", stderr)
	f.requireLast(&runnersv1.DeleteRunnerRequest{Id: 12})
	out, stderr := f.runs("runners", "reset-token", "12", "--yes")
	require.Equal(t, "glrt-other\n", out)
	require.Contains(t, stderr, "replaced the token of runner 12: store the token now")
	f.requireLast(&runnersv1.ResetRunnerTokenRequest{Id: 12})
}

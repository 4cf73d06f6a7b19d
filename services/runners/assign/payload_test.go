package assign_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/runners/assign"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/wire"
)

func TestPayloadHasEverythingThatARunnerNeeds(t *testing.T) {
	t.Parallel()
	claimed := job.Job{
		ID: 9001, PipelineID: 801, ProjectID: 4, Name: "test", Stage: "check", RunnerID: 31, RunTimeout: time.Minute,
		StartedAt: time.Date(2026, 3, 2, 10, 40, 0, 0, time.UTC),
	}
	material := assign.Material{
		Definition: &job.Definition{
			Script: []string{"make", "make test"}, AfterScript: []string{"rm -r tmp"},
			Variables: []job.Variable{
				{Key: "CI_PROJECT_NAME", Value: "web", Raw: true},
				{Key: "CI_PROJECT_PATH", Value: "acme/web"},
				{Key: "CI_COMMIT_REF_NAME", Value: "main"},
				{Key: "PASSWORD", Value: "hunter2hunter2", Masked: true},
			},
			Artifacts: &job.Artifacts{Untracked: true, When: job.Always, ExpireIn: "1 week"},
		},
		Dependencies: []assign.Dependency{{JobID: 8999, Name: "build", Filename: "artifacts.zip", Size: 22}},
	}
	got := assign.Answers{Registry: assign.Registry{Host: "registry.example:5000"}}.Payload(claimed, material, "glcbt-x")
	require.Equal(t, wire.JobInfo{
		ID: 9001, Name: "test", Stage: "check", ProjectID: 4, ProjectName: "web", ProjectFullPath: "acme/web",
	}, got.JobInfo)
	require.Equal(t, "main", got.GitInfo.Ref)
	require.Equal(t, []wire.Step{
		{Name: "script", Script: []string{"make", "make test"}, Timeout: 60, When: wire.OnSuccess},
		{Name: "after_script", Script: []string{"rm -r tmp"}, Timeout: 60, When: wire.Always, AllowFailure: true},
	}, got.Steps)
	require.Equal(t, []wire.Artifact{{
		Untracked: true, Paths: []string{}, When: wire.Always, Type: "archive", Format: "zip", ExpireIn: "1 week",
	}}, got.Artifacts)
	require.Equal(t, []wire.Dependency{{
		ID: 8999, Token: "glcbt-x", Name: "build", ArtifactsFile: wire.ArtifactsFile{Filename: "artifacts.zip", Size: 22},
	}}, got.Dependencies)
	require.Equal(t, []wire.Credentials{{
		Type: "registry", URL: "registry.example:5000", Username: "gitlab-ci-token", Password: "glcbt-x",
	}}, got.Credentials)
	variables := map[string]wire.Variable{}
	for _, v := range got.Variables {
		variables[v.Key] = v
	}
	require.Equal(t, "9001", variables["CI_JOB_ID"].Value)
	require.Equal(t, "2026-03-02T10:40:00Z", variables["CI_JOB_STARTED_AT"].Value)
	for _, secret := range []string{"CI_JOB_TOKEN", "CI_REGISTRY_PASSWORD", "PASSWORD"} {
		require.True(t, variables[secret].Masked, secret)
		require.False(t, variables[secret].Public, secret)
	}
	require.Contains(t, got.Features.FailureReasons, "script_failure")
}

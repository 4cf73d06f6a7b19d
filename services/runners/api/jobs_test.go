package api_test

import (
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/access"
	"lockstep.internal/schemas/gen/errcode"
	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/registration"
	"lockstep.internal/services/runners/runner"
)

func TestJobHasItsOutputArtifactsAndReason(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p := f.create("a: {script: x, allow_failure: true}\nb: {script: x}")
	id := p.GetJobs()[0].GetId()
	f.run(id, job.Result{Reason: job.ScriptFailure, ExitCode: 3})
	f.exec(`INSERT INTO traces (job_id, state) VALUES ($1, '{"Ended": true, "Verified": true, "Final": {"Size": 42}}')`, id)
	f.exec(`INSERT INTO artifacts (job_id, type, format, filename, size, sha256, object, expires_at)
		VALUES ($1, 'archive', 'zip', 'artifacts.zip', 7, '', 'x', now() + interval '1 day'),
			($1, 'metadata', 'gzip', 'metadata.gz', 3, '', 'y', now() - interval '1 day')`, id)
	got, err := f.as(reader).GetJob(t.Context(), connect.NewRequest(&runnersv1.GetJobRequest{Id: id}))
	require.NoError(t, err)
	j := got.Msg.GetJob()
	require.Equal(t, runnersv1.JobState_JOB_STATE_FAILED, j.GetState())
	require.Equal(t, "script_failure", j.GetReason())
	require.Equal(t, "The script ended with an error.", j.GetMessage())
	require.EqualValues(t, 3, j.GetExitCode())
	require.True(t, j.GetFailureAllowed())
	require.EqualValues(t, 31, j.GetRunnerId())
	require.EqualValues(t, 42, j.GetTraceSize())
	require.True(t, j.GetTraceVerified())
	require.Len(t, j.GetArtifacts(), 1, "what has expired is not there")
	require.Equal(t, "artifacts.zip", j.GetArtifacts()[0].GetFilename())
	require.True(t, j.GetArtifacts()[0].GetExpiresAt().AsTime().After(time.Now()))
}

func TestEveryReasonIsExplained(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id := f.create("a: {script: x}").GetJobs()[0].GetId()
	for _, reason := range append(job.ReasonsOfRunners(), job.MissingDependency, job.StuckOrTimeout, job.NoMatchingRunner,
		job.DeniedAdmission, job.AdmissionTimeout, job.DataIntegrity) {
		f.exec(`UPDATE jobs SET state = 'failed', reason = $2 WHERE id = $1`, id, string(reason))
		got, err := f.as(reader).GetJob(t.Context(), connect.NewRequest(&runnersv1.GetJobRequest{Id: id}))
		require.NoError(t, err)
		require.NotEmpty(t, got.Msg.GetJob().GetMessage(), reason)
	}
}

func TestJobsAreListed(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	first := f.create("a: {script: x}\nb: {script: x}")
	second := f.create("c: {script: x}")
	f.run(first.GetJobs()[0].GetId(), job.Result{Reason: job.ScriptFailure})
	retried, err := f.as(developer).RetryJob(t.Context(),
		connect.NewRequest(&runnersv1.RetryJobRequest{Id: first.GetJobs()[0].GetId()}))
	require.NoError(t, err)
	list := func(m *runnersv1.ListJobsRequest) (names []string, next string) {
		t.Helper()
		got, err := f.as(reader).ListJobs(t.Context(), connect.NewRequest(m))
		require.NoError(t, err)
		for _, j := range got.Msg.GetJobs() {
			names = append(names, j.GetName())
		}
		return names, got.Msg.GetNextPageToken()
	}
	names, _ := list(&runnersv1.ListJobsRequest{ProjectId: projectID})
	require.Equal(t, []string{"a", "c", "b"}, names, "newest first, without the one that was retried")
	names, _ = list(&runnersv1.ListJobsRequest{PipelineId: first.GetId(), Retried: true})
	require.Equal(t, []string{"a", "b", "a"}, names)
	names, _ = list(&runnersv1.ListJobsRequest{PipelineId: second.GetId()})
	require.Equal(t, []string{"c"}, names)
	names, _ = list(&runnersv1.ListJobsRequest{
		ProjectId: projectID, Retried: true, States: []runnersv1.JobState{runnersv1.JobState_JOB_STATE_FAILED},
	})
	require.Equal(t, []string{"a"}, names)
	names, next := list(&runnersv1.ListJobsRequest{ProjectId: projectID, PageSize: 2})
	require.Equal(t, []string{"a", "c"}, names)
	names, _ = list(&runnersv1.ListJobsRequest{ProjectId: projectID, PageSize: 2, PageToken: next})
	require.Equal(t, []string{"b"}, names)
	for name, m := range map[string]*runnersv1.ListJobsRequest{
		"neither": {},
		"both":    {ProjectId: projectID, PipelineId: first.GetId()},
		"state":   {ProjectId: projectID, States: []runnersv1.JobState{77}},
	} {
		_, err := f.as(reader).ListJobs(t.Context(), connect.NewRequest(m))
		requireCode(t, errcode.InvalidArgument, err, name)
	}
	_, err = f.as(reader).ListJobs(t.Context(), connect.NewRequest(&runnersv1.ListJobsRequest{ProjectId: otherProject}))
	requireCode(t, errcode.NotFound, err)
	canceled, err := f.as(developer).CancelJob(t.Context(),
		connect.NewRequest(&runnersv1.CancelJobRequest{Id: retried.Msg.GetJob().GetId()}))
	require.NoError(t, err)
	require.Equal(t, runnersv1.JobState_JOB_STATE_CANCELED, canceled.Msg.GetJob().GetState())
}

func (f *fixture) explain(user, id int64) *runnersv1.ExplainJobResponse {
	f.t.Helper()
	got, err := f.as(user).ExplainJob(f.t.Context(), connect.NewRequest(&runnersv1.ExplainJobRequest{Id: id}))
	require.NoError(f.t, err)
	return got.Msg
}

// runner creates a runner, which has asked for jobs if it is online.
func (f *fixture) runner(kind runner.Type, project int64, online bool, settings runner.Settings) int64 {
	f.t.Helper()
	issued, err := f.runners.Create(f.t.Context(), access.Caller{UserID: admin, Admin: true, Scope: access.ScopeAdmin},
		registration.NewRunner{Type: kind, ProjectID: project, Settings: settings})
	require.NoError(f.t, err)
	if online {
		_, err := f.registry.Manager(f.t.Context(), issued.Runner.ID, "s_1", runner.Info{Version: "18.0.0"}, "192.0.2.1")
		require.NoError(f.t, err)
	}
	return issued.Runner.ID
}

func TestPendingJobIsExplainedByRunners(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id := f.create("a: {script: x, tags: [gpu]}").GetJobs()[0].GetId()
	require.Contains(t, f.explain(reader, id).GetMessage(), "its project has none")
	gpu := []string{"gpu"}
	other := f.runner(runner.InstanceType, 0, true, runner.Settings{Tags: []string{"linux"}})
	require.Contains(t, f.explain(reader, id).GetMessage(), "none of 1 takes it")
	paused := f.runner(runner.InstanceType, 0, true, runner.Settings{Tags: gpu, Paused: true})
	protected := f.runner(runner.InstanceType, 0, true, runner.Settings{Tags: gpu, Protected: true})
	matching := f.runner(runner.ProjectType, projectID, true, runner.Settings{Tags: gpu})
	offline := f.runner(runner.InstanceType, 0, false, runner.Settings{Tags: gpu})
	elsewhere := f.runner(runner.ProjectType, otherProject, true, runner.Settings{Tags: gpu})
	explained := f.explain(reader, id)
	require.Contains(t, explained.GetMessage(), "one of 1 runners that take it")
	rules := func(explained *runnersv1.ExplainJobResponse) map[int64][]string {
		found := map[int64][]string{}
		for _, v := range explained.GetRunners() {
			found[v.GetRunnerId()] = []string{}
			for _, o := range v.GetObstacles() {
				found[v.GetRunnerId()] = append(found[v.GetRunnerId()], o.GetRule())
				require.NotEmpty(t, o.GetMessage())
			}
			require.Equal(t, len(v.GetObstacles()) == 0, v.GetMatches())
		}
		return found
	}
	want := map[int64][]string{
		other: {"tags"}, paused: {"paused"}, protected: {"protected"}, matching: {}, offline: {"offline"},
	}
	require.Equal(t, want, rules(explained), "who is no administrator sees the runners of the project")
	require.Equal(t, matching, explained.GetRunners()[0].GetRunnerId())
	require.Equal(t, "online", explained.GetRunners()[0].GetStatus())
	want[elsewhere] = []string{"scope"}
	require.Equal(t, want, rules(f.explain(admin, id)))
}

func TestOtherJobsAreExplainedByASentence(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p := f.create("stages: [a, b]\na1: {stage: a, script: x}\na2: {stage: a, script: x, retry: 1}\nb: {stage: b, script: x}")
	a1, a2, b := p.GetJobs()[0].GetId(), p.GetJobs()[1].GetId(), p.GetJobs()[2].GetId()
	require.Equal(t, `The job waits for "a1", "a2" to end.`, f.explain(reader, b).GetMessage())
	f.take(a1)
	require.Equal(t, "The job does not wait: runner 31 executes it.", f.explain(reader, a1).GetMessage())
	f.run(a2, job.Result{Reason: job.ScriptFailure})
	require.Equal(t, "The job does not wait: its state is failed.", f.explain(reader, a2).GetMessage())
	failed, err := f.as(reader).GetJob(t.Context(), connect.NewRequest(&runnersv1.GetJobRequest{Id: a2}))
	require.NoError(t, err)
	again := f.explain(reader, failed.Msg.GetJob().GetRetriedBy())
	require.Contains(t, again.GetMessage(), "It begins again after a delay")
	_, err = f.as(developer).CancelJob(t.Context(), connect.NewRequest(&runnersv1.CancelJobRequest{Id: a1}))
	require.NoError(t, err)
	require.Equal(t, "The job was canceled: runner 31 ends it.", f.explain(reader, a1).GetMessage())
	f.exec(`UPDATE jobs SET state = 'preparing' WHERE id = $1`, b)
	require.Equal(t, "The job waits for admission.", f.explain(reader, b).GetMessage())
	f.exec(`INSERT INTO prerequisites (job_id, preparation, controller_id, content) VALUES
		($1, 2, 8, '{"controller_id": 8, "name": "zones", "level": "group", "position": 2, "state": "asked", "attempt": 1}'),
		($1, 2, 9, '{"controller_id": 9, "name": "list", "level": "project", "position": 1, "state": "accepted"}')`, b)
	waiting := f.explain(reader, b)
	require.Equal(t, `The job waits for admission by "zones".`, waiting.GetMessage())
	require.Len(t, waiting.GetPrerequisites(), 2)
	require.Equal(t, "accepted", waiting.GetPrerequisites()[0].GetState())
	f.exec(`UPDATE jobs SET state = 'failed', reason = 'denied_admission',
		admission = '{"preparation": 2, "original_tags": ["linux"], "reason": "zones: not today"}' WHERE id = $1`, b)
	rejected := f.explain(reader, b)
	require.Equal(t, "The job was not admitted: zones: not today", rejected.GetMessage())
	require.Equal(t, []string{"linux"}, rejected.GetJob().GetAdmission().GetOriginalTags())
	f.exec(`UPDATE jobs SET state = 'skipped' WHERE id = $1`, b)
	require.Contains(t, f.explain(reader, b).GetMessage(), "skipped")
}

func TestJobOfAnOrganizationThatMovesIsExplained(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id := f.create("a: {script: x}").GetJobs()[0].GetId()
	f.runner(runner.InstanceType, 0, true, runner.Settings{RunUntagged: true})
	f.exec(`INSERT INTO moves (id, organization_id, arrival, cell, number, phase, started_at)
		SELECT 'm', organization_id, false, 'eu-2', 1, 'copying', now() FROM jobs WHERE id = $1`, id)
	for phase, want := range map[string]string{
		"copying":      "its organization is being moved to cell eu-2",
		"handing_over": "its organization is in cell eu-2",
		"canceled":     "one of 1 runners that take it is free",
	} {
		f.exec(`UPDATE moves SET phase = $1`, phase)
		require.Contains(t, f.explain(reader, id).GetMessage(), want, phase)
	}
	f.exec(`UPDATE moves SET phase = 'arriving', arrival = true`)
	require.Contains(t, f.explain(reader, id).GetMessage(), "is being moved here from cell eu-2")
	f.exec(`UPDATE moves SET phase = 'copying', arrival = false`)
	f.exec(`UPDATE jobs SET state = 'running', runner_id = 31 WHERE id = $1`, id)
	require.Contains(t, f.explain(reader, id).GetMessage(), "runner 31 executes it")
}

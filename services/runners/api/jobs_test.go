package api_test

import (
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/errcode"
	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	"lockstep.internal/services/runners/job"
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
		job.DeniedAdmission, job.DataIntegrity) {
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

func TestPendingJobIsExplainedByRunners(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id := f.create("a: {script: x, tags: [gpu]}").GetJobs()[0].GetId()
	require.Contains(t, f.explain(reader, id).GetMessage(), "its project has none")
	old := time.Now().Add(-time.Hour)
	instance := func(id int64, tags ...string) *runner.Runner {
		return &runner.Runner{ID: id, Type: runner.InstanceType, CreatedAt: old, Settings: runner.Settings{Tags: tags}}
	}
	paused, protected := instance(12, "gpu"), instance(13, "gpu")
	paused.Paused, protected.Protected = true, true
	f.registry.all = []*runner.Runner{
		instance(11, "linux"), paused, protected, instance(14, "gpu"), instance(15, "gpu"),
		{ID: 16, Type: runner.ProjectType, ProjectIDs: []int64{otherProject}, OrganizationID: 1, CreatedAt: old},
	}
	for _, id := range []int64{11, 12, 13, 14, 16} {
		f.exec(`INSERT INTO runners (id, type, token_hash) VALUES ($1, 'instance_type', $2)`, id, []byte{byte(id)})
		f.exec(`INSERT INTO runner_managers (runner_id, system_id, contacted_at) VALUES ($1, 's', now())`, id)
	}
	explained := f.explain(reader, id)
	require.Contains(t, explained.GetMessage(), "one of 1 runners that take it")
	rules := map[int64][]string{}
	for _, v := range explained.GetRunners() {
		rules[v.GetRunnerId()] = []string{}
		for _, o := range v.GetObstacles() {
			rules[v.GetRunnerId()] = append(rules[v.GetRunnerId()], o.GetRule())
			require.NotEmpty(t, o.GetMessage())
		}
		require.Equal(t, len(v.GetObstacles()) == 0, v.GetMatches())
	}
	require.Equal(t, map[int64][]string{
		11: {"tags"}, 12: {"paused"}, 13: {"protected"}, 14: {}, 15: {"offline"},
	}, rules, "who is no administrator sees the runners of the project")
	require.EqualValues(t, 14, explained.GetRunners()[0].GetRunnerId())
	require.Equal(t, "online", explained.GetRunners()[0].GetStatus())
	require.Len(t, f.explain(admin, id).GetRunners(), 6)
	f.registry.all = f.registry.all[:1]
	require.Contains(t, f.explain(reader, id).GetMessage(), "none of 1 takes it")
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
	f.exec(`UPDATE jobs SET state = 'skipped' WHERE id = $1`, b)
	require.Contains(t, f.explain(reader, b).GetMessage(), "skipped")
}

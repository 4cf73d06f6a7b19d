package api_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/errcode"
	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	"lockstep.internal/services/runners/job"
)

func TestPipelineIsCreatedAndShown(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const file = `
stages: [build, test, empty]
build: {stage: build, script: make, tags: [linux], timeout: 10 minutes, artifacts: {paths: [out]}}
test: {stage: test, script: make test, needs: [build]}
`
	request := &runnersv1.CreatePipelineRequest{
		ProjectId: projectID, File: []byte(file), Ref: "main", Protected: true, RequestId: "r1",
		Variables: []*runnersv1.Variable{{Key: "TOKEN", Value: "a secret value", Masked: true, File: true, Raw: true}},
	}
	made, err := f.as(maintainer).CreatePipeline(t.Context(), connect.NewRequest(request))
	require.NoError(t, err)
	p := made.Msg.GetPipeline()
	require.EqualValues(t, maintainer, p.GetCreatedBy())
	require.Equal(t, runnersv1.PipelineState_PIPELINE_STATE_PENDING, p.GetState())
	require.Equal(t, []string{"build", "test"}, p.GetStages())
	require.Equal(t, "main", p.GetRef())
	require.True(t, p.GetProtected())
	build, test := p.GetJobs()[0], p.GetJobs()[1]
	require.Equal(t, []string{"linux"}, build.GetTags())
	require.EqualValues(t, 600, build.GetTimeout().GetSeconds())
	require.Equal(t, runnersv1.JobState_JOB_STATE_PENDING, build.GetState())
	require.Equal(t, []string{"build"}, test.GetNeeds())
	require.NotContains(t, p.String(), "secret")
	got, err := f.as(reader).GetPipeline(t.Context(), connect.NewRequest(&runnersv1.GetPipelineRequest{Id: p.GetId()}))
	require.NoError(t, err)
	require.Equal(t, p.String(), got.Msg.GetPipeline().String())
	again, err := f.as(maintainer).CreatePipeline(t.Context(), connect.NewRequest(request))
	require.NoError(t, err)
	require.Equal(t, p.GetId(), again.Msg.GetPipeline().GetId())
	request.Variables[0].Value = "another value"
	_, err = f.as(maintainer).CreatePipeline(t.Context(), connect.NewRequest(request))
	requireCode(t, errcode.AlreadyExists, err)
}

func TestProblemsOfAFileAreReported(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, err := f.as(developer).CreatePipeline(t.Context(), connect.NewRequest(&runnersv1.CreatePipelineRequest{
		ProjectId: projectID, File: []byte("a: {stage: none, script: x}\nb: {script: x, needs: [c]}"), FileName: "ci.yml",
	}))
	requireCode(t, errcode.InvalidArgument, err)
	require.ErrorContains(t, err, "ci.yml:1:")
	_, err = f.as(admin).CreatePipeline(t.Context(), connect.NewRequest(&runnersv1.CreatePipelineRequest{
		ProjectId: 99, File: []byte("a: {script: x}"),
	}))
	requireCode(t, errcode.NotFound, err)
	_, err = f.as(developer).CreatePipeline(t.Context(), connect.NewRequest(&runnersv1.CreatePipelineRequest{
		ProjectId: projectID, Ref: "a\x00b",
	}))
	requireCode(t, errcode.InvalidArgument, err)
	_, err = f.as(developer).CreatePipeline(t.Context(), connect.NewRequest(&runnersv1.CreatePipelineRequest{
		ProjectId: projectID, Ref: strings.Repeat("x", 70_000),
	}))
	requireCode(t, errcode.InvalidArgument, err)
}

func TestPipelinesAreListedInPages(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var newest []int64
	for range 5 {
		newest = append([]int64{f.create("a: {script: x}").GetId()}, newest...)
	}
	list := func(m *runnersv1.ListPipelinesRequest) (ids []int64, next string) {
		t.Helper()
		m.ProjectId = projectID
		got, err := f.as(reader).ListPipelines(t.Context(), connect.NewRequest(m))
		require.NoError(t, err)
		for _, p := range got.Msg.GetPipelines() {
			ids = append(ids, p.GetId())
			require.Empty(t, p.GetJobs())
		}
		return ids, got.Msg.GetNextPageToken()
	}
	ids, next := list(&runnersv1.ListPipelinesRequest{PageSize: 2})
	require.Equal(t, newest[:2], ids)
	ids, next = list(&runnersv1.ListPipelinesRequest{PageSize: 2, PageToken: next})
	require.Equal(t, newest[2:4], ids)
	ids, next = list(&runnersv1.ListPipelinesRequest{PageSize: 2, PageToken: next})
	require.Equal(t, newest[4:], ids)
	require.Empty(t, next)

	// A runner that takes a job makes the pipeline running, also in the filter.
	jobs, err := f.as(reader).ListJobs(t.Context(), connect.NewRequest(&runnersv1.ListJobsRequest{PipelineId: newest[1]}))
	require.NoError(t, err)
	f.take(jobs.Msg.GetJobs()[0].GetId())
	running := []runnersv1.PipelineState{runnersv1.PipelineState_PIPELINE_STATE_RUNNING}
	ids, _ = list(&runnersv1.ListPipelinesRequest{States: running})
	require.Equal(t, newest[1:2], ids)

	for name, m := range map[string]*runnersv1.ListPipelinesRequest{
		"size":    {ProjectId: projectID, PageSize: 501},
		"token":   {ProjectId: projectID, PageToken: "x"},
		"state":   {ProjectId: projectID, States: []runnersv1.PipelineState{0}},
		"project": {},
	} {
		_, err := f.as(reader).ListPipelines(t.Context(), connect.NewRequest(m))
		requireCode(t, errcode.InvalidArgument, err, name)
	}
}

func TestPipelineIsCanceledAndRetried(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p := f.create("a: {script: x}")
	canceled, err := f.as(developer).CancelPipeline(t.Context(),
		connect.NewRequest(&runnersv1.CancelPipelineRequest{Id: p.GetId()}))
	require.NoError(t, err)
	require.Equal(t, runnersv1.PipelineState_PIPELINE_STATE_CANCELED, canceled.Msg.GetPipeline().GetState())
	require.NotNil(t, canceled.Msg.GetPipeline().GetFinishedAt())
	_, err = f.as(developer).CancelPipeline(t.Context(),
		connect.NewRequest(&runnersv1.CancelPipelineRequest{Id: p.GetId()}))
	requireCode(t, errcode.FailedPrecondition, err)
	retried, err := f.as(developer).RetryPipeline(t.Context(),
		connect.NewRequest(&runnersv1.RetryPipelineRequest{Id: p.GetId()}))
	require.NoError(t, err)
	attempt := retried.Msg.GetPipeline().GetJobs()[0]
	require.Equal(t, p.GetJobs()[0].GetId(), attempt.GetRetryOf())
	require.EqualValues(t, 2, attempt.GetAttempt())
	require.Nil(t, retried.Msg.GetPipeline().GetFinishedAt())
}

func TestWatchSendsEachChangeUntilTheEnd(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p := f.create("stages: [a, b]\na: {stage: a, script: x}\nb: {stage: b, script: x}")
	f.create("other: {script: x}")
	stream, err := f.as(reader).WatchPipeline(t.Context(),
		connect.NewRequest(&runnersv1.WatchPipelineRequest{Id: p.GetId()}))
	require.NoError(t, err)
	defer stream.Close()
	var last *runnersv1.Pipeline
	next := func() {
		t.Helper()
		require.True(t, stream.Receive(), "%v", stream.Err())
		last = stream.Msg().GetPipeline()
	}
	until := func(done func() bool) {
		t.Helper()
		for !done() {
			next()
		}
	}
	next()
	require.Equal(t, p.String(), last.String())
	state := func(i int) runnersv1.JobState { return last.GetJobs()[i].GetState() }
	f.take(p.GetJobs()[0].GetId())
	until(func() bool { return state(0) == runnersv1.JobState_JOB_STATE_RUNNING })
	require.Equal(t, runnersv1.PipelineState_PIPELINE_STATE_RUNNING, last.GetState())
	f.exec(`UPDATE jobs SET state = 'pending' WHERE id = $1`, p.GetJobs()[0].GetId())
	f.run(p.GetJobs()[0].GetId(), job.Result{})
	until(func() bool { return state(1) == runnersv1.JobState_JOB_STATE_PENDING })
	f.run(p.GetJobs()[1].GetId(), job.Result{})
	until(func() bool { return last.GetFinishedAt() != nil })
	require.Equal(t, runnersv1.PipelineState_PIPELINE_STATE_SUCCESS, last.GetState())
	require.False(t, stream.Receive(), "it ends with the pipeline")
	require.NoError(t, stream.Err())
}

func TestWatchEndsWithTheAccessOfItsCaller(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p := f.create("a: {script: x}")
	stream, err := f.as(reader).WatchPipeline(t.Context(),
		connect.NewRequest(&runnersv1.WatchPipelineRequest{Id: p.GetId()}))
	require.NoError(t, err)
	defer stream.Close()
	require.True(t, stream.Receive())
	f.directory.write(func() { delete(f.directory.users, reader) })
	for stream.Receive() {
	}
	requireCode(t, errcode.Unauthenticated, stream.Err())
}

func TestWatchesOfAUserAreLimited(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	request := &runnersv1.WatchPipelineRequest{Id: f.create("a: {script: x}").GetId()}
	ctx, cancel := context.WithCancel(t.Context())
	for range maxStreams {
		stream, err := f.as(reader).WatchPipeline(ctx, connect.NewRequest(request))
		require.NoError(t, err)
		defer stream.Close()
		require.True(t, stream.Receive())
	}
	watch := func(user int64) error {
		stream, err := f.as(user).WatchPipeline(t.Context(), connect.NewRequest(request))
		require.NoError(t, err)
		defer stream.Close()
		stream.Receive()
		return stream.Err()
	}
	err := watch(reader)
	requireCode(t, errcode.QuotaExceeded, err)
	require.ErrorContains(t, err, "access.max_streams_per_user")
	require.NoError(t, watch(developer), "another user")
	cancel()
	require.Eventually(t, func() bool { return watch(reader) == nil }, soon, 10*time.Millisecond)
}

func TestLargePipelineIsShown(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var file strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&file, "a%d: {script: x}\n", i)
	}
	p := f.create(file.String())
	require.Len(t, p.GetJobs(), 1000)
	require.Equal(t, "a999", p.GetJobs()[999].GetName(), "in the order of the file")
}

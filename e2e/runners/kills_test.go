package runners_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/fixture"
	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	"lockstep.internal/services/runners"
	"lockstep.internal/tools/stack"
	"lockstep.internal/tools/testkit/runnerclient"
)

// roundFile has jobs that are in different states when the service is killed. slow runs until the next start of it.
const roundFile = `
stages: [build, test]
build: {stage: build, script: [make], parallel: 3, artifacts: {paths: [out/]}}
slow-%d: {stage: build, script: [sleep], after_script: [clean]}
test: {stage: test, script: [make test]}
`

// executed is an execution of a job by a runner.
type executed struct {
	job    *runnerclient.Job
	result runnerclient.Result
}

// executions collects what a runner executed.
type executions struct {
	mu  sync.Mutex
	all map[int64][]executed
}

func (e *executions) add(j *runnerclient.Job, r runnerclient.Result) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all[j.ID] = append(e.all[j.ID], executed{j, r})
}

func (e *executions) of(id int64) []executed {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.all[id]
}

// requests is a transport that announces each request before it is sent, and counts those that failed.
type requests struct {
	http.Transport

	begun  chan struct{}
	failed atomic.Int64
}

// RoundTrip implements [http.RoundTripper].
func (r *requests) RoundTrip(request *http.Request) (*http.Response, error) {
	select {
	case r.begun <- struct{}{}:
	default: // nobody waits
	}
	response, err := r.Transport.RoundTrip(request)
	if err != nil || response.StatusCode >= http.StatusInternalServerError {
		r.failed.Add(1)
	}
	return response, err
}

// TestKilledServiceLosesNothing kills the runners service during requests of a runner, which executes jobs meanwhile.
func TestKilledServiceLosesNothing(t *testing.T) {
	t.Parallel()
	const rounds = 8
	c := start(t, stack.Options{
		Router: true, Programs: fixture.BuildReleaseServices(t),
		Configure: func(_ string, config any) {
			if cfg, is := config.(*runners.Config); is {
				cfg.Queue.ConfirmTimeout = 5 * time.Second
			}
		},
	})
	random := rand.New(rand.NewPCG(1, 8))
	restarted := make([]chan struct{}, rounds)
	for i := range restarted {
		restarted[i] = make(chan struct{})
	}
	done := &executions{all: map[int64][]executed{}}
	transport := &requests{begun: make(chan struct{})}
	runAs(t, runnerclient.Config{
		URL: c.RouterURL(), Token: c.runner(untagged()), SystemID: "s_1", MaxWait: 500 * time.Millisecond,
		HTTP: &http.Client{Transport: transport},
	}, runnerclient.Runs{
		Concurrency: 6,
		Script:      func(j *runnerclient.Job) runnerclient.Script { return roundScript(j, restarted) },
		Done: func(j *runnerclient.Job, r runnerclient.Result, err error) {
			if err == nil {
				done.add(j, r)
			} else if t.Context().Err() == nil {
				t.Errorf("job %d: %v", j.ID, err)
			}
		},
	})
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	var pipelines []*runnersv1.Pipeline
	for round := range rounds {
		p := c.pipeline(c.project, fmt.Sprintf(roundFile, round))
		pipelines = append(pipelines, p)
		for range 1 + random.IntN(25) {
			select {
			case <-transport.begun:
			case <-ctx.Done():
				require.FailNow(t, "the runner sends no requests")
			}
		}
		if round%3 == 2 {
			_, err := c.api.Pipelines.CancelPipeline(ctx,
				connect.NewRequest(&runnersv1.CancelPipelineRequest{Id: p.GetId()}))
			require.NoError(t, err)
		}
		require.NoError(t, c.Kill(stack.Runners))
		require.NoError(t, c.StartService(ctx, stack.Runners))
		close(restarted[round])
	}
	succeeded := 0
	for round, p := range pipelines {
		p = c.ended(p.GetId())
		if round%3 == 2 {
			require.Equal(t, runnersv1.PipelineState_PIPELINE_STATE_CANCELED, p.GetState(), p)
		}
		for _, j := range p.GetJobs() {
			c.requireExecutedOnce(j, done)
			if j.GetState() == runnersv1.JobState_JOB_STATE_SUCCESS {
				succeeded++
			}
		}
	}
	require.Greater(t, transport.failed.Load(), int64(rounds), "the service was away while the runner used it")
	require.Greater(t, succeeded, rounds, "most jobs end well: %v", pipelines)
	c.requireRebuildFindsNothing()
}

func roundScript(j *runnerclient.Job, restarted []chan struct{}) runnerclient.Script {
	s := runnerclient.Script{
		Lines: []string{"begin of " + j.JobInfo.Name, strings.Repeat("line\n", 200)}, After: []string{"cleaned"},
	}
	var round int
	if _, err := fmt.Sscanf(j.JobInfo.Name, "slow-%d", &round); err == nil {
		s.Wait, s.Rest = restarted[round], []string{strings.Repeat("rest\n", 200)}
	}
	if strings.HasPrefix(j.JobInfo.Name, "build") {
		s.Files = builtFiles(j.ID)
	}
	return s
}

// builtFiles are the artifacts of a job.
func builtFiles(id int64) map[string][]byte {
	return map[string][]byte{"out/a.txt": []byte(strings.Repeat(fmt.Sprintf("made by %d\n", id), 2000))}
}

// requireExecutedOnce checks a job that has ended against what the runner did.
func (c *cell) requireExecutedOnce(j *runnersv1.Job, done *executions) {
	c.t.Helper()
	var whole []executed
	for _, e := range done.of(j.GetId()) {
		if !e.result.Aborted {
			whole = append(whole, e)
		}
	}
	switch j.GetState() {
	case runnersv1.JobState_JOB_STATE_SKIPPED:
		require.Empty(c.t, done.of(j.GetId()), j)
		return
	case runnersv1.JobState_JOB_STATE_CANCELED:
		if len(whole) == 0 {
			return // it was canceled before a runner had it
		}
	case runnersv1.JobState_JOB_STATE_SUCCESS, runnersv1.JobState_JOB_STATE_FAILED:
		require.Len(c.t, whole, 1, "job %v was executed by one runner that had its claim to the end", j)
	default:
		require.Failf(c.t, "no final state", "%v", j)
	}
	result := whole[0].result
	require.Equal(c.t, http.StatusOK, result.Status)
	if j.GetState() != runnersv1.JobState_JOB_STATE_CANCELED {
		want := map[string]runnersv1.JobState{
			"success": runnersv1.JobState_JOB_STATE_SUCCESS, "failed": runnersv1.JobState_JOB_STATE_FAILED,
		}
		require.Equal(c.t, want[result.State], j.GetState(), "the job is as the runner reported it: %v", j)
	}
	require.True(c.t, j.GetTraceVerified(), j)
	require.Equal(c.t, string(result.Trace), c.trace(j.GetId()))
	if strings.HasPrefix(j.GetName(), "build") && j.GetState() == runnersv1.JobState_JOB_STATE_SUCCESS {
		status, archive := c.download(fmt.Sprintf("/projects/%d/jobs/%d/artifacts", j.GetProjectId(), j.GetId()))
		require.Equal(c.t, http.StatusOK, status, "%s", archive)
		files, err := runnerclient.Unzip(archive)
		require.NoError(c.t, err)
		require.Equal(c.t, builtFiles(j.GetId()), files)
	}
}

// requireRebuildFindsNothing compares the jobs with their stream.
func (c *cell) requireRebuildFindsNothing() {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), soon)
	defer cancel()
	stream, err := c.api.Operations.Rebuild(ctx, connect.NewRequest(&runnersv1.RebuildRequest{Check: true}))
	require.NoError(c.t, err)
	defer stream.Close()
	var outcome *runnersv1.RebuildOutcome
	for stream.Receive() {
		outcome = stream.Msg().GetOutcome()
	}
	require.NoError(c.t, stream.Err())
	require.NotEmpty(c.t, outcome.GetTables())
	require.Empty(c.t, outcome.GetDifferences())
	for _, table := range outcome.GetTables() {
		require.Positive(c.t, table.GetRows(), table)
		require.Zero(c.t, table.GetDifferent(), table)
	}
}

// download returns a page of the API for GitLab runners as a person gets it.
func (c *cell) download(path string) (int, []byte) {
	c.t.Helper()
	token, err := c.state.AccessToken(c.t.Context(), "runners")
	require.NoError(c.t, err)
	ctx, cancel := context.WithTimeout(c.t.Context(), soon)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.RunnersURL()+"/api/v4"+path, http.NoBody)
	require.NoError(c.t, err)
	request.Header.Set("Authorization", "Bearer "+token.Value)
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport}).Do(request)
	require.NoError(c.t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(c.t, err)
	return response.StatusCode, body
}

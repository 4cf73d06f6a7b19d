package runners_test

import (
	"context"
	"net/http"
	"slices"
	"strconv"
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

const stagesFile = `
stages: [build, test, deploy]
build:
  stage: build
  script: [make]
  artifacts: {paths: [out/]}
test:
  stage: test
  script: [make test]
  parallel: 2
flaky:
  stage: test
  script: [make flaky]
  retry: 1
lint:
  stage: test
  script: [make lint]
  allow_failure: true
deploy:
  stage: deploy
  script: [make deploy]
  needs: [build, flaky]
cleanup:
  stage: deploy
  when: on_failure
  script: [make clean]
`

// script is what each job of stagesFile does. flaky fails once.
func script(failed chan struct{}) func(*runnerclient.Job) runnerclient.Script {
	return func(j *runnerclient.Job) runnerclient.Script {
		s := runnerclient.Script{Lines: []string{"running " + j.JobInfo.Name, "the secret is sup3rs3cretvalue"}}
		switch j.JobInfo.Name {
		case "build":
			s.Files = map[string][]byte{"out/a.txt": []byte("made by build")}
		case "lint":
			s.ExitCode = 3
		case "flaky":
			select {
			case <-failed:
				s.ExitCode = 1
			default:
			}
		}
		return s
	}
}

func TestPipelineRunsThroughTheRouter(t *testing.T) {
	t.Parallel()
	c := start(t, stack.Options{Router: true})
	failed := make(chan struct{}, 1)
	failed <- struct{}{}
	results := make(chan runnerclient.Result, 20)
	run(t, c.RouterURL(), c.runner(untagged()), "s_1", runnerclient.Runs{
		Concurrency: 4, Script: script(failed),
		Done: func(j *runnerclient.Job, r runnerclient.Result, err error) {
			if err != nil {
				t.Errorf("job %s: %v", j.JobInfo.Name, err)
			}
			if j.JobInfo.Name == "deploy" {
				results <- r
			}
		},
	})
	p := c.ended(c.pipeline(c.project, stagesFile).GetId())
	require.Equal(t, runnersv1.PipelineState_PIPELINE_STATE_SUCCESS, p.GetState())
	require.True(t, p.GetWarnings())
	require.Equal(t, []string{"build", "test", "deploy"}, p.GetStages())
	for name, want := range map[string]runnersv1.JobState{
		"build": runnersv1.JobState_JOB_STATE_SUCCESS, "test 1/2": runnersv1.JobState_JOB_STATE_SUCCESS,
		"test 2/2": runnersv1.JobState_JOB_STATE_SUCCESS, "flaky": runnersv1.JobState_JOB_STATE_SUCCESS,
		"lint": runnersv1.JobState_JOB_STATE_FAILED, "deploy": runnersv1.JobState_JOB_STATE_SUCCESS,
		"cleanup": runnersv1.JobState_JOB_STATE_SKIPPED,
	} {
		require.Equal(t, want, job(t, p, name).GetState(), name)
	}
	require.EqualValues(t, 2, job(t, p, "flaky").GetAttempt())
	require.True(t, job(t, p, "lint").GetFailureAllowed())
	require.EqualValues(t, 3, job(t, p, "lint").GetExitCode())
	files, err := runnerclient.Unzip((<-results).Dependencies["build"])
	require.NoError(t, err)
	require.Equal(t, "made by build", string(files["out/a.txt"]))
	text := c.trace(job(t, p, "build").GetId())
	require.Contains(t, text, "running build")
	require.NotContains(t, text, "sup3rs3cretvalue")
	require.True(t, job(t, p, "build").GetTraceVerified())
}

// trace returns the output of a job as a person gets it.
func (c *cell) trace(id int64) string {
	c.t.Helper()
	status, body := c.download("/jobs/" + strconv.FormatInt(id, 10) + "/trace")
	require.Equal(c.t, http.StatusOK, status, "%s", body)
	return string(body)
}

func TestCanceledPipelineEndsItsRunningJob(t *testing.T) {
	t.Parallel()
	c := start(t, stack.Options{})
	begun := make(chan struct{}, 1)
	run(t, c.RunnersURL(), c.runner(untagged()), "s_1", runnerclient.Runs{
		Script: func(*runnerclient.Job) runnerclient.Script {
			begun <- struct{}{}
			return runnerclient.Script{Wait: make(chan struct{}), After: []string{"from after_script"}}
		},
	})
	p := c.pipeline(c.project, "one: {script: [sleep 60], after_script: [echo]}\ntwo: {stage: deploy, script: [echo]}\n")
	<-begun
	_, err := c.api.Pipelines.CancelPipeline(t.Context(),
		connect.NewRequest(&runnersv1.CancelPipelineRequest{Id: p.GetId()}))
	require.NoError(t, err)
	p = c.ended(p.GetId())
	require.Equal(t, runnersv1.PipelineState_PIPELINE_STATE_CANCELED, p.GetState())
	require.Contains(t, c.trace(job(t, p, "one").GetId()), "from after_script")
}

func TestReasonWhyAJobWaitsNamesEachRunnerAndRule(t *testing.T) {
	t.Parallel()
	c := start(t, stack.Options{})
	c.runner(&runnersv1.RunnerSettings{Tags: []string{"linux"}, Description: "a linux machine"})
	c.runner(&runnersv1.RunnerSettings{RunUntagged: true, Paused: true})
	p := c.pipeline(c.project, "gpu: {tags: [gpu, linux], script: [echo]}\n")
	explained, err := c.api.Jobs.ExplainJob(t.Context(),
		connect.NewRequest(&runnersv1.ExplainJobRequest{Id: job(t, p, "gpu").GetId()}))
	require.NoError(t, err)
	require.Len(t, explained.Msg.GetRunners(), 2)
	rules := map[string]bool{}
	for _, verdict := range explained.Msg.GetRunners() {
		require.False(t, verdict.GetMatches())
		for _, obstacle := range verdict.GetObstacles() {
			rules[obstacle.GetRule()] = true
		}
	}
	require.True(t, rules["tags"])
	require.True(t, rules["paused"])
}

// TestEveryJobRunsOnce lets many runners take many jobs of several projects from two replicas behind two routers. No
// project waits much longer than the others.
func TestEveryJobRunsOnce(t *testing.T) {
	t.Parallel()
	const projects, jobs, workers = 20, 100, 200
	cellAddress := startBalancer(t)
	c := start(t, stack.Options{
		Router: true, Programs: fixture.BuildReleaseServices(t),
		Configure: func(_ string, config any) {
			if cfg, is := config.(*runners.Config); is {
				cfg.Cell.URL = cellAddress.URL()
			}
		},
	})
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	second, err := c.AddReplica(ctx, stack.Runners)
	require.NoError(t, err)
	cellAddress.use(c.Address(stack.Runners, stack.ListenerAPI), c.Address(second, stack.ListenerAPI))
	secondRouter, err := c.AddReplica(ctx, stack.Router)
	require.NoError(t, err)
	var pipelines []*runnersv1.Pipeline
	for i := range projects {
		project := c.newProject("many-" + strconv.Itoa(i))
		c.awaitProject(project)
		pipelines = append(pipelines, c.pipeline(project, "work: {script: [echo], parallel: "+strconv.Itoa(jobs)+"}\n"))
	}
	done := make(chan *runnerclient.Job, 2*projects*jobs)
	token := c.runner(untagged())
	urls := []string{c.RouterURL(), c.RouterURLOf(secondRouter)}
	for i := range workers {
		run(t, urls[i%2], token, "s_"+strconv.Itoa(i), runnerclient.Runs{
			Script: func(j *runnerclient.Job) runnerclient.Script {
				return runnerclient.Script{Lines: []string{j.JobInfo.Name}}
			},
			Done: func(j *runnerclient.Job, r runnerclient.Result, err error) {
				if err != nil || r.Status != http.StatusOK {
					t.Errorf("job %d: %v %v", j.ID, r.Status, err)
				}
				done <- j
			},
		})
	}
	// starts has when the jobs of each project started.
	starts := make([][]time.Time, projects)
	for i, p := range pipelines {
		ended := c.ended(p.GetId())
		require.Equal(t, runnersv1.PipelineState_PIPELINE_STATE_SUCCESS, ended.GetState())
		for _, j := range ended.GetJobs() {
			require.EqualValues(t, 1, j.GetAttempt())
			starts[i] = append(starts[i], j.GetStartedAt().AsTime())
		}
	}
	seen := map[int64]int{}
	for range projects * jobs {
		seen[(<-done).ID]++
	}
	require.Len(t, seen, projects*jobs)
	require.Empty(t, done)
	requireFair(t, starts)
}

// requireFair checks that no project waited much longer than the mean. If jobs started in the order in which they were
// created, the last project would wait for nearly twice the mean.
func requireFair(t testing.TB, starts [][]time.Time) {
	t.Helper()
	first := slices.MinFunc(slices.Concat(starts...), time.Time.Compare)
	wait := func(times []time.Time) time.Duration {
		var sum time.Duration
		for _, at := range times {
			sum += at.Sub(first)
		}
		return sum / time.Duration(len(times))
	}
	mean := wait(slices.Concat(starts...))
	for i, times := range starts {
		require.Less(t, wait(times), mean*3/2, "project %d; the mean of all is %s", i, mean)
	}
}

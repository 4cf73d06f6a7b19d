package schedule_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/schedule"
)

func TestJobsBeginWhenThoseBeforeThemHaveEnded(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p := f.create(stages)
	f.take(p.ID, "build")
	require.Equal(t, job.Running, f.pipeline(p.ID).State.State, "a job that runs makes its pipeline run")
	require.NoError(t, f.end(f.scheduler, f.job(p.ID, "build").ID, succeeded))
	require.Equal(t, job.Pending, f.states(p.ID)["unit"])
	f.run(p.ID, "unit", succeeded)
	require.Equal(t, job.Created, f.states(p.ID)["deploy"])
	f.run(p.ID, "lint", succeeded)
	require.Equal(t, job.Pending, f.states(p.ID)["deploy"])
	require.Equal(t, job.Skipped, f.states(p.ID)["report"])
	require.Equal(t, []string{"created", "skipped"}, f.events(f.job(p.ID, "report").ID))
	require.Zero(t, f.pipeline(p.ID).FinishedAt)
	f.advance(time.Minute)
	f.run(p.ID, "deploy", succeeded)
	done := f.pipeline(p.ID)
	require.Equal(t, job.Success, done.State.State)
	require.False(t, done.Warnings)
	require.Equal(t, start.Add(time.Minute), done.FinishedAt)
	require.Equal(t, []string{"created", "pending", "running", "finished"}, f.events(f.job(p.ID, "deploy").ID))
}

func TestAllowedFailureIsAWarning(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p := f.create("a: {script: x, allow_failure: true}\nb: {script: x}")
	f.run(p.ID, "a", failed)
	f.run(p.ID, "b", succeeded)
	done := f.pipeline(p.ID)
	require.Equal(t, job.Success, done.State.State)
	require.True(t, done.Warnings)
}

func TestNothingIsLeftOfATransactionThatWasKilled(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p := f.create("stages: [a, b]\na: {stage: a, script: x, retry: 1}\nb: {stage: b, script: x, when: always}")
	id := f.take(p.ID, "a").ID
	before := f.attempts(p.ID)
	events := f.count(`SELECT count(*) FROM outbox`)
	err := f.end(f.scheduler, id, failed, func() error { return errStopped })
	require.ErrorIs(t, err, errStopped)
	require.Equal(t, before, f.attempts(p.ID))
	require.Equal(t, events, f.count(`SELECT count(*) FROM outbox`))
	require.Zero(t, f.count(`SELECT count(*) FROM delayed_jobs`))
	require.NoError(t, f.end(f.scheduler, id, failed))
	require.Equal(t, 1, f.count(`SELECT count(*) FROM delayed_jobs`))
}

// TestReplicasEndJobsOfOnePipelineAtOnce ends all jobs of a stage at the same time on two replicas: the job after them
// begins exactly once.
func TestReplicasEndJobsOfOnePipelineAtOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p := f.create("stages: [a, b]\na: {stage: a, script: x, parallel: 8}\nb: {stage: b, script: x}")
	replicas := []*schedule.Scheduler{f.replica(), f.replica()}
	var group sync.WaitGroup
	for i := range 8 {
		id := f.take(p.ID, fmt.Sprintf("a %d/8", i+1)).ID
		group.Go(func() {
			if err := f.end(replicas[i%2], id, succeeded); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	require.Equal(t, job.Pending, f.states(p.ID)["b"])
	require.Equal(t, []string{"created", "pending"}, f.events(f.job(p.ID, "b").ID))
}

// TestOrderOfEndsDoesNotMatter runs one pipeline in random orders: it always ends the same way.
func TestOrderOfEndsDoesNotMatter(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const file = `
stages: [a, b, c]
a1: {stage: a, script: x}
a2: {stage: a, script: x}
b1: {stage: b, script: x, needs: [a1]}
b2: {stage: b, script: x, needs: [a2]}
b3: {stage: b, script: x, when: on_failure}
c1: {stage: c, script: x}
c2: {stage: c, script: x, when: always}
`
	results := map[string]job.Result{"a2": failed}
	want := map[string]job.State{
		"a1": job.Success, "a2": job.Failed, "b1": job.Success, "b2": job.Skipped, "b3": job.Success, "c1": job.Skipped,
		"c2": job.Success,
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 10 {
		p := f.create(file)
		for {
			var pending []string
			for _, a := range f.attempts(p.ID) {
				if a.Job.State == job.Pending {
					pending = append(pending, a.Job.Name)
				}
			}
			if len(pending) == 0 {
				break
			}
			name := pending[random.IntN(len(pending))]
			f.run(p.ID, name, results[name])
		}
		require.Equal(t, want, f.states(p.ID))
		require.Equal(t, job.Failed, f.pipeline(p.ID).State.State)
	}
}

func TestFailedJobIsRetriedAfterADelay(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p := f.create("stages: [a, b]\na: {stage: a, script: x, retry: 2}\nb: {stage: b, script: x}")
	first := f.job(p.ID, "a")
	f.run(p.ID, "a", failed)
	second := f.job(p.ID, "a")
	require.Equal(t, first.ID, second.RetryOf)
	require.Equal(t, job.Created, second.State)
	require.Equal(t, []string{"created", "pending", "running", "finished", "retried"}, f.events(first.ID))
	require.Equal(t, job.Created, f.states(p.ID)["b"], "the failure does not count")
	require.NotEqual(t, job.Failed, f.pipeline(p.ID).State.State)

	require.NoError(t, f.scheduler.BeginDue(t.Context()))
	require.Equal(t, job.Created, f.states(p.ID)["a"])
	f.advance(10 * time.Second)
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			if err := f.replica().BeginDue(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	require.Equal(t, []string{"created", "pending"}, f.events(second.ID), "it begins once")

	f.run(p.ID, "a", failed)
	f.advance(19 * time.Second)
	require.NoError(t, f.scheduler.BeginDue(t.Context()))
	require.Equal(t, job.Created, f.states(p.ID)["a"], "the second delay is longer")
	f.advance(time.Second)
	require.NoError(t, f.scheduler.BeginDue(t.Context()))
	f.run(p.ID, "a", failed)
	require.Equal(t, job.Failed, f.states(p.ID)["a"], "two retries")
	require.Equal(t, job.Skipped, f.states(p.ID)["b"])
	require.Equal(t, job.Failed, f.pipeline(p.ID).State.State)
	require.Equal(t, 3, f.count(`SELECT count(*) FROM jobs WHERE name = 'a'`))
}

package schedule_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/postgres"
)

func TestCanceledPipelineBeginsNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p := f.create(`
stages: [a, b]
a1: {stage: a, script: x, retry: 2}
a2: {stage: a, script: x}
a3: {stage: a, script: x, retry: 2}
b: {stage: b, script: x, when: always}
`)
	running := f.take(p.ID, "a1")
	f.run(p.ID, "a3", failed)
	require.NoError(t, f.scheduler.CancelPipeline(t.Context(), p.ID, 6))
	require.Equal(t, map[string]job.State{
		"a1": job.Canceling, "a2": job.Canceled, "a3": job.Canceled, "b": job.Canceled,
	}, f.states(p.ID))
	require.EqualValues(t, 6, f.job(p.ID, "a2").CanceledBy)
	require.Equal(t, job.Canceling, f.pipeline(p.ID).State.State)
	require.Zero(t, f.count(`SELECT count(*) FROM delayed_jobs`))
	require.NoError(t, f.scheduler.CancelPipeline(t.Context(), p.ID, 7), "canceling again is possible")
	require.EqualValues(t, 6, f.job(p.ID, "a1").CanceledBy)
	require.NoError(t, f.end(f.scheduler, running.ID, failed))
	require.Equal(t, job.Canceled, f.states(p.ID)["a1"])
	done := f.pipeline(p.ID)
	require.Equal(t, job.Canceled, done.State.State)
	require.Equal(t, start, done.FinishedAt)
	require.Equal(t, []string{"created", "pending", "running", "canceling", "canceled"}, f.events(running.ID))
	requireCode(t, errcode.FailedPrecondition, f.scheduler.CancelPipeline(t.Context(), p.ID, 6))
	requireCode(t, errcode.NotFound, f.scheduler.CancelPipeline(t.Context(), 99, 6))
}

func TestCanceledJobIsFollowed(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p := f.create("stages: [a, b]\na: {stage: a, script: x}\nb: {stage: b, script: x}\nc: {stage: b, script: x, when: always}")
	canceled := f.job(p.ID, "a").ID
	require.NoError(t, f.scheduler.CancelJob(t.Context(), canceled, user))
	require.Equal(t, map[string]job.State{"a": job.Canceled, "b": job.Skipped, "c": job.Pending}, f.states(p.ID))
	requireCode(t, errcode.FailedPrecondition, f.scheduler.CancelJob(t.Context(), canceled, user))
	requireCode(t, errcode.NotFound, f.scheduler.CancelJob(t.Context(), 99, user))
	f.run(p.ID, "c", succeeded)
	require.Equal(t, job.Canceled, f.pipeline(p.ID).State.State)
}

// TestCancelRacesWithRunners cancels a pipeline while a runner takes its jobs and ends them. Each job ends once, in a
// state that fits.
func TestCancelRacesWithRunners(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for range 5 {
		p := f.create("stages: [a, b]\na: {stage: a, script: x, parallel: 6}\nb: {stage: b, script: x}")
		var group sync.WaitGroup
		for i, a := range f.attempts(p.ID) {
			if a.Job.State != job.Pending {
				continue
			}
			group.Go(func() {
				taken, err := a.Job.Take(job.Claim{RunnerID: int64(i + 1)}, f.time())
				if err != nil {
					t.Error(err)
					return
				}
				err = f.store().InTx(t.Context(), func(tx pgx.Tx) error { return f.store().StoreJobs(t.Context(), tx, taken) })
				if errors.Is(err, postgres.ErrStale) {
					return // canceled before
				}
				if err := errors.Join(err, f.end(f.replica(), taken.Job.ID, succeeded)); err != nil {
					t.Error(err)
				}
			})
		}
		group.Go(func() {
			if err := f.replica().CancelPipeline(t.Context(), p.ID, user); err != nil {
				t.Error(err)
			}
		})
		group.Wait()
		for _, a := range f.attempts(p.ID) {
			require.True(t, a.Job.State.Final(), "job %s is %s", a.Job.Name, a.Job.State)
			events := f.events(a.Job.ID)
			require.Len(t, events, int(a.Job.Revision), "one event for each transition")
		}
		require.Equal(t, job.Canceled, f.job(p.ID, "b").State)
		require.Equal(t, job.Canceled, f.pipeline(p.ID).State.State)
		require.NotZero(t, f.pipeline(p.ID).FinishedAt)
	}
}

func TestRetriedJobIsWaitedForAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p := f.create("stages: [a, b]\na: {stage: a, script: x}\nb: {stage: b, script: x}")
	first := f.job(p.ID, "a").ID
	_, err := f.scheduler.RetryJob(t.Context(), first)
	requireCode(t, errcode.FailedPrecondition, err)
	f.run(p.ID, "a", failed)
	require.Equal(t, job.Failed, f.pipeline(p.ID).State.State)
	f.advance(time.Minute)
	second, err := f.scheduler.RetryJob(t.Context(), first)
	require.NoError(t, err)
	require.Equal(t, second, f.job(p.ID, "a").ID)
	require.Equal(t, first, f.job(p.ID, "a").RetryOf)
	require.Equal(t, map[string]job.State{"a": job.Pending, "b": job.Created}, f.states(p.ID))
	require.Equal(t, job.Pending, f.pipeline(p.ID).State.State)
	require.Zero(t, f.pipeline(p.ID).FinishedAt)
	_, err = f.scheduler.RetryJob(t.Context(), first)
	requireCode(t, errcode.FailedPrecondition, err)
	_, err = f.scheduler.RetryJob(t.Context(), 99)
	requireCode(t, errcode.NotFound, err)
	f.run(p.ID, "a", succeeded)
	f.run(p.ID, "b", succeeded)
	require.Equal(t, job.Success, f.pipeline(p.ID).State.State)
	require.Equal(t, start.Add(time.Minute), f.pipeline(p.ID).FinishedAt)
}

func TestRetriedPipelineRunsWhatFailedOrWasCanceled(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p := f.create("stages: [a, b]\na1: {stage: a, script: x}\na2: {stage: a, script: x}\nb: {stage: b, script: x}")
	requireCode(t, errcode.FailedPrecondition, f.scheduler.RetryPipeline(t.Context(), p.ID))
	f.run(p.ID, "a1", succeeded)
	require.NoError(t, f.scheduler.CancelPipeline(t.Context(), p.ID, user))
	kept := f.job(p.ID, "a1")
	require.NoError(t, f.scheduler.RetryPipeline(t.Context(), p.ID))
	require.Equal(t, map[string]job.State{"a1": job.Success, "a2": job.Pending, "b": job.Created}, f.states(p.ID))
	require.Equal(t, kept, f.job(p.ID, "a1"))
	f.run(p.ID, "a2", succeeded)
	require.Equal(t, job.Pending, f.states(p.ID)["b"])
	requireCode(t, errcode.NotFound, f.scheduler.RetryPipeline(t.Context(), 99))
}

func TestDelayedJobsBeginWhileTheServiceRuns(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p := f.create("a: {script: x, retry: 1}")
	f.run(p.ID, "a", failed)
	f.advance(time.Minute)
	changes := postgres.NewPipelineChanges(f.pool)
	subscription := changes.Subscribe()
	defer subscription.Close()
	listening := f.background(func(ready func()) error { return changes.Run(t.Context(), ready) })
	<-listening
	<-f.background(func(ready func()) error {
		ready()
		return f.scheduler.RunDelayed(t.Context())
	})
	for f.states(p.ID)["a"] != job.Pending {
		select {
		case <-subscription.Changed():
			subscription.Take()
		case <-time.After(time.Minute):
			require.FailNow(t, "the delayed job does not begin")
		}
	}
}

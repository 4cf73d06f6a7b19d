package postgres_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/postgres"
)

func TestJobIsReadAsItWasStored(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	waiting := f.pending(7)
	read, err := postgres.ReadJobs(t.Context(), f.pool, 7, 8)
	require.NoError(t, err)
	require.Equal(t, []job.Job{waiting}, read)
	running, err := waiting.Take(job.Claim{RunnerID: 31, ManagerID: 77, MaximumTimeout: time.Minute}, now)
	require.NoError(t, err)
	require.NoError(t, f.store(running))
	failed, err := running.Job.Finish(job.Result{Reason: job.ScriptFailure, ExitCode: 4_294_967_295}, now)
	require.NoError(t, err)
	require.NoError(t, f.store(failed))
	read, err = postgres.ReadJobs(t.Context(), f.pool, 7)
	require.NoError(t, err)
	require.Equal(t, []job.Job{failed.Job}, read)
}

func TestTransitionIsPublishedWithItsCommit(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	changes := postgres.NewJobChanges(f.pool)
	subscription := changes.Subscribe()
	defer subscription.Close()
	ctx, stop := context.WithCancel(t.Context())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- changes.Run(ctx, func() { close(ready) }) }()
	defer func() {
		stop()
		require.NoError(t, <-ended)
	}()
	<-ready
	f.pending(7)
	require.Equal(t, 2, f.count(`SELECT count(*) FROM outbox WHERE subject LIKE 'lockstep.local.job.4.7.%'`))
	for found := false; !found; {
		select {
		case <-subscription.Changed():
			ids, _ := subscription.Take()
			for _, id := range ids {
				found = found || id == 7
			}
		case <-time.After(time.Minute):
			require.FailNow(t, "no notification")
		}
	}
}

// TestOfTwoTransitionsFromOneStateOneIsStored lets several claim one job at once.
func TestOfTwoTransitionsFromOneStateOneIsStored(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	waiting := f.pending(7)
	var group sync.WaitGroup
	var mu sync.Mutex
	stored := 0
	for runner := range int64(8) {
		group.Go(func() {
			taken, err := waiting.Take(job.Claim{RunnerID: runner + 1}, now)
			if err != nil {
				t.Error(err)
				return
			}
			err = f.tx(func(tx pgx.Tx) error {
				done, err := f.jobs.Try(t.Context(), tx, taken)
				mu.Lock()
				defer mu.Unlock()
				stored += len(done)
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	require.Equal(t, 1, stored)
	require.Equal(t, 1, f.count(`SELECT count(*) FROM outbox WHERE subject LIKE '%.running'`))
	canceled, err := waiting.Cancel(5, now)
	require.NoError(t, err)
	require.ErrorIs(t, f.store(canceled), postgres.ErrStale)
	require.Zero(t, f.count(`SELECT count(*) FROM outbox WHERE subject LIKE '%.canceled'`))
}

func TestLiveJobsAreThoseThatWaitOrRun(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	waiting := f.pending(7)
	canceled, err := f.pending(8).Cancel(5, now)
	require.NoError(t, err)
	running, err := f.pending(9).Take(job.Claim{RunnerID: 31}, now)
	require.NoError(t, err)
	require.NoError(t, f.store(canceled, running))
	live, err := postgres.LiveJobs(t.Context(), f.pool)
	require.NoError(t, err)
	require.ElementsMatch(t, []job.Job{waiting, running.Job}, live)
}

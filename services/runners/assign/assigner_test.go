package assign_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/wire"
)

func TestRunnerGetsThePendingJobThatIsNext(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.add(job.Job{ID: 7, ProjectID: 4}, job.Job{ID: 8, ProjectID: 4}, job.Job{ID: 9, ProjectID: 5})
	f.runners.put("one", runner{id: 31, timeout: time.Minute})
	r := f.start()
	a := get(t, r.request(t.Context(), "one"))
	require.NoError(t, a.err)
	require.EqualValues(t, 7, a.job.ID)
	require.Equal(t, "token-7-1-[]", a.job.Token)
	require.EqualValues(t, 60, a.job.RunnerInfo.Timeout)
	stored := f.state(7)
	require.Equal(t, job.Running, stored.State)
	require.EqualValues(t, 31, stored.RunnerID)
	require.EqualValues(t, 1031, stored.ManagerID)
	require.EqualValues(t, 9, get(t, r.request(t.Context(), "one")).job.ID, "the other project has no running job")
	require.EqualValues(t, 8, get(t, r.request(t.Context(), "one")).job.ID)
	require.Zero(t, r.take("one"))
}

func TestWaitingRequestGetsAJobThatIsCreatedOnAnotherReplica(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.runners.put("linux", runner{id: 31, tags: []string{"linux"}})
	f.runners.put("windows", runner{id: 32, tags: []string{"windows"}})
	r := f.start()
	windows := r.request(t.Context(), "windows")
	r.waits(1)
	linux := r.request(t.Context(), "linux")
	r.waits(2)
	f.add(job.Job{ID: 7, ProjectID: 4, Tags: []string{"linux"}}) // its notification is all that the replica gets
	require.EqualValues(t, 7, get(t, linux).job.ID)
	r.waits(1)
	f.add(job.Job{ID: 8, ProjectID: 4, Tags: []string{"windows"}})
	require.EqualValues(t, 8, get(t, windows).job.ID)
}

func TestWaitingRequestsCostNoQuery(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.runners.put("one", runner{id: 31})
	r := f.start()
	before := r.store.queries.Load()
	ctx, cancel := context.WithCancel(t.Context())
	var requests []<-chan answer
	for range 100 {
		requests = append(requests, r.request(ctx, "one"))
	}
	r.waits(100)
	cancel()
	for _, request := range requests {
		a := get(t, request)
		require.NoError(t, a.err)
		require.Nil(t, a.job)
		_, known := wire.ParseLastUpdate(a.last)
		require.True(t, known)
	}
	require.Equal(t, before, r.store.queries.Load())
}

func TestRunnerThatChangesWhileItWaitsIsJudgedAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.add(job.Job{ID: 7, ProjectID: 4, Tags: []string{"gpu"}})
	f.runners.put("one", runner{id: 31})
	r := f.start()
	request := r.request(t.Context(), "one")
	r.waits(1)
	f.runners.put("one", runner{id: 31, tags: []string{"gpu"}})
	require.EqualValues(t, 7, get(t, request).job.ID)
	request = r.request(t.Context(), "one")
	r.waits(1)
	f.runners.put("one", runner{})
	require.True(t, fault.Is(get(t, request).err, errcode.PermissionDenied))
}

// TestEachJobHasOneRunner lets many runners ask two replicas at once.
func TestEachJobHasOneRunner(t *testing.T) {
	t.Parallel()
	const jobs, workers = 200, 20
	f := newFixture(t)
	var pending []job.Job
	for i := range int64(jobs) {
		pending = append(pending, job.Job{ID: i + 1, ProjectID: i%7 + 1})
	}
	f.add(pending...)
	f.runners.put("one", runner{id: 31})
	replicas := []*replica{f.start(), f.start()}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var mu sync.Mutex
	taken := map[int64]int{}
	var group sync.WaitGroup
	for i := range workers {
		group.Go(func() {
			for ctx.Err() == nil {
				j, _, err := replicas[i%2].Request(ctx, wire.JobRequest{Token: "one"})
				if err != nil {
					t.Error(err)
					return
				}
				if j == nil {
					continue
				}
				mu.Lock()
				taken[j.ID]++
				if len(taken) == jobs {
					cancel()
				}
				mu.Unlock()
			}
		})
	}
	group.Wait()
	require.Len(t, taken, jobs)
	for id, times := range taken {
		require.Equal(t, 1, times, "job %d", id)
		require.Equal(t, 1, f.state(id).Claims, "job %d", id)
	}
}

func TestJobThatIsCanceledWhileItIsTakenIsNotGiven(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.add(job.Job{ID: 7, ProjectID: 4}, job.Job{ID: 8, ProjectID: 4})
	f.runners.put("one", runner{id: 31})
	r := f.start()
	canceled, err := f.state(7).Cancel(5, time.Now())
	require.NoError(t, err)
	f.tx(func(tx pgx.Tx) error { return f.jobs().Store(t.Context(), tx, canceled) })
	require.EqualValues(t, 8, get(t, r.request(t.Context(), "one")).job.ID)
	require.Zero(t, r.take("one"))
	require.Equal(t, job.Canceled, f.state(7).State)
}

func TestJobWaitsAgainAfterAClaimThatFailed(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.add(job.Job{ID: 7, ProjectID: 4})
	f.runners.put("one", runner{id: 31})
	r := f.start()
	r.store.broken.Store(true)
	require.ErrorContains(t, get(t, r.request(t.Context(), "one")).err, "the database is down")
	request := r.request(t.Context(), "one")
	r.waits(1)
	r.store.broken.Store(false)
	require.EqualValues(t, 7, get(t, request).job.ID)
}

func TestClaimOfARequestThatHasEndedIsReleased(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.add(job.Job{ID: 7, ProjectID: 4})
	f.runners.put("one", runner{id: 31})
	r := f.start()
	// The lock holds the claim back until the request has ended.
	blocker, err := f.pool.Begin(t.Context())
	require.NoError(t, err)
	defer blocker.Rollback(context.WithoutCancel(t.Context()))
	_, err = blocker.Exec(t.Context(), `SELECT FROM jobs WHERE id = 7 FOR UPDATE`)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	request := r.request(ctx, "one")
	require.Eventually(t, func() bool {
		var blocked int
		err := f.pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_locks WHERE NOT granted`).Scan(&blocked)
		return err == nil && blocked > 0
	}, soon, time.Millisecond)
	cancel()
	require.NoError(t, blocker.Rollback(t.Context()))
	a := get(t, request)
	require.NoError(t, a.err)
	require.Nil(t, a.job)
	stored := f.state(7)
	require.Equal(t, job.Pending, stored.State)
	require.Equal(t, 1, stored.Claims)
	require.Equal(t, "token-7-2-[]", get(t, r.request(t.Context(), "one")).job.Token)
}

func TestJobWithoutDefinitionFailsAndHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.add(job.Job{ID: 7, ProjectID: 4}, job.Job{ID: 8, ProjectID: 4}, job.Job{ID: 9, ProjectID: 4})
	_, err := f.pool.Exec(t.Context(), `DELETE FROM definitions WHERE pipeline_id = 7`)
	require.NoError(t, err)
	_, err = f.pool.Exec(t.Context(), `UPDATE definitions SET content = '["no definition"]' WHERE pipeline_id = 8`)
	require.NoError(t, err)
	f.runners.put("one", runner{id: 31})
	require.EqualValues(t, 9, get(t, f.start().request(t.Context(), "one")).job.ID)
	for _, id := range []int64{7, 8} {
		require.Equal(t, job.Failed, f.state(id).State)
		require.Equal(t, job.DataIntegrity, f.state(id).Reason)
	}
}

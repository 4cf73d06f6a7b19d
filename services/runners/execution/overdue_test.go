package execution_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/jobtoken"
	"lockstep.internal/services/runners/execution"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/wire"
)

func TestOverdue(t *testing.T) {
	t.Parallel()
	const (
		fresh  = time.Duration(-1) // the runner did not report
		ending = 3*time.Hour + 5*time.Minute
	)
	for name, c := range map[string]struct {
		state     job.State
		contacted time.Duration // after the claim
		after     time.Duration // the time of the decision
		noClaim   bool
		want      job.State // empty: nothing is due
		reason    job.FailureReason
	}{
		"a new claim":                    {job.Running, fresh, 2*time.Minute - 1, false, "", ""},
		"never confirmed":                {job.Running, fresh, 2 * time.Minute, false, job.Pending, ""},
		"never confirmed, canceled":      {job.Canceling, fresh, 2 * time.Minute, false, job.Canceled, ""},
		"confirmed":                      {job.Running, 0, 59 * time.Minute, false, "", ""},
		"silent":                         {job.Running, 0, time.Hour, false, job.Failed, job.StuckOrTimeout},
		"reported since":                 {job.Running, time.Minute, time.Hour, false, "", ""},
		"canceling":                      {job.Canceling, time.Minute, 11*time.Minute - 1, false, "", ""},
		"canceling and silent":           {job.Canceling, time.Minute, 11 * time.Minute, false, job.Canceled, ""},
		"before the timeout":             {job.Running, ending - 2, ending - 1, false, "", ""},
		"after the timeout":              {job.Running, ending - 1, ending, false, job.Failed, job.ExecutionTimeout},
		"after the timeout, canceling":   {job.Canceling, ending - 1, ending, false, job.Canceled, ""},
		"after the timeout, unconfirmed": {job.Running, fresh, ending, false, job.Failed, job.ExecutionTimeout},
		"without claim, new":             {job.Running, 0, time.Minute, true, "", ""},
		"without claim":                  {job.Running, 0, 2 * time.Minute, true, job.Failed, job.DataIntegrity},
		"without claim, canceling":       {job.Canceling, 0, 2 * time.Minute, true, job.Canceled, ""},
		"pending":                        {job.Pending, 0, 1000 * time.Hour, false, "", ""},
		"ended":                          {job.Success, 0, 1000 * time.Hour, false, "", ""},
	} {
		s := execution.Snapshot{
			Job: job.Job{ID: 7, State: c.state, Claims: 2, StartedAt: begin, Revision: 4},
			Claim: &execution.Claim{
				Number: 2, ClaimedAt: begin, ExpiresAt: begin.Add(ending), ConfirmedAt: begin, ContactedAt: begin.Add(c.contacted),
			},
		}
		if c.contacted == fresh {
			s.Claim.ConfirmedAt, s.Claim.ContactedAt = time.Time{}, time.Time{}
		}
		if c.noClaim {
			s.Claim.Number = 1
		}
		change, due := execution.Overdue(s, begin.Add(c.after), execution.DefaultRules())
		require.Equal(t, c.want != "", due, name)
		if due {
			require.Equal(t, c.want, change.Job.State, name)
			require.Equal(t, c.reason, change.Job.Reason, name)
		}
	}
}

func (f *fixture) maintenance() execution.Maintenance {
	return execution.Maintenance{
		Pool: f.pool, Store: f.first.store, Rules: execution.DefaultRules(), Logger: slog.New(slog.DiscardHandler),
		Now: f.clock.now,
	}
}

func TestOverdueJobsEndThroughTheirFollowers(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	unconfirmed, silent, canceling, alive := f.running(7), f.running(8), f.running(9), f.running(10)
	f.append(silent, 0, "half a sword")
	f.append(canceling, 0, "hello")
	_, err := f.first.Authorize(t.Context(), alive, jobtoken.ScopeTrace)
	require.NoError(t, err)
	f.cancel(9)
	states := func() []job.State {
		return []job.State{f.job(7).State, f.job(8).State, f.job(9).State, f.job(10).State}
	}
	require.NoError(t, f.maintenance().Once(t.Context()))
	require.Equal(t, []job.State{job.Running, job.Running, job.Canceling, job.Running}, states())
	f.clock.pass(10 * time.Minute)
	require.NoError(t, f.maintenance().Once(t.Context()))
	require.Equal(t, []job.State{job.Pending, job.Running, job.Canceled, job.Running}, states())
	require.Empty(t, f.count(`SELECT count(*) FROM claims WHERE job_id = 7`))
	f.refused(unconfirmed, "released")
	f.clock.pass(45 * time.Minute)
	_, err = f.first.Authorize(t.Context(), alive, jobtoken.ScopeTrace)
	require.NoError(t, err)
	f.clock.pass(5 * time.Minute)
	require.NoError(t, f.maintenance().Once(t.Context()))
	require.Equal(t, []job.State{job.Pending, job.Failed, job.Canceled, job.Running}, states())
	require.Equal(t, job.StuckOrTimeout, f.job(8).Reason)
	require.Equal(t, "half a *****", f.trace(8), "what may begin a masked value is not shown")
	require.Equal(t, map[int64]job.State{8: job.Failed, 9: job.Canceled}, f.followers.states())
	// A runner that was cut off learns the result.
	_, state, err := f.first.Update(t.Context(), silent, wire.UpdateRequest{State: wire.UpdateSuccess})
	require.NoError(t, err)
	require.Equal(t, wire.StatusFailed, state.Status)
}

func TestOverdueJobThatCannotEndHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.running(7)
	for id := int64(8); id < 8+150; id++ { // more than a batch
		f.running(id)
	}
	f.exec(`UPDATE jobs SET policy = '"broken"' WHERE id = 7`)
	f.clock.pass(2 * time.Minute)
	require.NoError(t, f.maintenance().Once(t.Context()))
	require.Equal(t, 150, f.count(`SELECT count(*) FROM jobs WHERE state = 'pending'`))
	require.Equal(t, 1, f.count(`SELECT count(*) FROM jobs WHERE state = 'running'`))
}

// TestClaimIsConfirmedOrReleased lets a first request and the maintenance of another replica meet.
func TestClaimIsConfirmedOrReleased(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for id := int64(7); id < 27; id++ {
		ref := f.running(id)
		f.clock.pass(2 * time.Minute)
		released := make(chan error, 1)
		go func() { released <- f.maintenance().Once(context.Background()) }()
		_, err := f.first.Authorize(t.Context(), ref, jobtoken.ScopeTrace)
		require.NoError(t, <-released)
		if err == nil {
			require.Equal(t, job.Running, f.job(id).State)
			_, _, err = f.first.Update(t.Context(), ref, wire.UpdateRequest{State: wire.UpdateSuccess})
			require.NoError(t, err)
		} else {
			require.Equal(t, job.Pending, f.job(id).State)
		}
	}
}

func TestOneReplicaAtATimeEndsOverdueJobs(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.running(7)
	f.clock.pass(2 * time.Minute)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	for range 2 {
		ready := make(chan struct{}, 1000)
		go func() {
			ended <- f.maintenance().Run(ctx, func() {
				select {
				case ready <- struct{}{}:
				default:
				}
			})
		}()
		select {
		case <-ready:
		case <-time.After(soon):
			require.FailNow(t, "not ready")
		}
	}
	require.Eventually(t, func() bool { return f.job(7).State == job.Pending }, soon, time.Millisecond)
	stop()
	require.NoError(t, <-ended)
	require.NoError(t, <-ended)
}

package execution_test

import (
	"hash/crc32"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/jobtoken"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/gitlab"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/wire"
)

// succeeded is the update of a runner that sent this trace.
func succeeded(text string) wire.UpdateRequest {
	return report(crc32.ChecksumIEEE([]byte(text)), len(text))
}

func TestResultOfTheRunnerEndsTheJobWithItsTraceAndItsFollowers(t *testing.T) {
	t.Parallel()
	code := int32(137)
	for name, c := range map[string]struct {
		update   wire.UpdateRequest
		canceled bool
		state    job.State
		status   wire.JobStatus
		reason   job.FailureReason
		code     int
	}{
		"success": {succeeded("hello"), false, job.Success, wire.StatusSuccess, "", 0},
		"failure": {
			wire.UpdateRequest{State: wire.UpdateFailed, FailureReason: "runner_system_failure", ExitCode: &code},
			false,
			job.Failed, wire.StatusFailed, job.RunnerSystemFailure, 137,
		},
		"failure for a reason that only the service may give": {
			wire.UpdateRequest{State: wire.UpdateFailed, FailureReason: "denied_admission"},
			false,
			job.Failed, wire.StatusFailed, job.UnknownFailure, 0,
		},
		"success after a cancel": {
			succeeded("hello"), true, job.Canceled, wire.StatusCanceled, "", 0,
		},
		"failure after a cancel": {
			wire.UpdateRequest{State: wire.UpdateFailed}, true, job.Canceled, wire.StatusCanceled, "", 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			ref := f.running(7)
			f.append(ref, 0, "hello")
			if c.canceled {
				f.cancel(7)
			}
			result, state, err := f.first.Update(t.Context(), ref, c.update)
			require.NoError(t, err)
			require.Equal(t, gitlab.Stored, result)
			require.Equal(t, gitlab.JobState{Status: c.status}, state)
			ended := f.job(7)
			require.Equal(t, c.state, ended.State)
			require.Equal(t, c.reason, ended.Reason)
			require.Equal(t, c.code, ended.ExitCode)
			require.Equal(t, "hello", f.trace(7))
			require.Equal(t, map[int64]job.State{7: c.state}, f.followers.states())

			// The same, another one, and one on another replica repeat the result and change nothing.
			for _, again := range []wire.UpdateRequest{
				c.update, {State: wire.UpdateRunning}, {State: wire.UpdateFailed}, succeeded("other"),
			} {
				result, state, err = f.replica().Update(t.Context(), ref, again)
				require.NoError(t, err)
				require.Equal(t, gitlab.Stored, result)
				require.Equal(t, gitlab.JobState{Status: c.status}, state)
			}
			require.Equal(t, ended, f.job(7))
			require.Len(t, f.followers.ended, 1)

			// Nothing else is permitted after the end.
			for _, scope := range []jobtoken.Scope{jobtoken.ScopeTrace, jobtoken.ScopeUpload} {
				state, err = f.first.Authorize(t.Context(), ref, scope)
				require.True(t, fault.Is(err, errcode.PermissionDenied), "%v", err)
				require.Equal(t, c.status, state.Status)
			}
			_, state, err = f.first.AppendTrace(t.Context(), ref, 5, []byte("more"))
			require.True(t, fault.Is(err, errcode.PermissionDenied), "%v", err)
			require.Equal(t, c.status, state.Status)
			require.Equal(t, "hello", f.trace(7))
		})
	}
}

func TestRunningIsConfirmedAndChangesNothingElse(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ref := f.running(7)
	before := f.job(7)
	result, state, err := f.first.Update(t.Context(), ref, wire.UpdateRequest{State: wire.UpdateRunning})
	require.NoError(t, err)
	require.Equal(t, gitlab.Stored, result)
	require.Equal(t, gitlab.JobState{Status: wire.StatusRunning, Interval: 30 * time.Second}, state)
	require.Equal(t, before, f.job(7))
	require.Equal(t, 1, f.count(`SELECT count(*) FROM claims WHERE confirmed_at = $1 AND contacted_at = $1`, begin))

	f.clock.pass(29 * time.Second)
	_, err = f.first.Authorize(t.Context(), ref, jobtoken.ScopeTrace)
	require.NoError(t, err)
	require.Equal(t, 1, f.count(`SELECT count(*) FROM claims WHERE contacted_at = $1`, begin), "at most every 30 s")
	f.clock.pass(time.Second)
	_, err = f.first.Authorize(t.Context(), ref, jobtoken.ScopeTrace)
	require.NoError(t, err)
	require.Equal(t, 1, f.count(`SELECT count(*) FROM claims WHERE confirmed_at = $1 AND contacted_at = $2`,
		begin, f.clock.now()))
	f.cancel(7)
	state, err = f.first.Authorize(t.Context(), ref, jobtoken.ScopeTrace)
	require.NoError(t, err)
	require.Equal(t, wire.StatusCanceling, state.Status)
}

func TestRunnerSendsATraceAgainWhoseChecksumDiffers(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ref := f.running(7)
	f.append(ref, 0, "hallo")
	result, state, err := f.first.Update(t.Context(), ref, succeeded("hello"))
	require.NoError(t, err)
	require.Equal(t, gitlab.ResendTrace, result)
	require.Equal(t, wire.StatusRunning, state.Status)
	require.Equal(t, job.Running, f.job(7).State)
	require.Equal(t, "hallo", f.trace(7), "it is read until it is sent again")
	f.append(ref, 0, "hel")
	require.Equal(t, "hallo", f.trace(7), "a trace never shrinks")
	f.append(ref, 3, "lo")
	result, _, err = f.first.Update(t.Context(), ref, succeeded("hello"))
	require.NoError(t, err)
	require.Equal(t, gitlab.Stored, result)
	require.Equal(t, "hello", f.trace(7))
	require.Equal(t, 5, f.count(`SELECT sum(length(data)) FROM trace_parts`), "only the final one is kept")
}

func TestRunnerThatNeverSendsItsChecksumRightEndsItsJobNevertheless(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ref := f.running(7)
	for range 10 {
		f.append(ref, 0, "x")
		result, _, err := f.first.Update(t.Context(), ref, report(1, 1_000_000))
		require.NoError(t, err)
		if result == gitlab.Stored {
			require.Equal(t, job.Success, f.job(7).State)
			return
		}
	}
	require.Fail(t, "the job never ends")
}

func TestJobEndsWithItsFollowersOrNotAtAll(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ref := f.running(7)
	f.append(ref, 0, "hello")
	before := f.count(`SELECT count(*) FROM outbox`)
	f.followers.broken = errBroken
	_, _, err := f.first.Update(t.Context(), ref, succeeded("hello"))
	require.ErrorIs(t, err, errBroken)
	require.Equal(t, job.Running, f.job(7).State)
	require.Equal(t, before, f.count(`SELECT count(*) FROM outbox`))
	f.append(ref, 5, "!")
	f.followers.broken = nil
	result, _, err := f.first.Update(t.Context(), ref, succeeded("hello!"))
	require.NoError(t, err)
	require.Equal(t, gitlab.Stored, result)
	require.Equal(t, "hello!", f.trace(7))
}

// TestOfManyResultsOneCounts sends different results on two replicas at once.
func TestOfManyResultsOneCounts(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ref := f.running(7)
	replicas := []*replica{f.first, f.replica()}
	var group sync.WaitGroup
	var mu sync.Mutex
	seen := map[wire.JobStatus]int{}
	for i := range 16 {
		group.Go(func() {
			update := wire.UpdateRequest{State: wire.UpdateSuccess}
			if i%4 > 1 {
				update.State = wire.UpdateFailed
			}
			result, state, err := replicas[i%2].Update(t.Context(), ref, update)
			if err != nil || result != gitlab.Stored {
				t.Error(result, err)
			}
			mu.Lock()
			defer mu.Unlock()
			seen[state.Status]++
		})
	}
	group.Wait()
	require.Len(t, seen, 1, "all get the same result")
	require.Len(t, f.followers.ended, 1)
	require.Equal(t, 1, f.count(`SELECT count(*) FROM outbox WHERE subject LIKE '%.finished'`))
}

func TestJobWithoutDefinitionEndsAsReported(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ref := f.running(7)
	f.append(ref, 0, "hello sword")
	f.exec(`DELETE FROM definitions`)
	_, _, err := f.first.AppendTrace(t.Context(), ref, 11, []byte("fish"))
	require.True(t, fault.Is(err, errcode.Internal), "nothing is stored that cannot be masked: %v", err)
	_, _, err = f.first.Update(t.Context(), ref, succeeded("hello swordfish"))
	require.NoError(t, err)
	require.Equal(t, job.Success, f.job(7).State)
	require.Equal(t, "hello *****", f.trace(7))
}

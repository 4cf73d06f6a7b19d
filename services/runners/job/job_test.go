package job_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/runners/job"
)

var now = time.Date(2026, 3, 2, 10, 40, 12, 417_900_000, time.UTC)

func in(state job.State) job.Job {
	return job.Job{
		ID: 7, PipelineID: 3, ProjectID: 4, OrganizationID: 1, Name: "test", Stage: "test", Tags: []string{"linux"},
		Timeout: time.Hour, State: state, Revision: 5, Attempt: 1,
	}
}

// transitions are all methods that change a job.
func transitions() map[string]func(job.Job) (job.Change, error) {
	return map[string]func(job.Job) (job.Change, error){
		"prepare": func(j job.Job) (job.Change, error) { return j.Prepare(job.Preparation{}, now) },
		"enqueue": func(j job.Job) (job.Change, error) { return j.Enqueue(now) },
		"skip":    func(j job.Job) (job.Change, error) { return j.Skip(now) },
		"take":    func(j job.Job) (job.Change, error) { return j.Take(job.Claim{RunnerID: 31, ManagerID: 77}, now) },
		"release": func(j job.Job) (job.Change, error) { return j.Release(now) },
		"succeed": func(j job.Job) (job.Change, error) { return j.Finish(job.Result{}, now) },
		"end badly": func(j job.Job) (job.Change, error) {
			return j.Finish(job.Result{Reason: job.ScriptFailure, ExitCode: 2}, now)
		},
		"fail":   func(j job.Job) (job.Change, error) { return j.Fail(job.StuckOrTimeout, now) },
		"cancel": func(j job.Job) (job.Change, error) { return j.Cancel(5, now) },
		"move":   func(j job.Job) (job.Change, error) { return j.Move(now) },
		"arrive": func(j job.Job) (job.Change, error) { return j.Arrive(now) },
		"retry": func(j job.Job) (job.Change, error) {
			replaced, _, err := j.Retry(8, now)
			return replaced, err
		},
	}
}

func TestTransitionsArePossibleOnlyInTheirStates(t *testing.T) {
	t.Parallel()
	possible := map[string]map[job.State]job.State{
		"prepare":   {job.Created: job.Preparing, job.Preparing: job.Preparing},
		"enqueue":   {job.Created: job.Pending, job.Preparing: job.Pending},
		"skip":      {job.Created: job.Skipped},
		"take":      {job.Pending: job.Running},
		"release":   {job.Running: job.Pending},
		"succeed":   {job.Running: job.Success, job.Canceling: job.Canceled},
		"end badly": {job.Running: job.Failed, job.Canceling: job.Canceled},
		"fail": {
			job.Created: job.Failed, job.Preparing: job.Failed, job.Pending: job.Failed, job.Running: job.Failed,
			job.Canceling: job.Canceled,
		},
		"cancel": {
			job.Created: job.Canceled, job.Preparing: job.Canceled, job.Pending: job.Canceled, job.Running: job.Canceling,
			job.Canceling: job.Canceling,
		},
		"retry": {
			job.Success: job.Success, job.Failed: job.Failed, job.Canceled: job.Canceled, job.Skipped: job.Skipped,
		},
	}
	stays := map[job.State]job.State{}
	for _, state := range job.States() {
		if !state.Active() {
			stays[state] = state
		}
	}
	possible["move"], possible["arrive"] = stays, stays
	for name, change := range transitions() {
		for _, state := range job.States() {
			before := in(state)
			got, err := change(before)
			want, ok := possible[name][state]
			if !ok {
				var refused *job.TransitionError
				require.ErrorAs(t, err, &refused, "%s a job that is %s", name, state)
				require.Equal(t, state, refused.State)
				require.Zero(t, got)
				continue
			}
			require.NoError(t, err, "%s a job that is %s", name, state)
			require.Equal(t, want, got.Job.State, "%s a job that is %s", name, state)
			if got.Event == "" {
				require.Equal(t, before, got.Job, "a change without an event changes nothing")
				continue
			}
			require.Equal(t, before.Revision+1, got.Job.Revision)
			require.Equal(t, now.Truncate(time.Millisecond), got.At)
			if !slices.Contains([]string{"retry", "move", "arrive"}, name) {
				require.Equal(t, want.Final(), !got.Job.FinishedAt.IsZero())
			}
		}
	}
}

func TestJobGoesThroughAClaimThatIsReleased(t *testing.T) {
	t.Parallel()
	created := job.Create(job.Job{ID: 7, Timeout: time.Hour}, now)
	require.Equal(t, job.EventCreated, created.Event)
	require.EqualValues(t, 1, created.Job.Revision)
	require.Equal(t, 1, created.Job.Attempt)
	pending, err := created.Job.Enqueue(now)
	require.NoError(t, err)
	running, err := pending.Job.Take(job.Claim{RunnerID: 31, ManagerID: 77, MaximumTimeout: time.Minute}, now)
	require.NoError(t, err)
	require.Equal(t, time.Minute, running.Job.RunTimeout)
	require.Equal(t, 1, running.Job.Claims)
	released, err := running.Job.Release(now.Add(time.Minute))
	require.NoError(t, err)
	require.Equal(t, job.EventReleased, released.Event)
	require.Zero(t, released.Job.RunnerID)
	require.Zero(t, released.Job.StartedAt)
	again, err := released.Job.Take(job.Claim{RunnerID: 32, ManagerID: 78}, now)
	require.NoError(t, err)
	require.Equal(t, 2, again.Job.Claims)
	require.Equal(t, time.Hour, again.Job.RunTimeout)
	require.Equal(t, now.Truncate(time.Millisecond), again.Job.StartedAt)
}

func TestRetryIsALinkedJobWithTheSameDefinition(t *testing.T) {
	t.Parallel()
	failed := in(job.Failed)
	failed.Reason, failed.ExitCode, failed.RunnerID, failed.Claims = job.ScriptFailure, 2, 31, 1
	failed.Policy = job.Policy{Retries: 2}
	replaced, created, err := failed.Retry(8, now)
	require.NoError(t, err)
	require.EqualValues(t, 8, replaced.Job.RetriedBy)
	require.Equal(t, job.EventRetried, replaced.Event)
	require.Equal(t, job.Job{
		ID: 8, PipelineID: 3, ProjectID: 4, OrganizationID: 1, Name: "test", Stage: "test", Tags: []string{"linux"},
		Timeout: time.Hour, State: job.Created, Revision: 1, Attempt: 2, RetryOf: 7, Policy: job.Policy{Retries: 2},
		CreatedAt: now.Truncate(time.Millisecond),
	}, created.Job)
	_, _, err = replaced.Job.Retry(9, now)
	require.ErrorContains(t, err, "job 7 is failed: it is not possible to retry it")
}

func TestAllowedFailures(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		policy job.Policy
		reason job.FailureReason
		code   int
		want   bool
	}{
		"no policy":                    {job.Policy{}, job.ScriptFailure, 1, false},
		"any failure":                  {job.Policy{AllowFailure: true}, job.RunnerSystemFailure, 0, true},
		"this exit code":               {job.Policy{AllowExitCodes: []int{137}}, job.ScriptFailure, 137, true},
		"another exit code":            {job.Policy{AllowExitCodes: []int{137}}, job.ScriptFailure, 1, false},
		"exit code of another failure": {job.Policy{AllowExitCodes: []int{0}}, job.StuckOrTimeout, 0, false},
		"denied":                       {job.Policy{AllowDeniedAdmission: true}, job.DeniedAdmission, 0, true},
		"denied without permission":    {job.Policy{AllowExitCodes: []int{0}}, job.DeniedAdmission, 0, false},
		"another failure than denied":  {job.Policy{AllowDeniedAdmission: true}, job.ScriptFailure, 1, false},
	} {
		require.Equal(t, test.want, test.policy.Allows(test.reason, test.code), name)
	}
}

func TestReasonsThatRunnersCannotReportAreUnknown(t *testing.T) {
	t.Parallel()
	require.Equal(t, job.ScriptFailure, job.ReportedReason(""))
	require.Equal(t, job.ImagePullFailure, job.ReportedReason("image_pull_failure"))
	require.Equal(t, job.UnknownFailure, job.ReportedReason("denied_admission"))
	require.Equal(t, job.UnknownFailure, job.ReportedReason("no reason at all"))
}

func TestLastChangeHasTheEventOfTheState(t *testing.T) {
	t.Parallel()
	for name, change := range transitions() {
		for _, state := range job.States() {
			done, err := change(in(state))
			if err != nil || slices.Contains([]job.Event{"", job.EventReleased, job.EventMoved, job.EventArrived}, done.Event) {
				continue
			}
			last := done.Job.Last()
			require.Equal(t, done.Event, last.Event, name)
			require.Equal(t, done.Job, last.Job)
		}
	}
}

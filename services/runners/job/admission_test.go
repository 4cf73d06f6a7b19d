package job_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/runners/job"
)

var (
	stamped = now.Truncate(time.Millisecond)
	later   = now.Add(time.Second)
)

func preparing(t *testing.T) job.Job {
	t.Helper()
	c, err := in(job.Created).Prepare(job.Preparation{UserID: 5}, now)
	require.NoError(t, err)
	require.Equal(t, job.EventPreparing, c.Event)
	require.Equal(t, int64(5), c.Preparation.UserID)
	require.Equal(t, stamped, c.Job.PreparingSince)
	return c.Job
}

func TestDecisionIsAppliedOnceToThePreparationThatItNames(t *testing.T) {
	t.Parallel()
	j := preparing(t)
	d := job.Decision{
		Preparation: j.Revision, Outcome: job.Admitted, Tags: []string{"zone_a"}, AcceptedRunners: []int64{31, 32},
		RejectedRunners: []int64{32}, Reason: "zones: user 5 is in zone_a",
	}
	changes := j.Decide(d, later)
	require.Len(t, changes, 2)
	require.Equal(t, job.EventAdmitted, changes[0].Event)
	require.Equal(t, job.Preparing, changes[0].Job.State)
	require.Equal(t, job.EventPending, changes[1].Event)
	admitted := changes[1].Job
	require.Equal(t, job.Pending, admitted.State)
	require.Equal(t, j.Revision+2, admitted.Revision)
	require.Equal(t, stamped.Add(time.Second), admitted.PendingSince)
	require.Equal(t, []string{"zone_a"}, admitted.Tags)
	require.Equal(t, &job.Admission{
		Preparation: j.Revision, OriginalTags: []string{"linux"}, AcceptedRunners: []int64{31, 32},
		RejectedRunners: []int64{32}, Reason: "zones: user 5 is in zone_a",
	}, admitted.Admission)
	require.Equal(t, []string{"linux"}, j.Tags)

	require.Empty(t, admitted.Decide(d, now), "a repeated decision")
	require.Empty(t, changes[0].Job.Decide(d, now))
	d.Preparation--
	require.Empty(t, j.Decide(d, now), "a decision about another preparation")
	for _, state := range job.States() {
		if state != job.Preparing {
			require.Empty(t, in(state).Decide(job.Decision{Preparation: 5, Outcome: job.Admitted}, now), state)
		}
	}
}

func TestWhatIsNotAdmittedFails(t *testing.T) {
	t.Parallel()
	for outcome, reason := range map[job.Outcome]job.FailureReason{
		job.Denied: job.DeniedAdmission, job.TimedOut: job.AdmissionTimeout, "": job.DeniedAdmission,
		"unknown": job.DeniedAdmission,
	} {
		j := preparing(t)
		d := job.Decision{Preparation: j.Revision, Outcome: outcome, Tags: []string{"x"}, Reason: "not today"}
		changes := j.Decide(d, now)
		require.Len(t, changes, 1)
		failed := changes[0].Job
		require.Equal(t, job.EventRejected, changes[0].Event)
		require.Equal(t, job.Failed, failed.State)
		require.Equal(t, reason, failed.Reason)
		require.Equal(t, stamped, failed.FinishedAt)
		require.Equal(t, []string{"linux"}, failed.Tags, "changes of tags are ignored")
		require.Equal(t, "not today", failed.Admission.Reason)
		require.Equal(t, changes[0], failed.Last())
		require.False(t, failed.FailureAllowed())
		failed.Policy.AllowDeniedAdmission = true
		require.True(t, failed.FailureAllowed())
	}
}

func TestRetryBeginsWithTheTagsOfTheDefinition(t *testing.T) {
	t.Parallel()
	j := preparing(t)
	d := job.Decision{Preparation: j.Revision, Outcome: job.Admitted, Tags: []string{"a", "b"}}
	admitted := j.Decide(d, now)[1].Job
	taken, err := admitted.Take(job.Claim{RunnerID: 31}, now)
	require.NoError(t, err)
	ended, err := taken.Job.Finish(job.Result{Reason: job.ScriptFailure}, now)
	require.NoError(t, err)
	_, created, err := ended.Job.Retry(8, now)
	require.NoError(t, err)
	require.Equal(t, []string{"linux"}, created.Job.Tags)
	require.Nil(t, created.Job.Admission)
	require.Zero(t, created.Job.PreparingSince)
}

func TestOnlyAcceptedRunnersTakeTheJob(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		admission *job.Admission
		want      bool
	}{
		"no admission":          {nil, true},
		"no restriction":        {&job.Admission{}, true},
		"accepted":              {&job.Admission{AcceptedRunners: []int64{30, 31}}, true},
		"others accepted":       {&job.Admission{AcceptedRunners: []int64{30}}, false},
		"rejected":              {&job.Admission{RejectedRunners: []int64{31}}, false},
		"others rejected":       {&job.Admission{RejectedRunners: []int64{30}}, true},
		"accepted and rejected": {&job.Admission{AcceptedRunners: []int64{31}, RejectedRunners: []int64{31}}, false},
	} {
		j := in(job.Pending)
		j.Admission = c.admission
		_, err := j.Take(job.Claim{RunnerID: 31, ManagerID: 77}, now)
		if c.want {
			require.NoError(t, err, name)
			continue
		}
		require.EqualError(t, err, "job 7: admission does not accept runner 31", name)
	}
}

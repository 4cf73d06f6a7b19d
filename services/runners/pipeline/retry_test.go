package pipeline_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/pipeline"
)

func TestShouldRetry(t *testing.T) {
	t.Parallel()
	some := job.Policy{Retries: 1, RetryWhen: []job.FailureReason{job.RunnerSystemFailure, job.StuckOrTimeout}}
	for name, test := range map[string]struct {
		policy job.Policy
		runs   int
		reason job.FailureReason
		want   bool
	}{
		"no retries":                 {job.Policy{}, 1, job.ScriptFailure, false},
		"first failure":              {job.Policy{Retries: 2}, 1, job.ScriptFailure, true},
		"second failure":             {job.Policy{Retries: 2}, 2, job.ScriptFailure, true},
		"third failure":              {job.Policy{Retries: 2}, 3, job.ScriptFailure, false},
		"a reason of the policy":     {some, 1, job.StuckOrTimeout, true},
		"another reason":             {some, 1, job.ScriptFailure, false},
		"a reason after all retries": {some, 2, job.StuckOrTimeout, false},
		"denied":                     {job.Policy{Retries: 2}, 1, job.DeniedAdmission, false},
		"canceled":                   {job.Policy{Retries: 2}, 1, job.CanceledByRunner, false},
		"denied is never a reason": {
			job.Policy{Retries: 2, RetryWhen: []job.FailureReason{job.DeniedAdmission}}, 1, job.DeniedAdmission, false,
		},
		"allowed failures retry too": {job.Policy{Retries: 1, AllowFailure: true}, 1, job.ScriptFailure, true},
	} {
		require.Equal(t, test.want, pipeline.ShouldRetry(test.policy, test.runs, test.reason), name)
	}
}

func TestRetryDelayDoublesUpToFiveMinutes(t *testing.T) {
	t.Parallel()
	for runs, want := range map[int]time.Duration{
		-1: 10 * time.Second, 0: 10 * time.Second, 1: 10 * time.Second, 2: 20 * time.Second, 3: 40 * time.Second,
		4: 80 * time.Second, 5: 160 * time.Second, 6: 5 * time.Minute, 7: 5 * time.Minute, math.MaxInt: 5 * time.Minute,
	} {
		require.Equal(t, want, pipeline.RetryDelay(runs), runs)
	}
}

// failedPipeline has a failure in a and one in c, with the skipped jobs after them.
func failedPipeline() []pipeline.Status {
	return []pipeline.Status{
		status("a", 1, job.Failed),
		status("b", 1, job.Success),
		status("c", 1, job.Failed, allowed),
		status("after a", 2, job.Skipped, needs("a")),
		status("after after a", 2, job.Skipped, needs("after a", "b")),
		status("after c", 2, job.Success, needs("c")),
		status("after b", 2, job.Skipped, needs("b"), when(job.OnFailure)),
		status("stage", 2, job.Skipped),
		status("cleanup", 3, job.Success, when(job.Always)),
		status("report", 3, job.Canceled),
		status("end", 3, job.Skipped, needs("report")),
	}
}

func TestRetryOfAJobResetsTheSkippedJobsAfterIt(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]pipeline.Attempts{
		"a":       {Retried: []string{"a"}, Reset: []string{"after a", "after after a", "stage"}},
		"b":       {Retried: []string{"b"}, Reset: []string{"after after a", "after b", "stage"}},
		"c":       {Retried: []string{"c"}, Reset: []string{"stage"}},
		"report":  {Retried: []string{"report"}, Reset: []string{"end"}},
		"after c": {Retried: []string{"after c"}},
	} {
		got, err := pipeline.Retry(failedPipeline(), name)
		require.NoError(t, err)
		require.Equal(t, want, got, name)
	}
}

func TestRetryOfAPipelineRetriesAllThatFailedOrWasCanceled(t *testing.T) {
	t.Parallel()
	require.Equal(t, pipeline.Attempts{
		Retried: []string{"a", "report"}, Reset: []string{"after a", "after after a", "stage", "end"},
	}, pipeline.RetryFailed(failedPipeline()))
	require.Zero(t, pipeline.RetryFailed([]pipeline.Status{
		status("a", 1, job.Success), status("b", 2, job.Skipped, when(job.OnFailure)), status("c", 2, job.Running),
	}))
}

func TestRetryOfACopyResetsTheJobsThatNeedItsGroup(t *testing.T) {
	t.Parallel()
	got, err := pipeline.Retry([]pipeline.Status{
		status("a 1/2", 1, job.Success, of("a")), status("a 2/2", 1, job.Failed, of("a")),
		status("b", 1, job.Skipped, needs("a")),
	}, "a 2/2")
	require.NoError(t, err)
	require.Equal(t, pipeline.Attempts{Retried: []string{"a 2/2"}, Reset: []string{"b"}}, got)
}

func TestOnlyJobsThatEndedAreRetried(t *testing.T) {
	t.Parallel()
	for state, want := range map[job.State]string{
		job.Created: "created: wait until it ended, or cancel it", job.Preparing: "is preparing", job.Pending: "is pending",
		job.Running: "is running", job.Canceling: "is canceling", job.Skipped: "was skipped: retry the job before it",
		job.Success: "", job.Failed: "", job.Canceled: "",
	} {
		_, err := pipeline.Retry([]pipeline.Status{status("a", 1, state)}, "a")
		if want == "" {
			require.NoError(t, err)
			continue
		}
		var refused *pipeline.NotRetryableError
		require.ErrorAs(t, err, &refused)
		require.Equal(t, state, refused.State)
		require.ErrorContains(t, err, want)
	}
	_, err := pipeline.Retry(nil, "a")
	require.EqualError(t, err, `job "a": the pipeline has no job of this name`)
}

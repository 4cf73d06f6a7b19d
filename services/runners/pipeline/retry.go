package pipeline

import (
	"fmt"
	"slices"
	"time"

	"lockstep.internal/services/runners/job"
)

// ShouldRetry reports whether a job that failed is retried without a user. runs is how many attempts of the job were
// not skipped, this one included. A job that was canceled or not admitted is never retried.
//
// The new attempt must exist before the next call of [Advance], which otherwise decides with the failure. Until
// [RetryDelay] has passed, it is delayed.
func ShouldRetry(policy job.Policy, runs int, reason job.FailureReason) bool {
	switch {
	case reason == job.DeniedAdmission || reason == job.AdmissionTimeout || reason == job.CanceledByRunner:
		return false
	case runs > policy.Retries:
		return false
	default:
		return len(policy.RetryWhen) == 0 || slices.Contains(policy.RetryWhen, reason)
	}
}

const (
	firstDelay = 10 * time.Second
	maxDelay   = 5 * time.Minute
)

// RetryDelay returns how long the next attempt waits after the given number of runs: 10 seconds after the first one,
// and twice as long after each, at most 5 minutes.
func RetryDelay(runs int) time.Duration {
	delay := firstDelay
	for i := 1; i < runs && delay < maxDelay; i++ {
		delay *= 2
	}
	return min(delay, maxDelay)
}

// Attempts are the names of the jobs that get a new attempt, in the order of the jobs.
type Attempts struct {
	// Retried jobs ran or were canceled.
	Retried []string
	// Reset jobs were skipped because of jobs that are retried or reset. [Advance] decides about them again.
	Reset []string
}

// NotRetryableError reports a job that cannot be retried.
type NotRetryableError struct {
	Name string
	// State of the job; empty if the pipeline has no such job.
	State job.State
}

func (e *NotRetryableError) Error() string {
	switch e.State {
	case "":
		return fmt.Sprintf("job %q: the pipeline has no job of this name", e.Name)
	case job.Skipped:
		return fmt.Sprintf("job %q was skipped: retry the job before it that failed", e.Name)
	default:
		return fmt.Sprintf("job %q is %s: wait until it ended, or cancel it", e.Name, e.State)
	}
}

// Retry returns the new attempts after a user retries the named job, which succeeded, failed or was canceled.
// Otherwise it returns a *[NotRetryableError]. Jobs after it that ran do not run again.
func Retry(jobs []Status, name string) (Attempts, error) {
	i := slices.IndexFunc(jobs, func(s Status) bool { return s.Name == name })
	if i < 0 {
		return Attempts{}, &NotRetryableError{Name: name}
	}
	if state := jobs[i].State; !state.Final() || state == job.Skipped {
		return Attempts{}, &NotRetryableError{Name: name, State: state}
	}
	return attempts(jobs, func(s *Status) bool { return s.Name == name }), nil
}

// RetryFailed returns the new attempts after a user retries a pipeline: of all jobs that failed or were canceled, if
// that is not allowed. It returns none if there are no such jobs.
func RetryFailed(jobs []Status) Attempts {
	return attempts(jobs, func(s *Status) bool { return s.outcome().has(failed | canceled) })
}

func attempts(jobs []Status, retried func(*Status) bool) Attempts {
	t := newTraversal(jobs)
	t.decide = func(i int, before func() outcomes) outcomes {
		s := &jobs[i]
		switch {
		case retried(s):
			return waiting
		case s.State == job.Skipped && before().has(waiting):
			return waiting
		default:
			return s.outcome()
		}
	}
	var out Attempts
	for i := range jobs {
		switch s := &jobs[i]; {
		case retried(s):
			out.Retried = append(out.Retried, s.Name)
		case s.State == job.Skipped && t.outcome(i).has(waiting):
			out.Reset = append(out.Reset, s.Name)
		}
	}
	return out
}

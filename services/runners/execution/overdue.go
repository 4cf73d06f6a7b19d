package execution

import (
	"time"

	"lockstep.internal/services/runners/job"
)

// Rules are how long the service waits for runners.
type Rules struct {
	// Confirm is the time until the first request of a runner that took a job. Defaults to 2 min.
	Confirm time.Duration
	// Silence is the time without a request after which a running job fails. Defaults to 1 h.
	Silence time.Duration
	// Cancel is the time without a request after which a job that is being canceled is canceled. Defaults to 10 min.
	Cancel time.Duration
}

// DefaultRules returns the defaults.
func DefaultRules() Rules {
	return Rules{Confirm: 2 * time.Minute, Silence: time.Hour, Cancel: 10 * time.Minute}
}

// Overdue returns the change that is due for a job that a runner has, and false if none is. Times that are exactly
// reached count. s needs the job and the claim only.
//
//   - The runner never reported: the job is released, because the runner did not get it.
//   - The token has expired, which is some time after the timeout of the job: the job fails with a timeout.
//   - The runner does not report any more: the job fails, or is canceled.
//   - The claim is missing, so that no runner can report: the job fails.
//
// A job that is being canceled is canceled instead of released or failed.
func Overdue(s Snapshot, now time.Time, rules Rules) (job.Change, bool) {
	if !s.Job.State.Active() {
		return job.Change{}, false
	}
	c := s.Claim
	if c == nil || c.Number != s.Job.Claims {
		return fail(s.Job, job.DataIntegrity, now, since(s.Job.StartedAt, now) >= rules.Confirm)
	}
	silence := since(c.lastContact(), now)
	switch {
	case !now.Before(c.ExpiresAt):
		return fail(s.Job, job.ExecutionTimeout, now, true)
	case c.ConfirmedAt.IsZero() && s.Job.State == job.Running:
		released, err := s.Job.Release(now)
		return released, err == nil && silence >= rules.Confirm
	case c.ConfirmedAt.IsZero():
		return fail(s.Job, job.StuckOrTimeout, now, silence >= rules.Confirm)
	case s.Job.State == job.Canceling:
		return fail(s.Job, job.StuckOrTimeout, now, silence >= rules.Cancel)
	default:
		return fail(s.Job, job.StuckOrTimeout, now, silence >= rules.Silence)
	}
}

// fail ends the job if it is due.
func fail(j job.Job, reason job.FailureReason, now time.Time, due bool) (job.Change, bool) {
	change, err := j.Fail(reason, now)
	return change, err == nil && due
}

func since(t, now time.Time) time.Duration { return now.Sub(t) }

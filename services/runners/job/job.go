package job

import (
	"slices"
	"time"
)

// Job is one attempt to execute a definition. Times are UTC, with milliseconds; the zero time means never.
type Job struct {
	ID, PipelineID, ProjectID, OrganizationID int64

	// Name is unique in the pipeline among the jobs that were not retried.
	Name string
	// Stage of the pipeline.
	Stage string
	// Tags that a runner must have, sorted, as admission has changed them.
	Tags []string
	// Protected jobs may use protected runners.
	Protected bool
	// Timeout is how long the job may run, in whole seconds.
	Timeout time.Duration
	Policy  Policy

	State State
	// Revision is the number of the transition: 1 for created, and one more for each.
	Revision int64
	// Attempt is 1 for the first job, and one more for each retry.
	Attempt int
	// RetryOf is the job that this one replaces, RetriedBy the one that replaces it; 0 for none.
	RetryOf, RetriedBy int64

	// Claims counts how often a runner took the job.
	Claims int
	// RunnerID and ManagerID are the runner and its process that took the job last; 0 for none.
	RunnerID, ManagerID int64
	// RunTimeout is the timeout on that runner, which may shorten Timeout; 0 without a runner.
	RunTimeout time.Duration
	// Reason of a failed job.
	Reason   FailureReason
	ExitCode int
	// Admission is what admission decided; nil before, and without admission.
	Admission *Admission
	// CanceledBy is the user who canceled the job; 0 for nobody, or the service.
	CanceledBy int64

	CreatedAt, PreparingSince, PendingSince, StartedAt, FinishedAt time.Time
}

// Policy tells how a failure of the job is treated.
type Policy struct {
	// Retries is how often a failed job is retried; RetryWhen are the reasons for it, none for all.
	Retries   int
	RetryWhen []FailureReason
	// AllowFailure: the pipeline continues after a failure.
	AllowFailure bool
	// AllowExitCodes: the pipeline continues after a script that ends with one of these.
	AllowExitCodes []int
	// AllowDeniedAdmission: the pipeline continues if admission denies the job.
	AllowDeniedAdmission bool
}

// Allows reports whether the pipeline continues after a failure with this reason and exit code.
func (p Policy) Allows(reason FailureReason, exitCode int) bool {
	switch {
	case p.AllowFailure:
		return true
	case reason == DeniedAdmission || reason == AdmissionTimeout:
		return p.AllowDeniedAdmission
	default:
		return reason == ScriptFailure && slices.Contains(p.AllowExitCodes, exitCode)
	}
}

// FailureAllowed reports whether the job failed and the pipeline continues.
func (j Job) FailureAllowed() bool { return j.State == Failed && j.Policy.Allows(j.Reason, j.ExitCode) }

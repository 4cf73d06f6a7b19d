package job

import "slices"

// State of a job.
type State string

// The states.
const (
	// Created jobs wait for the jobs that they need.
	Created State = "created"
	// Preparing jobs wait for admission.
	Preparing State = "preparing"
	// Pending jobs wait for a runner.
	Pending State = "pending"
	// Running jobs are with a runner.
	Running State = "running"
	// Canceling jobs were canceled while they ran: the runner executes after_script and reports the end.
	Canceling State = "canceling"
	Success   State = "success"
	Failed    State = "failed"
	Canceled  State = "canceled"
	// Skipped jobs never run, because of how other jobs ended.
	Skipped State = "skipped"
)

// States returns all states, in the order of a job's life.
func States() []State {
	return []State{Created, Preparing, Pending, Running, Canceling, Success, Failed, Canceled, Skipped}
}

// Final reports whether the state is the last one of a job.
func (s State) Final() bool { return slices.Contains([]State{Success, Failed, Canceled, Skipped}, s) }

// Active reports whether a runner has the job.
func (s State) Active() bool { return s == Running || s == Canceling }

// FailureReason tells why a job failed, as in GitLab's API where that has the reason.
type FailureReason string

// The reasons.
const (
	ScriptFailure       FailureReason = "script_failure"
	RunnerSystemFailure FailureReason = "runner_system_failure"
	ExecutionTimeout    FailureReason = "job_execution_timeout"
	ImagePullFailure    FailureReason = "image_pull_failure"
	ConfigurationError  FailureReason = "configuration_error"
	RunnerUnsupported   FailureReason = "runner_unsupported"
	UnknownFailure      FailureReason = "unknown_failure"
	CanceledByRunner    FailureReason = "job_canceled"
	// MissingDependency: an artifact that the job needs is not there.
	MissingDependency FailureReason = "missing_dependency_failure"
	// StuckOrTimeout: the job waited for a runner, or its runner did not report, for too long.
	StuckOrTimeout FailureReason = "stuck_or_timeout_failure"
	// NoMatchingRunner: no runner of the cell could ever take the job.
	NoMatchingRunner FailureReason = "no_matching_runner"
	DeniedAdmission  FailureReason = "denied_admission"
	// AdmissionTimeout: admission did not decide in time.
	AdmissionTimeout FailureReason = "admission_timeout"
	// DataIntegrity: what the service stored of the job cannot be read.
	DataIntegrity FailureReason = "data_integrity_failure"
)

// ReasonsOfRunners returns the reasons that a runner may report. Others become [UnknownFailure].
func ReasonsOfRunners() []FailureReason {
	return []FailureReason{
		ScriptFailure, RunnerSystemFailure, ExecutionTimeout, ImagePullFailure, ConfigurationError, RunnerUnsupported,
		UnknownFailure, CanceledByRunner,
	}
}

// ReportedReason returns the reason that a runner reported, or [UnknownFailure] if runners cannot report it. No reason
// is [ScriptFailure].
func ReportedReason(text string) FailureReason {
	switch reason := FailureReason(text); {
	case text == "":
		return ScriptFailure
	case slices.Contains(ReasonsOfRunners(), reason):
		return reason
	default:
		return UnknownFailure
	}
}

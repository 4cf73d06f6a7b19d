package wire

import "time"

// Headers of requests.
const (
	// HeaderRunnerToken has the runner's token, since runner 17.11.
	HeaderRunnerToken = "RUNNER-TOKEN"
	// HeaderJobToken has the job's token: for traces and artifacts always, for updates since runner 17.11.
	HeaderJobToken = "JOB-TOKEN"
	// HeaderPrivateToken has the token of the runner or of the job, up to runner 17.10.
	HeaderPrivateToken = "PRIVATE-TOKEN"
	// HeaderContentRange says which bytes of the trace a request has; see [ContentRange].
	HeaderContentRange = "Content-Range"
)

// Headers of answers.
const (
	// HeaderLastUpdate has what the runner repeats as last_update in its next request for a job; see [LastUpdate].
	HeaderLastUpdate = "X-GitLab-Last-Update"
	// HeaderJobStatus has a [JobStatus]. Every answer about a job has it.
	HeaderJobStatus = "Job-Status"
	// HeaderTraceInterval has the time between two requests of a running job; see [Interval].
	HeaderTraceInterval = "X-GitLab-Trace-Update-Interval"
	// HeaderRange has the stored size of a trace; see [StoredRange].
	HeaderRange = "Range"
)

// JobStatus is the state of a job as runners know it.
type JobStatus string

// The values of the header Job-Status. A runner that reads failed or canceled aborts the job. One that reads canceling
// ends the script, runs after_script and reports the end.
const (
	StatusRunning   JobStatus = "running"
	StatusSuccess   JobStatus = "success"
	StatusFailed    JobStatus = "failed"
	StatusCanceling JobStatus = "canceling"
	StatusCanceled  JobStatus = "canceled"
)

// Interval returns the value of the header X-GitLab-Trace-Update-Interval: whole seconds, at least one.
func Interval(d time.Duration) string {
	return decimal(int64(max(d.Round(time.Second), time.Second) / time.Second))
}

package publish

import (
	"encoding/json"
	"fmt"
	"time"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/runners/job"
)

// data is the content of every event of a job.
type data struct {
	Job events.Job `json:"job"`
}

// dataOf returns the content of the event of a transition.
func dataOf(c job.Change) (any, error) {
	if c.Event != job.EventPreparing {
		return data{Job: encode(c.Job)}, nil
	}
	if c.Preparation == nil {
		return nil, fmt.Errorf("job %d begins to wait for admission without a preparation", c.Job.ID)
	}
	p := c.Preparation
	return events.JobPreparing{
		Job: encode(c.Job), Preparation: int(c.Job.Revision), UserID: int(p.UserID), Ref: p.Ref, Source: p.Source,
		Deadline: p.Deadline, Variables: p.Variables,
	}, nil
}

func encode(j job.Job) events.Job {
	out := events.Job{
		JobID: int(j.ID), PipelineID: int(j.PipelineID), ProjectID: int(j.ProjectID), OrganizationID: int(j.OrganizationID),
		Name: j.Name, Stage: j.Stage, Tags: j.Tags, Protected: j.Protected, State: events.JobState(j.State),
		Revision: int(j.Revision), Attempt: j.Attempt, RetryOf: int(j.RetryOf), RetriedBy: int(j.RetriedBy),
		TimeoutS: seconds(j.Timeout), RunTimeoutS: seconds(j.RunTimeout), Policy: encodePolicy(j.Policy), Claims: j.Claims,
		RunnerID: int(j.RunnerID), ManagerID: int(j.ManagerID), ExitCode: j.ExitCode, CanceledBy: int(j.CanceledBy),
		Admission: encodeAdmission(j.Admission),
		CreatedAt: j.CreatedAt, PreparingSince: optional(j.PreparingSince),
		PendingSince: optional(j.PendingSince), StartedAt: optional(j.StartedAt),
		FinishedAt: optional(j.FinishedAt),
	}
	if j.Reason != "" {
		reason := events.JobFailureReason(j.Reason)
		out.Reason = &reason
	}
	return out
}

func encodeAdmission(a *job.Admission) *events.JobAdmission {
	if a == nil {
		return nil
	}
	return &events.JobAdmission{
		Preparation: int(a.Preparation), OriginalTags: a.OriginalTags, AcceptedRunnerIds: convert[int](a.AcceptedRunners),
		RejectedRunnerIds: convert[int](a.RejectedRunners), Reason: a.Reason,
	}
}

func decodeAdmission(a *events.JobAdmission) *job.Admission {
	if a == nil {
		return nil
	}
	return &job.Admission{
		Preparation: int64(a.Preparation), OriginalTags: a.OriginalTags,
		AcceptedRunners: convert[int64](a.AcceptedRunnerIds), RejectedRunners: convert[int64](a.RejectedRunnerIds),
		Reason: a.Reason,
	}
}

// convert returns the numbers as another type; nil if there are none.
func convert[To, From int | int64](list []From) []To {
	var out []To
	for _, n := range list {
		out = append(out, To(n))
	}
	return out
}

func encodePolicy(p job.Policy) *events.JobPolicy {
	out := events.JobPolicy{
		Retries: p.Retries, AllowFailure: p.AllowFailure, AllowExitCodes: p.AllowExitCodes,
		AllowDeniedAdmission: p.AllowDeniedAdmission,
	}
	for _, reason := range p.RetryWhen {
		out.RetryWhen = append(out.RetryWhen, events.JobFailureReason(reason))
	}
	if out.Retries == 0 && !out.AllowFailure && !out.AllowDeniedAdmission && len(out.AllowExitCodes) == 0 &&
		len(out.RetryWhen) == 0 {
		return nil
	}
	return &out
}

// DecodeJob returns the job of an event's data.
func DecodeJob(content []byte) (job.Job, error) {
	var d data
	if err := json.Unmarshal(content, &d); err != nil {
		return job.Job{}, fmt.Errorf("decode an event of a job: %w", err)
	}
	e := d.Job
	j := job.Job{
		ID: int64(e.JobID), PipelineID: int64(e.PipelineID), ProjectID: int64(e.ProjectID),
		OrganizationID: int64(e.OrganizationID), Name: e.Name, Stage: e.Stage, Tags: e.Tags, Protected: e.Protected,
		State: job.State(e.State), Revision: int64(e.Revision), Attempt: e.Attempt, RetryOf: int64(e.RetryOf),
		RetriedBy: int64(e.RetriedBy), Timeout: duration(e.TimeoutS), RunTimeout: duration(e.RunTimeoutS), Claims: e.Claims,
		RunnerID: int64(e.RunnerID), ManagerID: int64(e.ManagerID), ExitCode: e.ExitCode, CanceledBy: int64(e.CanceledBy),
		Admission: decodeAdmission(e.Admission), CreatedAt: e.CreatedAt, PreparingSince: required(e.PreparingSince),
		PendingSince: required(e.PendingSince), StartedAt: required(e.StartedAt),
		FinishedAt: required(e.FinishedAt),
	}
	if e.Reason != nil {
		j.Reason = job.FailureReason(*e.Reason)
	}
	if p := e.Policy; p != nil {
		j.Policy = job.Policy{
			Retries: p.Retries, AllowFailure: p.AllowFailure, AllowExitCodes: p.AllowExitCodes,
			AllowDeniedAdmission: p.AllowDeniedAdmission,
		}
		for _, reason := range p.RetryWhen {
			j.Policy.RetryWhen = append(j.Policy.RetryWhen, job.FailureReason(reason))
		}
	}
	return j, nil
}

func seconds(d time.Duration) int        { return int(d / time.Second) }
func duration(seconds int) time.Duration { return time.Duration(seconds) * time.Second }

func optional(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func required(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.UTC()
}

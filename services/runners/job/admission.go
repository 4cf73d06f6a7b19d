package job

import (
	"slices"
	"time"
)

// Preparation is what admission needs to know about a job that waits for it, beside the job. Its number is the revision
// of the job.
type Preparation struct {
	// UserID is who created the pipeline; 0 for nobody.
	UserID int64
	// Ref and Source are those of the pipeline.
	Ref, Source string
	// Deadline of the decision.
	Deadline time.Time
	// Variables are the predefined variables, by name. None is masked.
	Variables map[string]string
}

// Outcome of admission.
type Outcome string

// The outcomes.
const (
	// Admitted jobs may run.
	Admitted Outcome = "admitted"
	// Denied jobs fail.
	Denied Outcome = "denied"
	// TimedOut jobs fail, because there was no decision in time.
	TimedOut Outcome = "timeout"
)

// Decision is what admission decided about a preparation of a job.
type Decision struct {
	Preparation int64
	Outcome     Outcome
	// Tags that a runner must have, sorted.
	Tags []string
	// AcceptedRunners are the only runners that may take the job; none for no restriction.
	AcceptedRunners, RejectedRunners []int64
	// Reason for people, in one line. Optional.
	Reason string
}

// Admission is a decision that a job keeps.
type Admission struct {
	Preparation int64
	// OriginalTags are those of the definition, with which a retry begins.
	OriginalTags []string
	// AcceptedRunners are the only runners that may take the job; none for no restriction.
	AcceptedRunners, RejectedRunners []int64
	Reason                           string
}

// Allows reports whether admission lets a runner take the job. A nil Admission allows all.
func (a *Admission) Allows(runnerID int64) bool {
	return a == nil || (len(a.AcceptedRunners) == 0 || slices.Contains(a.AcceptedRunners, runnerID)) &&
		!slices.Contains(a.RejectedRunners, runnerID)
}

// Decide applies a decision. There is no change if the decision is about another preparation, or the job no longer
// waits for admission. What is not admitted fails.
func (j Job) Decide(d Decision, now time.Time) []Change {
	if j.State != Preparing || j.Revision != d.Preparation {
		return nil
	}
	j.Admission = &Admission{
		Preparation: d.Preparation, OriginalTags: j.Tags, AcceptedRunners: d.AcceptedRunners,
		RejectedRunners: d.RejectedRunners, Reason: d.Reason,
	}
	if d.Outcome == Admitted {
		j.Tags = d.Tags
		admitted := j.next(Preparing, EventAdmitted, now)
		return []Change{admitted, admitted.Job.enqueue(now)}
	}
	j.Reason, j.FinishedAt = DeniedAdmission, stamp(now)
	if d.Outcome == TimedOut {
		j.Reason = AdmissionTimeout
	}
	return []Change{j.next(Failed, EventRejected, now)}
}

// originalTags are the tags of the definition.
func (j Job) originalTags() []string {
	if j.Admission != nil {
		return j.Admission.OriginalTags
	}
	return j.Tags
}

// Prerequisite is what a controller of admission decided about a job, or that it has not yet. The JSON has the field
// names of the event.
type Prerequisite struct {
	ControllerID int64  `json:"controller_id"`
	Name         string `json:"name"`
	// Level is project, group or instance.
	Level string `json:"level"`
	// Position in the chain, from 1 on.
	Position int `json:"position"`
	// State is waiting, asked, accepted, rejected, ignored, skipped or failed.
	State string `json:"state"`
	// DryRun decisions have no effect.
	DryRun  bool `json:"dry_run,omitempty"`
	Attempt int  `json:"attempt,omitempty"`
	// AskedAt is the zero time before.
	AskedAt         time.Time `json:"asked_at,omitzero"`
	DurationMS      int64     `json:"duration_ms,omitempty"`
	Reason          string    `json:"reason,omitempty"`
	AddedTags       []string  `json:"added_tags,omitempty"`
	RemovedTags     []string  `json:"removed_tags,omitempty"`
	AcceptedRunners []int64   `json:"accepted_runner_ids,omitempty"`
	RejectedRunners []int64   `json:"rejected_runner_ids,omitempty"`
}

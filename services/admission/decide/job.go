package decide

import (
	"time"

	"lockstep.internal/services/admission/chain"
)

// Subject is the content of the event of a job.
type Subject struct {
	JobID       int64 `json:"job_id"`
	Preparation int64 `json:"preparation"`
	PipelineID  int64 `json:"pipeline_id"`
	ProjectID   int64 `json:"project_id"`
	// OrganizationID is that of the project.
	OrganizationID int64 `json:"organization_id"`
	// UserID and UserLogin are those of the user who created the pipeline.
	UserID    int64  `json:"user_id,omitempty"`
	UserLogin string `json:"user_login,omitempty"`
	Name      string `json:"name"`
	Stage     string `json:"stage,omitempty"`
	Protected bool   `json:"protected,omitempty"`
	Attempt   int64  `json:"attempt"`
	// Tags and Variables go to the chain.
	Tags      []string          `json:"-"`
	Variables map[string]string `json:"-"`
	// BegunAt is when the job began to wait. Deadline is that of the whole admission. Both have columns.
	BegunAt  time.Time `json:"-"`
	Deadline time.Time `json:"-"`
}

// Job is the admission of one job. It is immutable.
type Job struct {
	Subject

	State chain.State
	// Version is that of the stored job.
	Version int64
	// AnswerBy is when the current controller must have decided. The zero time without one.
	AnswerBy time.Time
	// EndedAt is the zero time while admission is open.
	EndedAt time.Time
}

// Open reports whether admission goes on.
func (j *Job) Open() bool { return j.State.Outcome == "" }

// Ask is the question that an open job asks.
type Ask struct {
	chain.Question

	// DueAt is the time to send it.
	DueAt time.Time
}

// PrerequisiteState is the state of a controller for a job.
type PrerequisiteState string

// The states.
const (
	Waiting  PrerequisiteState = "waiting"
	Asked    PrerequisiteState = "asked"
	Accepted PrerequisiteState = "accepted"
	Rejected PrerequisiteState = "rejected"
	Ignored  PrerequisiteState = "ignored"
	Skipped  PrerequisiteState = "skipped"
	Failed   PrerequisiteState = "failed"
)

// Prerequisite is a controller of a job.
type Prerequisite struct {
	chain.Record

	State PrerequisiteState
	// Decided reports whether the controller decides no more about the job.
	Decided bool
}

// Prerequisites returns the controllers of a job, in the order in which they are asked.
func (j *Job) Prerequisites() []Prerequisite {
	var out []Prerequisite
	for _, r := range j.State.Records {
		if r.Verdict != chain.VerdictRetried {
			out = append(out, Prerequisite{Record: r, State: stateOf(r), Decided: true})
		}
	}
	for i, c := range j.State.Waiting {
		p := Prerequisite{
			Record: chain.Record{
				ControllerID: c.ID, Revision: c.Revision, Name: c.Name, Level: c.Level, DryRun: c.Mode == chain.DryRun,
			},
			State: Waiting,
		}
		if i == 0 {
			p.State, p.Attempt, p.AskedAt, p.At = Asked, j.State.Attempt, j.State.AskedAt, j.State.AskedAt
			if n := len(j.State.Records); n > 0 && j.State.Records[n-1].Verdict == chain.VerdictRetried {
				p.Reason = j.State.Records[n-1].Reason
			}
		}
		out = append(out, p)
	}
	return out
}

func stateOf(r chain.Record) PrerequisiteState {
	switch r.Verdict {
	case chain.VerdictAccepted:
		return Accepted
	case chain.VerdictRejected:
		return Rejected
	case chain.VerdictSkipped:
		return Skipped
	case chain.VerdictRetried:
		return Asked
	case chain.VerdictFailed, chain.VerdictTimedOut:
	}
	if r.Effective {
		return Failed
	}
	return Ignored
}

// Changed returns the prerequisites of after that before did not have like this.
func Changed(before, after []Prerequisite) []Prerequisite {
	type key struct {
		controller int64
		state      PrerequisiteState
		attempt    int
		revision   int64
	}
	keyOf := func(p Prerequisite) key { return key{p.ControllerID, p.State, p.Attempt, p.Revision} }
	known := map[key]bool{}
	for _, p := range before {
		known[keyOf(p)] = true
	}
	var out []Prerequisite
	for _, p := range after {
		if !known[keyOf(p)] {
			out = append(out, p)
		}
	}
	return out
}

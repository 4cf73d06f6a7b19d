package job

import (
	"fmt"
	"slices"
	"time"
)

// Event is the name of a transition, the last token of its subject.
type Event string

// The events.
const (
	EventCreated   Event = "created"
	EventPreparing Event = "preparing"
	EventAdmitted  Event = "admitted"
	EventRejected  Event = "rejected"
	EventPending   Event = "pending"
	EventRunning   Event = "running"
	EventReleased  Event = "released"
	EventCanceling Event = "canceling"
	EventCanceled  Event = "canceled"
	EventFinished  Event = "finished"
	EventSkipped   Event = "skipped"
	EventRetried   Event = "retried"
	// EventMoved is the last event of a job in a cell that it leaves, EventArrived the first one in the other cell.
	EventMoved   Event = "moved"
	EventArrived Event = "arrived"
)

// Change is a transition: the job after it, its event, and when it happened.
type Change struct {
	Job   Job
	Event Event
	At    time.Time
	// Preparation is set if the job begins to wait for admission.
	Preparation *Preparation
}

// TransitionError reports a transition that the state of the job does not permit.
type TransitionError struct {
	JobID int64
	State State
	// To is what was attempted, in the infinitive, such as take.
	To string
}

func (e *TransitionError) Error() string {
	return fmt.Sprintf("job %d is %s: it is not possible to %s it", e.JobID, e.State, e.To)
}

// NotAdmittedError reports a runner that admission does not accept for the job.
type NotAdmittedError struct{ JobID, RunnerID int64 }

func (e *NotAdmittedError) Error() string {
	return fmt.Sprintf("job %d: admission does not accept runner %d", e.JobID, e.RunnerID)
}

func (j Job) refuse(to string) (Change, error) {
	return Change{}, &TransitionError{JobID: j.ID, State: j.State, To: to}
}

// next returns the change to a state.
func (j Job) next(state State, event Event, now time.Time) Change {
	j.State = state
	j.Revision++
	return Change{Job: j, Event: event, At: stamp(now)}
}

// Create returns the first change of a job. State, Revision and CreatedAt of the given job are ignored.
func Create(j Job, now time.Time) Change {
	j.State, j.Revision, j.CreatedAt = Created, 1, stamp(now)
	j.Attempt = max(j.Attempt, 1)
	return Change{Job: j, Event: EventCreated, At: j.CreatedAt}
}

// Prepare begins admission of a created job, or begins it again.
func (j Job) Prepare(p Preparation, now time.Time) (Change, error) {
	if j.State != Created && j.State != Preparing {
		return j.refuse("prepare")
	}
	j.PreparingSince = stamp(now)
	c := j.next(Preparing, EventPreparing, now)
	c.Preparation = &p
	return c, nil
}

// Enqueue makes the job wait for a runner.
func (j Job) Enqueue(now time.Time) (Change, error) {
	if j.State != Created && j.State != Preparing {
		return j.refuse("enqueue")
	}
	return j.enqueue(now), nil
}

func (j Job) enqueue(now time.Time) Change {
	j.PendingSince = stamp(now)
	return j.next(Pending, EventPending, now)
}

// Skip ends a job that never runs.
func (j Job) Skip(now time.Time) (Change, error) {
	if j.State != Created {
		return j.refuse("skip")
	}
	j.FinishedAt = stamp(now)
	return j.next(Skipped, EventSkipped, now), nil
}

// Claim is a runner manager that takes a job.
type Claim struct {
	RunnerID, ManagerID int64
	// MaximumTimeout of the runner; 0 for none.
	MaximumTimeout time.Duration
}

// Take gives the job to a runner.
func (j Job) Take(claim Claim, now time.Time) (Change, error) {
	if j.State != Pending {
		return j.refuse("take")
	}
	if !j.Admission.Allows(claim.RunnerID) {
		return Change{}, &NotAdmittedError{JobID: j.ID, RunnerID: claim.RunnerID}
	}
	j.RunnerID, j.ManagerID, j.Claims = claim.RunnerID, claim.ManagerID, j.Claims+1
	j.RunTimeout = TimeoutOn(j.Timeout, claim.MaximumTimeout)
	j.StartedAt = stamp(now)
	return j.next(Running, EventRunning, now), nil
}

// Release lets a job wait again whose runner never reported. The token of the claim must be void from then on.
func (j Job) Release(now time.Time) (Change, error) {
	if j.State != Running {
		return j.refuse("release")
	}
	j.RunnerID, j.ManagerID, j.RunTimeout = 0, 0, 0
	j.StartedAt, j.PendingSince = time.Time{}, stamp(now)
	return j.next(Pending, EventReleased, now), nil
}

// Result is how a job ended on its runner.
type Result struct {
	// Reason is empty after a success.
	Reason   FailureReason
	ExitCode int
}

// Finish ends a job that a runner has. A job that is being canceled is canceled, whatever its result.
func (j Job) Finish(result Result, now time.Time) (Change, error) {
	if !j.State.Active() {
		return j.refuse("finish")
	}
	j.FinishedAt = stamp(now)
	j.ExitCode = result.ExitCode
	switch {
	case j.State == Canceling:
		return j.next(Canceled, EventCanceled, now), nil
	case result.Reason == "":
		return j.next(Success, EventFinished, now), nil
	default:
		j.Reason = result.Reason
		return j.next(Failed, EventFinished, now), nil
	}
}

// Fail ends a job that the service gives up. A job that is being canceled is canceled.
func (j Job) Fail(reason FailureReason, now time.Time) (Change, error) {
	if j.State.Final() {
		return j.refuse("fail")
	}
	j.FinishedAt = stamp(now)
	if j.State == Canceling {
		return j.next(Canceled, EventCanceled, now), nil
	}
	j.Reason = reason
	return j.next(Failed, EventFinished, now), nil
}

// Cancel cancels a job. A running job becomes canceling; its runner ends it. One that is canceling already returns no
// event and no error: the change is the job as it is.
func (j Job) Cancel(userID int64, now time.Time) (Change, error) {
	switch {
	case j.State == Canceling:
		return Change{Job: j}, nil
	case j.State.Final():
		return j.refuse("cancel")
	}
	j.CanceledBy = userID
	if j.State == Running {
		return j.next(Canceling, EventCanceling, now), nil
	}
	j.FinishedAt = stamp(now)
	return j.next(Canceled, EventCanceled, now), nil
}

// Retry replaces a job that ended, or was skipped, by another one with the given id. It returns the change of the job
// and the first change of the other.
func (j Job) Retry(id int64, now time.Time) (replaced, created Change, err error) {
	if !j.State.Final() || j.RetriedBy != 0 {
		_, err = j.refuse("retry")
		return Change{}, Change{}, err
	}
	created = Create(Job{
		ID: id, PipelineID: j.PipelineID, ProjectID: j.ProjectID, OrganizationID: j.OrganizationID,
		Name: j.Name, Stage: j.Stage, Tags: slices.Clone(j.originalTags()), Protected: j.Protected, Timeout: j.Timeout,
		Policy:  j.Policy,
		Attempt: j.Attempt + 1, RetryOf: j.ID,
	}, now)
	j.RetriedBy = id
	return j.next(j.State, EventRetried, now), created, nil
}

// Move returns the change of a job that leaves the cell. A runner does not have it.
func (j Job) Move(now time.Time) (Change, error) {
	if j.State.Active() {
		return j.refuse("move")
	}
	return j.next(j.State, EventMoved, now), nil
}

// Arrive returns the change of a job that came from another cell. Admission begins again for one that waits for it.
func (j Job) Arrive(now time.Time) (Change, error) {
	if j.State.Active() {
		return j.refuse("receive")
	}
	if j.State == Preparing {
		j.PreparingSince = time.Time{}
	}
	return j.next(j.State, EventArrived, now), nil
}

// stamp is a time as events and tables have it.
func stamp(t time.Time) time.Time { return t.UTC().Truncate(time.Millisecond) }

// Last returns the last change of a job again, for those who have lost it.
func (j Job) Last() Change {
	c := Change{Job: j}
	switch j.State {
	case Created:
		c.Event, c.At = EventCreated, j.CreatedAt
	case Preparing:
		if c.Event, c.At = EventPreparing, j.PreparingSince; c.At.IsZero() {
			c.Event, c.At = EventArrived, j.CreatedAt
		}
	case Pending:
		c.Event, c.At = EventPending, j.PendingSince
	case Running:
		c.Event, c.At = EventRunning, j.StartedAt
	case Canceling:
		c.Event, c.At = EventCanceling, j.StartedAt
	case Success, Failed:
		c.Event, c.At = EventFinished, j.FinishedAt
		if j.Reason == DeniedAdmission || j.Reason == AdmissionTimeout {
			c.Event = EventRejected
		}
	case Canceled:
		c.Event, c.At = EventCanceled, j.FinishedAt
	case Skipped:
		c.Event, c.At = EventSkipped, j.FinishedAt
	}
	if j.RetriedBy != 0 {
		c.Event = EventRetried
	}
	return c
}

package chain

import (
	"time"

	"lockstep.internal/services/admission/payload"
)

// Input is something that happened: [Answered], [Failed], [TimedOut], [NotMatched], [ControllerChanged],
// [ControllerDeleted], [RunnersChanged], [DeadlineReached] or [JobCanceled].
type Input interface {
	apply(s *State, at time.Time)
}

// Question names an attempt to ask a controller.
type Question struct {
	ControllerID int64
	Attempt      int
}

// Answered is a valid answer to an attempt of the current round.
type Answered struct {
	Question

	Answer payload.Answer
}

// Failed is an attempt without a valid answer.
type Failed struct {
	Question

	// Message for people.
	Message string
	// Permanent failures are not repeated.
	Permanent bool
}

// TimedOut ends the round of an attempt: the time-out of the controller has passed.
type TimedOut struct{ Question }

// NotMatched tells that the match conditions of the controller exclude the job.
type NotMatched struct{ Question }

// ControllerChanged is a later revision of a controller.
type ControllerChanged struct{ Controller Controller }

// ControllerDeleted removes a controller.
type ControllerDeleted struct{ ControllerID int64 }

// RunnersChanged replaces the existing runners.
type RunnersChanged struct{ Runners []Runner }

// DeadlineReached ends admission as a whole.
type DeadlineReached struct{}

// JobCanceled ends admission without a decision.
type JobCanceled struct{}

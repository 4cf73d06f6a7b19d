package chain

import (
	"slices"

	"lockstep.internal/services/admission/payload"
)

// Action is what the caller does next.
type Action string

// The actions.
const (
	// ActionWait: there is nothing to do.
	ActionWait Action = "wait"
	// ActionAsk: send the payload to the controller, as this attempt.
	ActionAsk Action = "ask"
	// ActionAdmit: the job may run, with this definition.
	ActionAdmit Action = "admit"
	// ActionReject: the job fails, with this cause and these reasons.
	ActionReject Action = "reject"
)

// Step is what the caller does next.
type Step struct {
	Action Action

	// Of ActionAsk.
	Controller Controller
	Attempt    int
	Payload    payload.Job

	// Of ActionAdmit and ActionReject.
	Definition Definition
	Cause      Cause
	Reasons    Reasons
}

// Outstanding returns the step that a state waits for. To take it again does no harm.
func Outstanding(s State) Step {
	switch s.Outcome {
	case Admitted:
		return Step{Action: ActionAdmit, Definition: s.Definition, Reasons: s.Reasons}
	case Rejected:
		return Step{Action: ActionReject, Definition: s.Definition, Cause: s.Cause, Reasons: s.Reasons}
	case Canceled:
		return Step{Action: ActionWait}
	}
	c := s.Waiting[0]
	return Step{Action: ActionAsk, Controller: c, Attempt: s.Attempt, Payload: s.payload(c)}
}

// payload returns what a controller receives.
func (s *State) payload(c Controller) payload.Job {
	out := payload.Job{ID: s.Job.ID, Variables: map[string]payload.Value{}, Tags: s.Definition.Tags}
	for name, value := range s.Job.Variables {
		if c.AllVariables || slices.Contains(c.Variables, name) {
			out.Variables[name] = payload.Variable(name, value)
		}
	}
	return out
}

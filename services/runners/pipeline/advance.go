package pipeline

import "lockstep.internal/services/runners/job"

// Action is what happens to a job.
type Action string

// The actions.
const (
	// ActionBegin: the job waits for admission, or for a runner if nobody admits jobs.
	ActionBegin Action = "begin"
	// ActionSkip: the job never runs.
	ActionSkip Action = "skip"
	// ActionCancel: the job is canceled; if it runs, its runner ends it.
	ActionCancel Action = "cancel"
)

// Step is an action on the latest attempt of a job.
type Step struct {
	Name   string
	Action Action
}

// Advance returns what happens to the created jobs: those that begin now, and those that are skipped, in the order of
// jobs. It contains the jobs that are skipped because others in the result are. A created job that is not in the result
// waits. The result does not depend on the order of jobs. After its steps were applied, Advance returns none.
func Advance(jobs []Status) []Step {
	t := newTraversal(jobs)
	actions := make([]Action, len(jobs))
	t.decide = func(i int, before func() outcomes) outcomes {
		s := &jobs[i]
		if s.State != job.Created || s.Delayed {
			return s.outcome()
		}
		ended := before()
		switch {
		case ended.has(waiting):
			return waiting
		case s.runsAfter(ended):
			actions[i] = ActionBegin
			return waiting
		default:
			actions[i] = ActionSkip
			return skipped
		}
	}
	var steps []Step
	for i := range jobs {
		t.outcome(i)
	}
	for i, action := range actions {
		if action != "" {
			steps = append(steps, Step{jobs[i].Name, action})
		}
	}
	return steps
}

// Cancel returns the steps that cancel a pipeline: for all jobs that have not ended and are not being canceled, in the
// order of jobs. The caller calls Cancel instead of [Advance] as long as the pipeline is canceled, so that no new
// attempt of a job begins.
func Cancel(jobs []Status) []Step {
	var steps []Step
	for i := range jobs {
		if s := &jobs[i]; !s.State.Final() && s.State != job.Canceling {
			steps = append(steps, Step{s.Name, ActionCancel})
		}
	}
	return steps
}

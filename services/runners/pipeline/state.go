package pipeline

import (
	"slices"

	"lockstep.internal/services/runners/job"
)

// State of a pipeline.
type State struct {
	job.State

	// Warnings: the pipeline is successful, but a job failed or was canceled, which is allowed.
	Warnings bool
}

// StateOf returns the state of a pipeline with these jobs; created if there are none.
func StateOf(jobs []Status) State {
	const warning job.State = "warning"
	found := map[job.State]bool{}
	for i := range jobs {
		state := jobs[i].State
		if (state == job.Failed || state == job.Canceled) && jobs[i].FailureAllowed {
			state = warning
		}
		found[state] = true
	}
	anyOf := func(states ...job.State) bool {
		return slices.ContainsFunc(states, func(s job.State) bool { return found[s] })
	}
	// only reports whether there is no other state.
	only := func(states ...job.State) bool {
		for s := range found {
			if !slices.Contains(states, s) {
				return false
			}
		}
		return true
	}
	switch {
	case len(found) == 0:
		return State{State: job.Created}
	case only(job.Skipped):
		return State{State: job.Skipped}
	case only(job.Success, job.Skipped, warning):
		return State{State: job.Success, Warnings: found[warning]}
	case only(job.Created, warning):
		return State{State: job.Created}
	case only(job.Preparing, warning):
		return State{State: job.Preparing}
	case only(job.Canceled, job.Success, job.Skipped, warning):
		return State{State: job.Canceled}
	case only(job.Pending, job.Created, job.Skipped, warning):
		return State{State: job.Pending}
	case anyOf(job.Running, job.Pending):
		return State{State: job.Running}
	case anyOf(job.Preparing):
		return State{State: job.Preparing}
	case anyOf(job.Created):
		return State{State: job.Running}
	case anyOf(job.Canceling):
		return State{State: job.Canceling}
	default:
		return State{State: job.Failed}
	}
}

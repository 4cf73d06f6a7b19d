package pipeline_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/pipeline"
)

func TestStateOf(t *testing.T) {
	t.Parallel()
	for states, want := range map[string]job.State{
		"":                                 job.Created,
		"created":                          job.Created,
		"created warning":                  job.Created,
		"preparing":                        job.Preparing,
		"preparing warning":                job.Preparing,
		"preparing created":                job.Preparing,
		"preparing success":                job.Preparing,
		"preparing pending":                job.Running,
		"pending":                          job.Pending,
		"pending created":                  job.Pending,
		"pending created skipped":          job.Pending,
		"pending success":                  job.Running,
		"running":                          job.Running,
		"running failed":                   job.Running,
		"running canceled":                 job.Running,
		"running canceling":                job.Running,
		"created success":                  job.Running,
		"created failed":                   job.Running,
		"canceling":                        job.Canceling,
		"canceling canceled":               job.Canceling,
		"canceling failed success":         job.Canceling,
		"canceled":                         job.Canceled,
		"canceled success":                 job.Canceled,
		"canceled success skipped warning": job.Canceled,
		"canceled failed":                  job.Failed,
		"failed":                           job.Failed,
		"failed success skipped":           job.Failed,
		"failed warning":                   job.Failed,
		"skipped":                          job.Skipped,
		"success":                          job.Success,
		"success skipped":                  job.Success,
	} {
		require.Equal(t, pipeline.State{State: want}, pipeline.StateOf(inStates(states)), states)
	}
	for _, states := range []string{"warning", "warning success", "warning success skipped", "warning skipped"} {
		require.Equal(t, pipeline.State{State: job.Success, Warnings: true}, pipeline.StateOf(inStates(states)), states)
	}
}

func inStates(text string) []pipeline.Status {
	var jobs []pipeline.Status
	for i, state := range strings.Fields(text) {
		s := status(fmt.Sprint(i), 1, job.State(state))
		if state == "warning" {
			s.State, s.FailureAllowed = job.Failed, true
		}
		jobs = append(jobs, s)
	}
	return jobs
}

func TestCanceledJobThatMayFailIsAWarning(t *testing.T) {
	t.Parallel()
	jobs := []pipeline.Status{status("a", 1, job.Canceled, allowed), status("b", 1, job.Success)}
	require.Equal(t, pipeline.State{State: job.Success, Warnings: true}, pipeline.StateOf(jobs))
}

// TestPipelineEndsWithItsLastJob checks for all sets of states that a pipeline ended if and only if all jobs did.
func TestPipelineEndsWithItsLastJob(t *testing.T) {
	t.Parallel()
	all := job.States()
	for set := 1; set < 1<<len(all); set++ {
		var jobs []pipeline.Status
		for i, state := range all {
			if set&(1<<i) != 0 {
				jobs = append(jobs, status(string(state), 1, state))
			}
		}
		open := slices.ContainsFunc(jobs, func(s pipeline.Status) bool { return !s.State.Final() })
		require.Equal(t, !open, pipeline.StateOf(jobs).Final(), jobs)
	}
}

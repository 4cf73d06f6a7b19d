package pipeline_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/pipeline"
)

// status is a job of stage 1 (build), 2 (test) or 3 (deploy).
func status(name string, stage int, state job.State, change ...func(*pipeline.Status)) pipeline.Status {
	s := pipeline.Status{
		Node:  pipeline.Node{Name: name, Group: name, StageIndex: stage, When: job.OnSuccess},
		State: state,
	}
	for _, c := range change {
		c(&s)
	}
	return s
}

func when(w job.When) func(*pipeline.Status) { return func(s *pipeline.Status) { s.When = w } }

func needs(groups ...string) func(*pipeline.Status) {
	return func(s *pipeline.Status) {
		s.HasNeeds = true
		for _, g := range groups {
			s.Needs = append(s.Needs, pipeline.Need{Group: g})
		}
	}
}

func of(group string) func(*pipeline.Status) { return func(s *pipeline.Status) { s.Group = group } }

func allowed(s *pipeline.Status) { s.FailureAllowed = true }

func delayed(s *pipeline.Status) { s.Delayed = true }

func begin(names ...string) []pipeline.Step { return steps(pipeline.ActionBegin, names) }

func skip(names ...string) []pipeline.Step { return steps(pipeline.ActionSkip, names) }

func steps(action pipeline.Action, names []string) []pipeline.Step {
	var out []pipeline.Step
	for _, n := range names {
		out = append(out, pipeline.Step{Name: n, Action: action})
	}
	return out
}

func TestAdvance(t *testing.T) {
	t.Parallel()
	const (
		created, running, success   = job.Created, job.Running, job.Success
		failed, canceled, isSkipped = job.Failed, job.Canceled, job.Skipped
	)
	for name, test := range map[string]struct {
		jobs []pipeline.Status
		want []pipeline.Step
	}{
		"no jobs": {},
		"the first stage begins": {
			[]pipeline.Status{status("b", 1, created), status("t", 2, created), status("a", 1, created)},
			begin("b", "a"),
		},
		"a stage waits for all jobs of the stage before": {
			[]pipeline.Status{status("a", 1, success), status("b", 1, running), status("t", 2, created)}, nil,
		},
		"a job that is being canceled has not ended": {
			[]pipeline.Status{status("a", 1, job.Canceling), status("t", 2, created, when(job.Always))}, nil,
		},
		"a stage begins after the stage before": {
			[]pipeline.Status{status("a", 1, success), status("t", 2, created), status("d", 3, created)}, begin("t"),
		},
		"a stage waits for all earlier stages": {
			[]pipeline.Status{
				status("a", 1, running), status("t", 2, success, needs()), status("d", 3, created),
			}, nil,
		},
		"a stage without jobs does not count": {
			[]pipeline.Status{status("a", 1, success), status("d", 3, created)}, begin("d"),
		},
		"a failure skips all later stages": {
			[]pipeline.Status{status("a", 1, failed), status("t", 2, created), status("d", 3, created)}, skip("t", "d"),
		},
		"a failure that is allowed counts as success": {
			[]pipeline.Status{
				status("a", 1, failed, allowed), status("t", 2, created), status("r", 2, created, when(job.OnFailure)),
				status("n", 2, created, needs("a")),
			},
			append(append(begin("t"), skip("r")...), begin("n")...),
		},
		"a canceled job that may fail counts as success": {
			[]pipeline.Status{status("a", 1, canceled, allowed), status("t", 2, created)}, begin("t"),
		},
		"on_failure runs after a failure": {
			[]pipeline.Status{
				status("a", 1, failed), status("b", 1, success), status("r", 2, created, when(job.OnFailure)),
			}, begin("r"),
		},
		"on_failure waits until the stage ended": {
			[]pipeline.Status{
				status("a", 1, failed), status("b", 1, running), status("r", 2, created, when(job.OnFailure)),
			}, nil,
		},
		"on_failure is skipped after success": {
			[]pipeline.Status{status("a", 1, success), status("r", 2, created, when(job.OnFailure))}, skip("r"),
		},
		"on_failure is skipped after a canceled job": {
			[]pipeline.Status{status("a", 1, canceled), status("r", 2, created, when(job.OnFailure))}, skip("r"),
		},
		"on_failure in the first stage is skipped": {
			[]pipeline.Status{status("r", 1, created, when(job.OnFailure))}, skip("r"),
		},
		"on_failure runs after a failure in any earlier stage": {
			[]pipeline.Status{
				status("a", 1, failed), status("t", 2, isSkipped), status("r", 3, created, when(job.OnFailure)),
			}, begin("r"),
		},
		"a job that is skipped lets the next stage run": {
			[]pipeline.Status{
				status("a", 1, success), status("r", 2, created, when(job.OnFailure)), status("d", 3, created),
			},
			append(skip("r"), begin("d")...),
		},
		"a stage of skipped jobs alone lets the next stage run": {
			[]pipeline.Status{status("a", 1, isSkipped), status("t", 2, created)}, begin("t"),
		},
		"a canceled job skips later stages": {
			[]pipeline.Status{status("a", 1, canceled), status("t", 2, created)}, skip("t"),
		},
		"always runs after success, failed, skipped and canceled jobs": {
			[]pipeline.Status{
				status("a", 1, success), status("b", 1, failed), status("c", 1, isSkipped), status("d", 1, canceled),
				status("t", 2, created, when(job.Always)),
			}, begin("t"),
		},
		"always waits": {
			[]pipeline.Status{
				status("a", 1, isSkipped), status("b", 1, running), status("t", 2, created, when(job.Always)),
				status("n", 2, created, when(job.Always), needs("a", "b")),
			}, nil,
		},
		"a job with needs does not wait for its stage": {
			[]pipeline.Status{status("a", 1, success), status("b", 1, running), status("t", 2, created, needs("a"))},
			begin("t"),
		},
		"a job without needs in an empty list begins at once": {
			[]pipeline.Status{status("a", 1, running), status("t", 3, created, needs())}, begin("t"),
		},
		"a need is in the same stage": {
			[]pipeline.Status{status("t", 1, created, needs("a")), status("a", 1, success)}, begin("t"),
		},
		"all needs must end": {
			[]pipeline.Status{
				status("a", 1, failed), status("b", 1, running), status("t", 2, created, needs("a", "b")),
			}, nil,
		},
		"a failure of another job does not matter to needs": {
			[]pipeline.Status{status("a", 1, success), status("b", 1, failed), status("t", 2, created, needs("a"))},
			begin("t"),
		},
		"a need that failed, was canceled or skipped skips the job": {
			[]pipeline.Status{
				status("a", 1, failed), status("b", 1, canceled), status("c", 1, isSkipped),
				status("x", 2, created, needs("a")), status("y", 2, created, needs("b")), status("z", 2, created, needs("c")),
			}, skip("x", "y", "z"),
		},
		"skipped needs propagate": {
			[]pipeline.Status{
				status("z", 2, created, needs("y")), status("y", 2, created, needs("x")), status("x", 2, created, needs("a")),
				status("a", 1, failed), status("end", 3, created, needs("z"), when(job.Always)),
			}, append(skip("z", "y", "x"), begin("end")...),
		},
		"on_failure with needs runs if one failed and another was skipped": {
			[]pipeline.Status{
				status("a", 1, failed), status("t", 2, created), status("r", 3, created, when(job.OnFailure), needs("a", "t")),
			}, append(skip("t"), begin("r")...),
		},
		"a need of a parallel job waits for all copies": {
			[]pipeline.Status{
				status("a 1/2", 1, success, of("a")), status("a 2/2", 1, running, of("a")), status("t", 1, created, needs("a")),
			}, nil,
		},
		"a failed copy of a parallel job fails the need": {
			[]pipeline.Status{
				status("a 1/2", 1, success, of("a")), status("a 2/2", 1, failed, of("a")), status("t", 1, created, needs("a")),
			}, skip("t"),
		},
		"a job that waits for a retry does not begin, and the others wait for it": {
			[]pipeline.Status{
				status("a", 1, created, delayed), status("t", 2, created), status("r", 2, created, when(job.OnFailure)),
			}, nil,
		},
		"a need without a job counts as skipped": {
			[]pipeline.Status{
				status("t", 1, created, needs("absent")), status("u", 1, created, needs("absent"), when(job.Always)),
			}, append(skip("t"), begin("u")...),
		},
		"jobs in a circle wait": {
			[]pipeline.Status{
				status("a", 1, created, needs("b")), status("b", 1, created, needs("a")), status("c", 1, created, needs("c")),
				status("d", 1, created, needs("e")), status("e", 2, created), status("f", 3, created),
			}, nil,
		},
	} {
		require.Equal(t, test.want, pipeline.Advance(test.jobs), name)
		reversed := slices.Clone(test.jobs)
		slices.Reverse(reversed)
		require.ElementsMatch(t, test.want, pipeline.Advance(reversed), "%s, reversed", name)
	}
}

// TestAdvanceLeavesJobsThatBegan checks that only created jobs have steps.
func TestAdvanceLeavesJobsThatBegan(t *testing.T) {
	t.Parallel()
	for _, state := range job.States() {
		jobs := []pipeline.Status{status("a", 1, job.Failed), status("t", 2, state)}
		if state == job.Created {
			require.Equal(t, skip("t"), pipeline.Advance(jobs))
		} else {
			require.Empty(t, pipeline.Advance(jobs), state)
		}
	}
}

func TestCancelEndsWhatHasNotEnded(t *testing.T) {
	t.Parallel()
	var jobs []pipeline.Status
	for _, state := range job.States() {
		jobs = append(jobs, status(string(state), 1, state))
	}
	require.Equal(t, steps(pipeline.ActionCancel, []string{"created", "preparing", "pending", "running"}),
		pipeline.Cancel(jobs))
}

func TestNewStatusOfAnAttempt(t *testing.T) {
	t.Parallel()
	node := pipeline.Node{Name: "a", Group: "a"}
	for name, test := range map[string]struct {
		job  job.Job
		want bool
	}{
		"failure": {job.Job{State: job.Failed, Reason: job.ScriptFailure, ExitCode: 3}, false},
		"allowed exit code": {job.Job{
			State: job.Failed, Reason: job.ScriptFailure, ExitCode: 3, Policy: job.Policy{AllowExitCodes: []int{3}},
		}, true},
		"denied": {job.Job{
			State: job.Failed, Reason: job.DeniedAdmission, Policy: job.Policy{AllowDeniedAdmission: true},
		}, true},
		"canceled":                  {job.Job{State: job.Canceled, Policy: job.Policy{AllowExitCodes: []int{0}}}, false},
		"canceled, failure allowed": {job.Job{State: job.Canceled, Policy: job.Policy{AllowFailure: true}}, true},
		"success":                   {job.Job{State: job.Success, Policy: job.Policy{AllowFailure: true}}, false},
	} {
		want := pipeline.Status{Node: node, State: test.job.State, FailureAllowed: test.want}
		require.Equal(t, want, pipeline.NewStatus(test.job, node), name)
	}
}

func TestWaitsFor(t *testing.T) {
	t.Parallel()
	jobs := []pipeline.Status{
		status("a", 1, job.Running), status("b", 1, job.Success), status("c 1/2", 2, job.Created, of("c")),
		status("c 2/2", 2, job.Failed, of("c")), status("n", 2, job.Created, needs("b", "c")), status("d", 3, job.Created),
		status("e", 3, job.Created, needs()),
	}
	for name, want := range map[string][]string{
		"a": nil, "b": nil, "c 1/2": {"a"}, "n": {"c 1/2"}, "d": {"a", "c 1/2", "n"}, "e": nil, "absent": nil,
	} {
		require.Equal(t, want, pipeline.WaitsFor(jobs, name), name)
	}
}

package pipeline_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/pipeline"
)

// simulation runs a pipeline: it applies the steps of Advance, and ends jobs that began in a random order.
type simulation struct {
	t    *testing.T
	rand *rand.Rand
	jobs []pipeline.Status
	// results of each job that runs. The order of ends does not change them.
	results map[string]result
	begun   map[string]bool
}

type result struct {
	state   job.State
	allowed bool
}

// randomPipeline has jobs in several stages with needs of earlier jobs, some of them in groups.
func randomPipeline(t *testing.T, random *rand.Rand, size int) *simulation {
	s := &simulation{t: t, rand: random, results: map[string]result{}, begun: map[string]bool{}}
	stage, group := 1, ""
	for i := range size {
		name := fmt.Sprint(i)
		if group == "" || random.IntN(3) > 0 {
			group = name
			stage += random.IntN(4) / 3 // groups are in one stage
		}
		next := status(name, stage, job.Created, of(group), when(pick(random, job.OnSuccess, job.OnFailure, job.Always, "")))
		if group == name && random.IntN(2) == 0 {
			next.HasNeeds = true
			for range random.IntN(4) {
				if i > 0 {
					next.Needs = append(next.Needs, pipeline.Need{Group: s.jobs[random.IntN(i)].Group})
				}
			}
		} else if group != name {
			next.HasNeeds, next.Needs, next.When = s.jobs[i-1].HasNeeds, s.jobs[i-1].Needs, s.jobs[i-1].When
		}
		s.jobs = append(s.jobs, next)
		s.results[name] = result{
			state: pick(random, job.Success, job.Success, job.Failed, job.Canceled), allowed: random.IntN(4) == 0,
		}
	}
	return s
}

func pick[T any](random *rand.Rand, values ...T) T { return values[random.IntN(len(values))] }

// run runs the pipeline to its end.
func (s *simulation) run() {
	for range 3 * len(s.jobs) {
		s.advance()
		open := s.running()
		if len(open) == 0 {
			break
		}
		s.end(&s.jobs[open[s.rand.IntN(len(open))]])
	}
	for _, j := range s.jobs {
		require.True(s.t, j.State.Final(), "job %s never ended: %s", j.Name, j.State)
		require.NotEqual(s.t, j.State == job.Skipped, s.begun[j.Name], j.Name)
	}
	require.True(s.t, pipeline.StateOf(s.jobs).Final())
}

// advance applies the steps one after the other, in a random order.
func (s *simulation) advance() {
	steps := pipeline.Advance(s.jobs)
	s.rand.Shuffle(len(steps), func(i, j int) { steps[i], steps[j] = steps[j], steps[i] })
	for len(steps) > 0 {
		step := steps[0]
		i := slices.IndexFunc(s.jobs, func(j pipeline.Status) bool { return j.Name == step.Name })
		require.Equal(s.t, job.Created, s.jobs[i].State)
		switch step.Action {
		case pipeline.ActionBegin:
			s.requireReady(s.jobs[i])
			s.begun[step.Name] = true
			s.jobs[i].State = pick(s.rand, job.Preparing, job.Pending, job.Running)
		case pipeline.ActionSkip:
			s.jobs[i].State = job.Skipped
		default:
			require.Fail(s.t, "unexpected action", step.Action)
		}
		steps = steps[1:]
		require.ElementsMatch(s.t, steps, pipeline.Advance(s.jobs), "a step that was applied leaves the others")
	}
}

// requireReady checks directly that all jobs that a job waits for ended, except those that the same call skips.
func (s *simulation) requireReady(j pipeline.Status) {
	for _, other := range s.jobs {
		before := other.StageIndex < j.StageIndex
		if j.HasNeeds {
			before = slices.Contains(j.Needs, pipeline.Need{Group: other.Group})
		}
		if before && !other.State.Final() {
			require.Contains(s.t, pipeline.Advance(s.jobs), pipeline.Step{Name: other.Name, Action: pipeline.ActionSkip},
				"job %s began before %s ended", j.Name, other.Name)
		}
	}
}

func (s *simulation) running() []int {
	var out []int
	for i, j := range s.jobs {
		if s.begun[j.Name] && !j.State.Final() {
			out = append(out, i)
		}
	}
	return out
}

func (s *simulation) end(j *pipeline.Status) {
	r := s.results[j.Name]
	j.State, j.FailureAllowed = r.state, r.allowed && r.state != job.Success
}

// FuzzAdvance runs a random pipeline in two orders. Every job ends, no job begins too early, both orders have the same
// end, and the end does not depend on the order of the list.
func FuzzAdvance(f *testing.F) {
	for seed := range uint64(50) {
		f.Add(seed, byte(seed))
	}
	f.Fuzz(func(t *testing.T, seed uint64, size byte) {
		var ends []map[string]job.State
		for order := range uint64(2) {
			s := randomPipeline(t, rand.New(rand.NewPCG(seed, 0)), 1+int(size)%40)
			s.rand = rand.New(rand.NewPCG(seed, order))
			s.rand.Shuffle(len(s.jobs), func(i, j int) { s.jobs[i], s.jobs[j] = s.jobs[j], s.jobs[i] })
			s.run()
			end := map[string]job.State{}
			for _, j := range s.jobs {
				end[j.Name] = j.State
			}
			ends = append(ends, end)
		}
		require.Equal(t, ends[0], ends[1])
	})
}

// FuzzRetry retries a random pipeline after its end until nothing fails. Only jobs that cannot run remain skipped.
func FuzzRetry(f *testing.F) {
	for seed := range uint64(50) {
		f.Add(seed, byte(seed))
	}
	f.Fuzz(func(t *testing.T, seed uint64, size byte) {
		s := randomPipeline(t, rand.New(rand.NewPCG(seed, 0)), 1+int(size)%40)
		s.run()
		for name := range s.results {
			s.results[name] = result{state: job.Success}
		}
		for range len(s.jobs) + 1 {
			attempts := pipeline.RetryFailed(s.jobs)
			if len(attempts.Retried) == 0 {
				require.Empty(t, attempts.Reset)
				break
			}
			for i := range s.jobs {
				j := &s.jobs[i]
				retried, reset := slices.Contains(attempts.Retried, j.Name), slices.Contains(attempts.Reset, j.Name)
				require.Equal(t, !j.FailureAllowed && (j.State == job.Failed || j.State == job.Canceled), retried)
				if reset {
					require.Equal(t, job.Skipped, j.State)
				}
				if retried || reset {
					j.State, j.FailureAllowed = job.Created, false
					delete(s.begun, j.Name)
				}
			}
			s.run()
		}
		for _, j := range s.jobs {
			failed := j.State == job.Failed || j.State == job.Canceled
			require.Equal(t, j.FailureAllowed, failed, j.Name)
		}
		checkFixed(t, s.jobs)
	})
}

// checkFixed checks that every skipped job would be skipped again.
func checkFixed(t *testing.T, jobs []pipeline.Status) {
	again := slices.Clone(jobs)
	var skipped []pipeline.Step
	for i := range again {
		if again[i].State == job.Skipped {
			again[i].State = job.Created
			skipped = append(skipped, pipeline.Step{Name: again[i].Name, Action: pipeline.ActionSkip})
		}
	}
	require.Equal(t, skipped, pipeline.Advance(again))
}

// FuzzCycles checks that all functions return for any graph, and that Advance has at most one step for each job.
func FuzzCycles(f *testing.F) {
	for seed := range uint64(50) {
		f.Add(seed, byte(seed))
	}
	f.Fuzz(func(t *testing.T, seed uint64, size byte) {
		random := rand.New(rand.NewPCG(seed, 0))
		var jobs []pipeline.Status
		for i := range int(size) {
			j := status(fmt.Sprint(i), random.IntN(4), pick(random, job.States()...))
			j.When = pick(random, job.OnSuccess, job.Always)
			for range random.IntN(4) {
				needs(fmt.Sprint(random.IntN(int(size) + 1)))(&j)
			}
			jobs = append(jobs, j)
		}
		seen := map[string]bool{}
		for _, step := range pipeline.Advance(jobs) {
			require.False(t, seen[step.Name], step.Name)
			seen[step.Name] = true
		}
		attempts := pipeline.RetryFailed(jobs)
		require.LessOrEqual(t, len(attempts.Retried)+len(attempts.Reset), len(jobs))
		require.LessOrEqual(t, len(pipeline.ArtifactJobs(jobs, "0")), len(jobs))
		require.LessOrEqual(t, len(pipeline.WaitsFor(jobs, "0")), len(jobs))
	})
}

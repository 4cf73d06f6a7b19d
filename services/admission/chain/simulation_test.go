package chain_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/admission/chain"
	"lockstep.internal/services/admission/payload"
)

// decider is an idempotent controller: it gives the same answer to every attempt.
type decider struct {
	controller chain.Controller
	answer     payload.Answer
	fails      bool // every attempt
}

// world is a job with controllers.
type world struct {
	job      chain.Job
	deciders []decider
}

func pick[T any](random *rand.Rand, values ...T) T { return values[random.IntN(len(values))] }

func subset[T any](random *rand.Rand, one int, values ...T) []T {
	var out []T
	for _, v := range values {
		if random.IntN(one) == 0 {
			out = append(out, v)
		}
	}
	return out
}

func randomWorld(random *rand.Rand) world {
	w := world{job: chain.Job{ID: jobID, Tags: subset(random, 2, "a", "b", "c")}}
	for id := range int64(4) {
		w.job.Runners = append(w.job.Runners, chain.Runner{
			ID: id + 1, Tags: append(subset(random, 8, "x"), "a", "b", "c", "d"), RunUntagged: random.IntN(2) == 0,
		})
	}
	for i := range random.IntN(6) {
		d := decider{controller: controller(int64(i+1), fmt.Sprintf("c%d", i+1), func(c *chain.Controller) {
			c.Mode = pick(random, chain.Enforced, chain.Enforced, chain.Enforced, chain.DryRun, chain.Disabled)
			c.FailurePolicy = pick(random, chain.Deny, chain.Ignore, "")
			c.Mutating = random.IntN(3) > 0
			c.MaxAttempts = random.IntN(4)
		})}
		d.fails = random.IntN(8) == 0
		d.answer = payload.Answer{JobID: jobID, Reason: pick(random, "", fmt.Sprint("because ", i))}
		if random.IntN(6) > 0 {
			d.answer.Accepted = true
			d.answer.AddTags = subset(random, 8, "a", "d", "x", "none")
			d.answer.RemoveTags = slices.DeleteFunc(subset(random, 8, "a", "b", "none"),
				func(tag string) bool { return slices.Contains(d.answer.AddTags, tag) })
			d.answer.AcceptRunners = subset(random, 3, int64(1), 2, 3, 4)
			d.answer.RejectRunners = slices.DeleteFunc(subset(random, 8, int64(1), 2, 3, 4),
				func(id int64) bool { return slices.Contains(d.answer.AcceptRunners, id) })
		}
		w.deciders = append(w.deciders, d)
	}
	return w
}

func (w world) controllers() []chain.Controller {
	out := make([]chain.Controller, len(w.deciders))
	for i, d := range w.deciders {
		out[i] = d.controller
	}
	return out
}

func (w world) decider(id int64) decider { return w.deciders[id-1] }

// oracle decides in the plainest way, without attempts, time and order of inputs.
func (w world) oracle() (chain.Outcome, chain.Definition, string) {
	tags, accepted, rejected := map[string]bool{}, map[int64]bool(nil), map[int64]bool{}
	for _, tag := range w.job.Tags {
		tags[tag] = true
	}
	original := fmt.Sprint(tags)
	reasons := chain.Reasons(nil)
	for _, d := range w.deciders {
		c, a := d.controller, d.answer
		if c.Mode != chain.Enforced {
			continue
		}
		if d.fails || a.Accepted && a.Changes() && !c.Mutating {
			if c.FailurePolicy != chain.Ignore {
				return chain.Rejected, chain.Definition{}, ""
			}
			continue
		}
		if !a.Accepted {
			return chain.Rejected, chain.Definition{}, ""
		}
		for _, tag := range a.RemoveTags {
			delete(tags, tag)
		}
		for _, tag := range a.AddTags {
			tags[tag] = true
		}
		for _, id := range a.RejectRunners {
			rejected[id] = true
		}
		if len(a.AcceptRunners) > 0 {
			common := map[int64]bool{}
			for _, id := range a.AcceptRunners {
				if accepted == nil || accepted[id] {
					common[id] = true
				}
			}
			if accepted = common; len(accepted) == 0 {
				return chain.Rejected, chain.Definition{}, ""
			}
		}
		if a.Reason != "" {
			reasons = append(reasons, chain.Reason{Controller: c.Name, Text: a.Reason})
		}
	}
	d := chain.Definition{Tags: keys(tags), AcceptedRunners: keys(accepted), RejectedRunners: keys(rejected)}
	changed := fmt.Sprint(tags) != original || len(accepted)+len(rejected) > 0
	if changed && !slices.ContainsFunc(w.job.Runners, d.Allows) {
		return chain.Rejected, chain.Definition{}, ""
	}
	return chain.Admitted, d, reasons.String()
}

func keys[K string | int64](set map[K]bool) []K {
	var out []K
	for k := range set {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// simulate runs a world with repeated, late, foreign and reordered inputs and some that fail.
func simulate(t *testing.T, w world, random *rand.Rand) chain.State {
	t.Helper()
	now := start()
	state, step := chain.Begin(w.job, w.controllers(), now)
	var sent []chain.Input
	tried := map[int64]int{}
	send := func(in chain.Input) {
		now = now.Add(time.Second)
		before := state
		state, step = chain.Advance(state, in, now)
		require.GreaterOrEqual(t, len(state.Records), len(before.Records))
		for i := range before.Records {
			require.Equal(t, before.Records[i], state.Records[i], "records are never changed")
		}
		sent = append(sent, in)
	}
	for rounds := 0; state.Outcome == ""; rounds++ {
		require.Less(t, rounds, 1000, "admission does not end")
		if len(sent) > 0 && random.IntN(3) == 0 {
			send(pick(random, sent...))
			continue
		}
		ask := chain.Outstanding(state)
		require.Equal(t, chain.ActionAsk, ask.Action)
		require.NotEqual(t, chain.Disabled, ask.Controller.Mode, "a disabled controller is not asked")
		if step.Action == chain.ActionAsk {
			require.Equal(t, ask, step)
		}
		d, q := w.decider(ask.Controller.ID), chain.Question{ControllerID: ask.Controller.ID, Attempt: ask.Attempt}
		most := max(d.controller.MaxAttempts, 1)
		switch {
		case d.fails:
			send(pick[chain.Input](random, chain.Failed{Question: q, Message: "down"}, chain.TimedOut{Question: q}))
		case tried[q.ControllerID] < most-1 && d.controller.Mode == chain.Enforced && random.IntN(3) == 0:
			tried[q.ControllerID]++
			send(chain.Failed{Question: q, Message: "down for a moment"})
		default:
			q.Attempt = 1 + random.IntN(q.Attempt) // the answer to any attempt
			send(chain.Answered{Question: q, Answer: d.answer})
		}
		if random.IntN(5) == 0 {
			send(chain.Answered{Question: chain.Question{ControllerID: 99, Attempt: 1}, Answer: accept()})
		}
	}
	return state
}

func check(t *testing.T, w world, state chain.State) {
	t.Helper()
	outcome, definition, reasons := w.oracle()
	require.Equal(t, outcome, state.Outcome, "%+v", state)
	if outcome == chain.Rejected {
		require.NotEmpty(t, state.Cause)
		require.NotEmpty(t, state.Reasons)
		return
	}
	require.Equal(t, definition, state.Definition)
	require.Equal(t, reasons, state.Reasons.String())
	for _, c := range w.controllers() {
		final := 0
		for _, r := range state.Records {
			if r.ControllerID == c.ID && r.Verdict != chain.VerdictRetried {
				final++
				if c.Mode == chain.Enforced && c.FailurePolicy != chain.Ignore {
					require.Equal(t, chain.VerdictAccepted, r.Verdict, "%s let the job pass", c.Name)
				}
			}
		}
		require.Equal(t, 1, final, "each controller has decided once")
	}
}

func TestResultDependsOnAnswersOnly(t *testing.T) {
	t.Parallel()
	admitted := 0
	for seed := range uint64(1500) {
		random := rand.New(rand.NewPCG(seed, 1))
		w := randomWorld(random)
		var state chain.State
		for range 3 {
			state = simulate(t, w, random)
			check(t, w, state)
		}
		if state.Outcome == chain.Admitted {
			admitted++
		}
	}
	require.Greater(t, admitted, 150)
	require.Less(t, admitted, 1350)
}

// FuzzChain feeds inputs of any order and content. No job is admitted before each controller has decided.
func FuzzChain(f *testing.F) {
	f.Add(uint64(1), []byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10})
	f.Add(uint64(7), []byte{250, 9, 33, 77, 2, 2, 2, 8})
	f.Fuzz(func(t *testing.T, seed uint64, script []byte) {
		random := rand.New(rand.NewPCG(seed, 2))
		w := randomWorld(random)
		state, _ := chain.Begin(w.job, w.controllers(), start())
		for i, b := range script {
			q := chain.Question{ControllerID: int64(b%7) + 1, Attempt: int(b/7) % 4}
			changed := controller(q.ControllerID, "new", func(c *chain.Controller) {
				c.Revision, c.Mode = int64(i), pick(random, chain.Enforced, chain.DryRun, chain.Disabled)
			})
			in := pick[chain.Input](random, chain.Answered{q, accept()}, chain.Answered{q, reject("no")},
				chain.Answered{q, accept(add("a"), only(1, 2))}, chain.Failed{Question: q}, chain.TimedOut{q}, chain.NotMatched{q},
				chain.ControllerChanged{changed}, chain.ControllerDeleted{q.ControllerID}, chain.RunnersChanged{w.job.Runners[:2]})
			before := state
			var step chain.Step
			state, step = chain.Advance(state, in, start().Add(time.Duration(i)*time.Second))
			if before.Outcome != "" {
				require.Equal(t, before, state)
				require.Equal(t, chain.ActionWait, step.Action)
				continue
			}
			again, repeated := chain.Advance(before, in, start().Add(time.Duration(i)*time.Second))
			require.Equal(t, state, again)
			require.Equal(t, step, repeated)
			if state.Outcome == chain.Admitted {
				require.Empty(t, state.Waiting)
				for _, r := range state.Records {
					require.False(t, r.Effective && r.Verdict != chain.VerdictAccepted, "%+v", r)
				}
			}
		}
	})
}

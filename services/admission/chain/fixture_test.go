package chain_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/admission/chain"
	"lockstep.internal/services/admission/payload"
)

const jobID = 7

func start() time.Time { return time.Date(2026, 3, 2, 10, 40, 12, 0, time.UTC) }

func controller(id int64, name string, change ...func(*chain.Controller)) chain.Controller {
	c := chain.Controller{
		ID: id, Revision: 1, Name: name, Level: chain.LevelInstance, Mutating: true, Mode: chain.Enforced, AllVariables: true,
		MaxAttempts: 2,
	}
	for _, f := range change {
		f(&c)
	}
	return c
}

func mode(m chain.Mode) func(*chain.Controller) { return func(c *chain.Controller) { c.Mode = m } }

func ignore(c *chain.Controller) { c.FailurePolicy = chain.Ignore }

func validating(c *chain.Controller) { c.Mutating = false }

func accept(change ...func(*payload.Answer)) payload.Answer {
	a := payload.Answer{JobID: jobID, Accepted: true}
	for _, f := range change {
		f(&a)
	}
	return a
}

func add(tags ...string) func(*payload.Answer) { return func(a *payload.Answer) { a.AddTags = tags } }

func remove(tags ...string) func(*payload.Answer) {
	return func(a *payload.Answer) { a.RemoveTags = tags }
}

func only(ids ...int64) func(*payload.Answer) {
	return func(a *payload.Answer) { a.AcceptRunners = ids }
}

func except(ids ...int64) func(*payload.Answer) {
	return func(a *payload.Answer) { a.RejectRunners = ids }
}

func because(text string) func(*payload.Answer) { return func(a *payload.Answer) { a.Reason = text } }

func reject(reason string) payload.Answer { return payload.Answer{JobID: jobID, Reason: reason} }

func testJob() chain.Job {
	return chain.Job{
		ID: jobID, Tags: []string{"linux"}, Variables: map[string]string{"CI_PROJECT_ID": "4", "CI_JOB_NAME": "test"},
		Runners: []chain.Runner{
			{ID: 1, Tags: []string{"linux", "zone_a"}}, {ID: 2, Tags: []string{"linux", "zone_b"}}, {ID: 3, RunUntagged: true},
		},
	}
}

// run is the admission of one job. Each state is stored and loaded, as after a restart.
type run struct {
	t     *testing.T
	state chain.State
	step  chain.Step
	now   time.Time
}

func begin(t *testing.T, controllers ...chain.Controller) *run {
	t.Helper()
	r := &run{t: t, now: start()}
	r.state, r.step = chain.Begin(testJob(), controllers, r.now)
	return r
}

func (r *run) input(in chain.Input) {
	r.t.Helper()
	raw, err := json.Marshal(r.state)
	require.NoError(r.t, err)
	var stored chain.State
	require.NoError(r.t, json.Unmarshal(raw, &stored))
	require.Equal(r.t, chain.Outstanding(r.state), chain.Outstanding(stored))
	r.now = r.now.Add(time.Second)
	r.state, r.step = chain.Advance(stored, in, r.now)
}

// asked requires that a controller is asked, and returns the question.
func (r *run) asked(id int64, attempt int) chain.Question {
	r.t.Helper()
	require.Equal(r.t, chain.ActionAsk, r.step.Action, r.step)
	require.Equal(r.t, id, r.step.Controller.ID)
	require.Equal(r.t, attempt, r.step.Attempt)
	return chain.Question{ControllerID: id, Attempt: attempt}
}

// answer answers the outstanding question.
func (r *run) answer(a payload.Answer) {
	r.t.Helper()
	r.input(chain.Answered{Question: r.question(), Answer: a})
}

func (r *run) question() chain.Question {
	r.t.Helper()
	out := chain.Outstanding(r.state)
	require.Equal(r.t, chain.ActionAsk, out.Action)
	return chain.Question{ControllerID: out.Controller.ID, Attempt: out.Attempt}
}

func (r *run) admitted(d chain.Definition, reasons string) {
	r.t.Helper()
	require.Equal(r.t, chain.ActionAdmit, r.step.Action, r.step.Reasons)
	require.Equal(r.t, d, r.step.Definition)
	require.Equal(r.t, reasons, r.step.Reasons.String())
}

func (r *run) rejected(cause chain.Cause, reasons string) {
	r.t.Helper()
	require.Equal(r.t, chain.ActionReject, r.step.Action)
	require.Equal(r.t, cause, r.step.Cause)
	require.Equal(r.t, reasons, r.step.Reasons.String())
}

func (r *run) verdicts() []chain.Verdict {
	var out []chain.Verdict
	for _, record := range r.state.Records {
		out = append(out, record.Verdict)
	}
	return out
}

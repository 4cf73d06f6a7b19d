package chain_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/admission/chain"
	"lockstep.internal/services/admission/payload"
)

func linux(more ...string) chain.Definition {
	return chain.Definition{Tags: append([]string{"linux"}, more...)}
}

func TestControllersAreAskedFromProjectUpward(t *testing.T) {
	t.Parallel()
	at := func(id int64, level chain.Level, owner int64, position int) chain.Controller {
		return chain.Controller{ID: id, Level: level, OwnerID: owner, Position: position}
	}
	ordered := chain.Order([]chain.Controller{
		at(1, chain.LevelInstance, 0, 0), at(2, chain.LevelGroup, 20, 0), at(3, chain.LevelGroup, 21, 5),
		at(4, chain.LevelGroup, 21, 1), at(5, chain.LevelProject, 4, 0), at(6, chain.LevelProject, 5, 0),
		at(7, chain.LevelGroup, 99, 0), at(8, chain.LevelProject, 4, 0), at(9, "", 4, 0),
	}, chain.Place{ProjectID: 4, GroupIDs: []int64{21, 20}})
	ids := make([]int64, len(ordered))
	for i, c := range ordered {
		ids[i] = c.ID
	}
	require.Equal(t, []int64{5, 8, 4, 3, 2, 1}, ids)
}

func TestJobWithoutControllersIsAdmittedUnchanged(t *testing.T) {
	t.Parallel()
	begin(t).admitted(linux(), "")
	state, step := chain.Begin(chain.Job{
		ID: jobID, Tags: []string{"b", "a", "b"}, Runners: []chain.Runner{},
	}, nil, start())
	require.Equal(t, chain.ActionAdmit, step.Action, "no runner exists, but admission changed nothing")
	require.Equal(t, []string{"a", "b"}, state.Definition.Tags)
}

func TestAnswers(t *testing.T) {
	t.Parallel()
	const noRunner = "no existing runner matches the tags and runners that admission chose"
	tooMany := make([]string, payload.MaxTags)
	for i := range tooMany {
		tooMany[i] = fmt.Sprint(i)
	}
	for name, c := range map[string]struct {
		first, second payload.Answer
		admitted      chain.Definition
		cause         chain.Cause
		reasons       string
	}{
		"all accept": {first: accept(), second: accept(), admitted: linux()},
		"tags are added and removed": {
			first: accept(add("zone_a", "gpu")), second: accept(remove("gpu", "none")), admitted: linux("zone_a"),
		},
		"reasons are collected": {
			first: accept(because("one")), second: accept(because("two")), admitted: linux(), reasons: "first: one; second: two",
		},
		"a rejection ends the chain": {first: reject("no"), cause: chain.CauseDenied, reasons: "first: no"},
		"a rejection without a reason": {
			first: reject(""), cause: chain.CauseDenied, reasons: "first: rejected without a reason",
		},
		"a rejection keeps earlier reasons": {
			first: accept(because("zone"), add("zone_a")), second: reject("no"), cause: chain.CauseDenied,
			reasons: "first: zone; second: no",
		},
		"accepted runners intersect": {
			first: accept(only(2, 1)), second: accept(only(3, 2)),
			admitted: chain.Definition{Tags: []string{"linux"}, AcceptedRunners: []int64{2}},
		},
		"no accepted runners are no restriction": {
			first: accept(only(1)), second: accept(),
			admitted: chain.Definition{Tags: []string{"linux"}, AcceptedRunners: []int64{1}},
		},
		"no runner in common": {
			first: accept(only(1)), second: accept(only(2)), cause: chain.CauseNoRunner,
			reasons: "second: no runner is accepted by all controllers",
		},
		"rejected runners unite": {
			first: accept(except(3)), second: accept(except(2, 3)),
			admitted: chain.Definition{Tags: []string{"linux"}, RejectedRunners: []int64{2, 3}},
		},
		"accepted by one, rejected by the other": {
			first: accept(only(1)), second: accept(except(1)), cause: chain.CauseNoRunner, reasons: noRunner,
		},
		"tags that no runner has": {
			first: accept(add("zone_c"), because("to c")), second: accept(), cause: chain.CauseNoRunner,
			reasons: "first: to c; " + noRunner,
		},
		"tags that runners have, but no single one": {
			first: accept(add("zone_a")), second: accept(add("zone_b")), cause: chain.CauseNoRunner, reasons: noRunner,
		},
		"no tags left for a runner that takes such jobs": {
			first: accept(remove("linux")), second: accept(), admitted: chain.Definition{},
		},
		"an unknown runner": {first: accept(only(99)), second: accept(), cause: chain.CauseNoRunner, reasons: noRunner},
		"too many tags": {
			first: accept(add(tooMany...)), cause: chain.CauseTimeout,
			reasons: "first: the job would have 101 tags: at most 100 are allowed",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := begin(t, controller(11, "first"), controller(12, "second"))
			r.asked(11, 1)
			r.answer(c.first)
			if r.state.Outcome == "" {
				r.asked(12, 1)
				r.answer(c.second)
			}
			if c.cause != "" {
				r.rejected(c.cause, c.reasons)
				return
			}
			r.admitted(c.admitted, c.reasons)
		})
	}
}

func TestEachControllerSeesTheJobAsChangedSoFar(t *testing.T) {
	t.Parallel()
	r := begin(t, controller(11, "first"), controller(12, "second", func(c *chain.Controller) {
		c.AllVariables, c.Variables = false, []string{"CI_PROJECT_ID", "SECRET"}
	}))
	require.Equal(t, payload.Job{ID: jobID, Tags: []string{"linux"}, Variables: map[string]payload.Value{
		"CI_PROJECT_ID": payload.Number(4), "CI_JOB_NAME": payload.Text("test"),
	}}, r.step.Payload)
	r.answer(accept(add("zone_a")))
	require.Equal(t, payload.Job{ID: jobID, Tags: []string{"linux", "zone_a"}, Variables: map[string]payload.Value{
		"CI_PROJECT_ID": payload.Number(4),
	}}, r.step.Payload)
}

func TestChangesOfValidatingControllerAreFailure(t *testing.T) {
	t.Parallel()
	for _, change := range []func(*payload.Answer){add("x"), remove("linux"), only(1), except(3)} {
		r := begin(t, controller(11, "first", validating))
		r.answer(accept(change))
		r.rejected(chain.CauseTimeout, "first: a validating controller may not change tags or runners")

		r = begin(t, controller(11, "first", validating, ignore))
		r.answer(accept(change))
		r.admitted(linux(), "")
		require.Equal(t, []chain.Verdict{chain.VerdictFailed}, r.verdicts())
		require.False(t, r.state.Records[0].Effective)
	}
	r := begin(t, controller(11, "first", validating))
	r.answer(accept(because("fine")))
	r.admitted(linux(), "first: fine")
}

func TestFailedAttemptsAreRepeatedUpToTheMaximum(t *testing.T) {
	t.Parallel()
	for policy, want := range map[chain.FailurePolicy]chain.Action{
		"": chain.ActionReject, chain.Deny: chain.ActionReject, chain.Ignore: chain.ActionAdmit,
	} {
		r := begin(t, controller(11, "first", func(c *chain.Controller) { c.FailurePolicy = policy }))
		first := r.asked(11, 1)
		r.input(chain.Failed{Question: first, Message: "status 503"})
		second := r.asked(11, 2)
		r.input(chain.Failed{Question: first, Message: "status 503"})
		require.Equal(t, chain.ActionWait, r.step.Action, "the failure of an earlier attempt is repeated")
		r.input(chain.Failed{Question: second, Message: "status 502"})
		require.Equal(t, want, r.step.Action)
		require.Equal(t, []chain.Verdict{chain.VerdictRetried, chain.VerdictFailed}, r.verdicts())
		if want == chain.ActionReject {
			r.rejected(chain.CauseTimeout, "first: status 502")
		}
	}
	r := begin(t, controller(11, "first", ignore))
	r.input(chain.Failed{Question: r.question(), Message: "status 400", Permanent: true})
	r.admitted(linux(), "")

	r = begin(t, controller(11, "first", func(c *chain.Controller) { c.MaxAttempts = 0 }))
	for range chain.DefaultMaxAttempts {
		r.input(chain.Failed{Question: r.question(), Message: "down"})
	}
	r.rejected(chain.CauseTimeout, "first: down")
}

func TestLateAnswerToEarlierAttemptCounts(t *testing.T) {
	t.Parallel()
	r := begin(t, controller(11, "first"))
	first := r.asked(11, 1)
	r.input(chain.Failed{Question: first, Message: "the connection broke"})
	r.asked(11, 2)
	r.input(chain.Answered{Question: first, Answer: accept(add("zone_a"))})
	r.admitted(linux("zone_a"), "")
}

func TestTimeoutIsDecidedByTheFailurePolicy(t *testing.T) {
	t.Parallel()
	r := begin(t, controller(11, "first", ignore), controller(12, "second"))
	first := r.asked(11, 1)
	r.input(chain.TimedOut{Question: first})
	r.asked(12, 1)
	r.input(chain.Answered{Question: first, Answer: reject("too late")})
	require.Equal(t, chain.ActionWait, r.step.Action)
	r.input(chain.TimedOut{Question: r.question()})
	r.rejected(chain.CauseTimeout, "second: the controller did not answer in time")
	require.Equal(t, []chain.Verdict{chain.VerdictTimedOut, chain.VerdictTimedOut}, r.verdicts())
}

func TestDeadlineAppliesTheFailurePolicyOfEachController(t *testing.T) {
	t.Parallel()
	r := begin(t, controller(11, "first", ignore), controller(12, "dry", mode(chain.DryRun)),
		controller(13, "off", mode(chain.Disabled)), controller(14, "last", ignore))
	r.input(chain.DeadlineReached{})
	r.admitted(linux(), "")
	require.Equal(t, []chain.Verdict{
		chain.VerdictTimedOut, chain.VerdictTimedOut, chain.VerdictSkipped, chain.VerdictTimedOut,
	}, r.verdicts())
	require.False(t, r.state.Records[0].AskedAt.IsZero())
	require.True(t, r.state.Records[3].AskedAt.IsZero(), "it was not asked")

	r = begin(t, controller(11, "first", ignore), controller(12, "second"))
	r.input(chain.DeadlineReached{})
	r.rejected(chain.CauseTimeout, "second: the time for admission has passed")
}

func TestDryRunIsRecordedWithoutEffect(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		in      func(q chain.Question) chain.Input
		verdict chain.Verdict
	}{
		"rejects": {func(q chain.Question) chain.Input { return chain.Answered{q, reject("no")} }, chain.VerdictRejected},
		"changes": {
			func(q chain.Question) chain.Input {
				return chain.Answered{q, accept(add("zone_b"), only(2), because("b"))}
			},
			chain.VerdictAccepted,
		},
		"fails": {
			func(q chain.Question) chain.Input { return chain.Failed{Question: q, Message: "down"} }, chain.VerdictFailed,
		},
		"times out": {func(q chain.Question) chain.Input { return chain.TimedOut{q} }, chain.VerdictTimedOut},
		"leaves no runner in common": {
			func(q chain.Question) chain.Input { return chain.Answered{q, accept(only(2))} }, chain.VerdictRejected,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := begin(t, controller(11, "first"), controller(12, "dry", mode(chain.DryRun)))
			if name == "leaves no runner in common" {
				r.answer(accept(only(1)))
			} else {
				r.answer(accept())
			}
			want := r.state.Definition
			r.input(c.in(r.asked(12, 1)))
			r.admitted(want, "")
			record := r.state.Records[1]
			require.Equal(t, c.verdict, record.Verdict)
			require.True(t, record.DryRun)
			require.False(t, record.Effective)
			if name == "changes" {
				require.Equal(t, chain.Diff{AddedTags: []string{"zone_b"}, AcceptedRunners: []int64{2}}, record.Diff)
			}
		})
	}
}

func TestControllersChangeMeanwhile(t *testing.T) {
	t.Parallel()
	revision := func(n int64) func(*chain.Controller) { return func(c *chain.Controller) { c.Revision = n } }

	r := begin(t, controller(11, "first"), controller(12, "second"))
	old := r.asked(11, 1)
	r.input(chain.ControllerChanged{Controller: controller(11, "first", revision(2))})
	r.asked(11, 2)
	r.input(chain.Answered{Question: old, Answer: reject("by the old one")})
	require.Equal(t, chain.ActionWait, r.step.Action)
	r.input(chain.TimedOut{Question: old})
	require.Equal(t, chain.ActionWait, r.step.Action)
	r.input(chain.ControllerChanged{Controller: controller(11, "first", revision(2), mode(chain.Disabled))})
	require.Equal(t, chain.ActionWait, r.step.Action, "the revision is known")
	r.input(chain.ControllerChanged{Controller: controller(11, "first", revision(3), mode(chain.Disabled))})
	r.asked(12, 1)
	r.input(chain.ControllerChanged{Controller: controller(11, "first", revision(4))})
	require.Equal(t, chain.ActionWait, r.step.Action, "its turn is over")
	r.answer(accept())
	r.admitted(linux(), "")

	r = begin(t, controller(11, "first"), controller(12, "second", mode(chain.Disabled)), controller(13, "third"))
	r.input(chain.ControllerChanged{Controller: controller(12, "second", revision(2))})
	require.Equal(t, chain.ActionWait, r.step.Action)
	r.input(chain.ControllerDeleted{ControllerID: 13})
	require.Equal(t, chain.ActionWait, r.step.Action)
	r.input(chain.ControllerDeleted{ControllerID: 11})
	r.asked(12, 1)
	r.answer(reject("enabled before its turn"))
	r.rejected(chain.CauseDenied, "second: enabled before its turn")
	require.Equal(t, []chain.Verdict{chain.VerdictSkipped, chain.VerdictRejected}, r.verdicts())
}

func TestControllerThatDoesNotCareIsSkipped(t *testing.T) {
	t.Parallel()
	r := begin(t, controller(11, "first"))
	r.input(chain.NotMatched{Question: r.question()})
	r.admitted(linux(), "")
	require.Equal(t, []chain.Verdict{chain.VerdictSkipped}, r.verdicts())
}

func TestRunnersOfTheEndCount(t *testing.T) {
	t.Parallel()
	r := begin(t, controller(11, "first"))
	r.input(chain.RunnersChanged{Runners: []chain.Runner{{ID: 9, Tags: []string{"linux", "zone_c"}}}})
	require.Equal(t, chain.ActionWait, r.step.Action)
	r.answer(accept(add("zone_c")))
	r.admitted(linux("zone_c"), "")

	r = begin(t, controller(11, "first"))
	r.input(chain.RunnersChanged{Runners: []chain.Runner{}})
	r.answer(accept(add("zone_a")))
	require.Equal(t, chain.CauseNoRunner, r.step.Cause, "no runner exists")

	r = begin(t, controller(11, "first"))
	r.input(chain.RunnersChanged{})
	r.answer(accept(add("zone_a")))
	r.admitted(linux("zone_a"), "")
}

func TestNothingHappensAfterTheEnd(t *testing.T) {
	t.Parallel()
	for _, end := range []chain.Input{
		chain.JobCanceled{},
		chain.DeadlineReached{},
		chain.Answered{chain.Question{11, 1}, reject("no")},
		chain.Answered{chain.Question{11, 1}, accept()},
	} {
		r := begin(t, controller(11, "first"))
		r.input(end)
		require.NotEmpty(t, r.state.Outcome)
		want := r.state
		for _, in := range []chain.Input{
			chain.Answered{chain.Question{11, 1}, accept(add("zone_a"))},
			chain.Answered{chain.Question{11, 1}, reject("no")},
			chain.Failed{Question: chain.Question{11, 1}},
			chain.TimedOut{chain.Question{11, 1}},
			chain.DeadlineReached{},
			chain.ControllerChanged{controller(11, "first", func(c *chain.Controller) { c.Revision = 9 })},
			chain.ControllerDeleted{11},
			chain.JobCanceled{},
			chain.RunnersChanged{},
			chain.NotMatched{chain.Question{11, 1}},
		} {
			r.input(in)
			require.Equal(t, chain.ActionWait, r.step.Action)
			require.Equal(t, want, r.state)
		}
	}
}

func TestRecordsTellWhoDecidedAndWhen(t *testing.T) {
	t.Parallel()
	r := begin(t, controller(11, "first"))
	asked := r.now
	r.answer(accept(add("zone_a"), remove("linux"), except(3), because("to a")))
	require.Equal(t, []chain.Record{{
		ControllerID: 11, Revision: 1, Name: "first", Level: chain.LevelInstance, Attempt: 1, Verdict: chain.VerdictAccepted,
		Effective: true, Reason: "to a", AskedAt: asked, At: r.now,
		Diff: chain.Diff{AddedTags: []string{"zone_a"}, RemovedTags: []string{"linux"}, RejectedRunners: []int64{3}},
	}}, r.state.Records)
}

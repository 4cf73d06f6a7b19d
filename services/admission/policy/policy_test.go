package policy_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/yamlfile"
	"lockstep.internal/services/admission/payload"
	"lockstep.internal/services/admission/policy"
)

func TestDecisions(t *testing.T) {
	t.Parallel()
	accepted := func(change ...func(*payload.Answer)) payload.Answer {
		a := payload.Answer{JobID: 7, Accepted: true}
		for _, f := range change {
			f(&a)
		}
		return a
	}
	rejected := func(reason string) payload.Answer { return payload.Answer{JobID: 7, Reason: reason} }
	const noRunner = "the policy allows no runner for the job"
	for name, c := range map[string]struct {
		policy string
		want   payload.Answer
	}{
		"deny by login":        {`deny: [{users: [ada], reason: left}]`, rejected("left")},
		"deny by id":           {`deny: [{users: [98123]}]`, rejected("the policy denies the job")},
		"deny of another":      {`deny: [{users: [bob, 5]}]`, accepted()},
		"deny by group":        {`deny: [{groups: [shop]}]`, rejected("the policy denies the job")},
		"deny by membership":   {`deny: [{member_of: [50]}]`, rejected("the policy denies the job")},
		"all kinds must match": {`deny: [{users: [ada], projects: [other]}]`, accepted()},
		"deny a runner": {
			`deny: [{users: [ada], runners: [31], reason: r}]`,
			accepted(func(a *payload.Answer) { a.RejectRunners, a.Reason = []int64{31}, "r" }),
		},
		"deny all runners": {`deny: [{users: [ada], runners: [31, 32]}]`, rejected(noRunner)},
		"allow":            {`allow: [{projects: [shop/web]}]`, accepted()},
		"allow of others": {
			`allow: [{projects: [other], reason: only other}, {users: [bob]}]`,
			rejected("only other"),
		},
		"deny wins over allow":   {"allow: [{users: [ada]}]\ndeny: [{groups: [21], reason: closed}]", rejected("closed")},
		"a runner for two lists": {"allow: [{users: [bob], runners: [31]}, {users: [ada], runners: [31]}]", accepted()},
		"redirect": {
			`redirect: [{users: [ada], add_tags: [zone_a], remove_tags: [zone_b], runners: [32], reason: moved}]`,
			accepted(func(a *payload.Answer) {
				a.AddTags, a.RemoveTags, a.AcceptRunners, a.Reason = []string{"zone_a"}, []string{"zone_b"}, []int64{32}, "moved"
			}),
		},
		"redirect to a denied runner": {
			"redirect: [{users: [ada], runners: [31]}]\ndeny: [{users: [ada], runners: [31], reason: closed}]",
			rejected(noRunner + "; closed"),
		},
		"redirect to an unknown runner": {`redirect: [{users: [ada], runners: [99]}]`, rejected(noRunner)},
		"rule denies": {
			"rules: [{if: user.id == 98123, deny: true, reason_expression: '\"no \" + user.login'}]", rejected("no ada"),
		},
		"rules end with allow": {
			"rules: [{if: 'job.stage == \"test\"', allow: true, add_tags: [a], reason: fine}, {deny: true}]",
			accepted(func(a *payload.Answer) { a.AddTags, a.Reason = []string{"a"}, "fine" }),
		},
		"the last change of a tag counts": {
			"rules: [{add_tags: [a, b]}, {remove_tags: [a]}, {add_tags: [c]}, {remove_tags: [c]}, {add_tags: [c]}]",
			accepted(func(a *payload.Answer) { a.AddTags, a.RemoveTags = []string{"b", "c"}, []string{"a"} }),
		},
		"runners of rules intersect": {
			"rules: [{accept_runners_if: runner.id < 40}, {accept_runners_if: runner.id > 31}]",
			accepted(func(a *payload.Answer) { a.AcceptRunners = []int64{32} }),
		},
		"no runner in common": {
			"rules: [{accept_runners_if: runner.id == 31, reason: one}, {accept_runners_if: runner.id == 32}]",
			rejected(noRunner + "; one"),
		},
		"rule rejects runners": {
			`rules: [{reject_runners_if: '"DiscoveryOne" in runner.tags', reason: busy}]`,
			accepted(func(a *payload.Answer) { a.RejectRunners, a.Reason = []int64{31}, "busy" }),
		},
		"a variable called runner": {
			"rules: [{deny: true, if: 'runners.exists(runner, runner.id == 31)'}]",
			rejected("the policy denies the job"),
		},
		"match excludes the job": {"match: variables.CI_PIPELINE_SOURCE == 'push'\nrules: [{deny: true}]", accepted()},
		"match includes the job": {
			"match: variables.CI_PIPELINE_SOURCE == 'api'\nrules: [{deny: true}]",
			rejected("the policy denies the job"),
		},
		"all of the environment": {
			`rules: [{deny: true, if: 'job.id == 7 && job.pipeline_id == 3 && job.name == "test" && !job.protected &&
        job.attempt == 1 && project.id == 4 && project.path == "shop/web" &&
        user.groups.exists(g, g.path == "hpc" && g.id == 50) &&
        groups[0].path == "shop" && variables[?"NONE"].orValue("x") == "x" && !("NONE" in variables) &&
        runners.size() == 2 &&
        runners.all(r, !r.paused && !r.protected && !r.run_untagged && r.type == "" && r.description == "") &&
        data.n == 1 && data.list == ["a", true, 1.5, null]'}]
data: {n: 1, list: [a, true, 1.5, null]}`, rejected("the policy denies the job"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := parse(t, c.policy)
			for range 3 {
				require.Equal(t, c.want, evaluate(t, p, input()))
			}
		})
	}
}

func TestInvalidPoliciesAreRefusedWithPositions(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ content, want string }{
		{"", "policy.yaml:1:1: the file is empty: write a list or a rule"},
		{"a\nb: c", "policy.yaml:2:1: not valid YAML: "},
		{"[]", "policy.yaml:1:1: the file must be a mapping with allow, deny, redirect or rules, not a list"},
		{"data: {}", "policy.yaml:1:1: the policy decides nothing: write a list or a rule"},
		{"rule: []", `policy.yaml:1:1: a policy has no keyword "rule": did you mean "rules"?`},
		{"rules: [{iff: true, deny: true}]", `policy.yaml:1:10: a rule has no keyword "iff"`},
		{"rules:\n  - deny: true\n    if: user.nam == 1", "policy.yaml:3:9: if: undefined field 'nam', at line 1, character 5 of the expression"},
		{"rules: [{if: 1 + 1, deny: true}]", "the expression is of type int: it must be bool"},
		{"rules: [{if: 'runner.id == 1', deny: true}]", "undeclared reference to 'runner'"},
		{"rules: [{if: '', deny: true}]", `if must be an expression in CEL, not ""`},
		{"rules: [{deny: true, allow: true}]", "policy.yaml:1:22: a rule has either allow or deny"},
		{"rules: [{deny: false}]", `deny must be true, not "false"`},
		{"rules: [{if: 'true'}]", "a rule needs allow, deny, or a change of tags or runners"},
		{"rules: [{deny: true, add_tags: [a]}]", "a rule with deny cannot change tags or runners"},
		{"rules: [{add_tags: [a], remove_tags: [a]}]", `the tag "a" is both added and removed`},
		{"rules: [{allow: true, reason: a, reason_expression: '\"b\"'}]", "a rule has either reason or reason_expression"},
		{"rules: [{add_tags_expression: '[1]'}]", "the expression is of type list(int): it must be list(string)"},
		{"allow: [{}]", "an item of allow needs users, projects, groups or member_of"},
		{"allow: [{users: []}]", "users is empty: remove it, or name at least one"},
		{"allow: [{users: [-1]}]", `an id in users must be a positive number, not "-1"`},
		{"allow: [{users: [a], runners: [x]}]", `the id of a runner must be a positive number, not "x"`},
		{"allow: [{users: [a], add_tags: [x]}]", `an item of allow has no keyword "add_tags"`},
		{"redirect: [{users: [a]}]", "an item of redirect needs add_tags, remove_tags or runners"},
		{"redirect: [{users: [a], add_tags: [\"\\a\"]}]", "has a control character"},
		{"data: {x: .inf}\nrules: [{deny: true}]", "is not a number that data may have"},
		{"data: {x: 0x1F}\nrules: [{deny: true}]", "must be a decimal integer of 64 bits"},
		{"rules: [" + strings.Repeat("{deny: true},", 101) + "]", "rules has 101 items: at most 100 are allowed"},
		{"rules: [{if: '" + strings.Repeat("x", 5000) + "', deny: true}]", "the expression has more than 4096 characters"},
		{
			"deny: [{users: [a], reason: " + strings.Repeat("x", 2001) + "}]",
			"reason has 2001 characters: at most 2000 are allowed",
		},
	} {
		_, err := policy.Parse("policy.yaml", []byte(c.content))
		require.ErrorContains(t, err, c.want)
		var e *yamlfile.Error
		require.ErrorAs(t, err, &e)
	}
	_, err := policy.Parse("p", []byte("rules: [{deny: 1}]\nmatch: '+'\nallow: {}"))
	require.Len(t, strings.Split(err.Error(), "\n"), 4, "every problem is reported: %v", err)
}

func TestFailingExpressionIsAnErrorAndNoAnswer(t *testing.T) {
	t.Parallel()
	const expensive = `[1,2,3,4,5,6,7,8,9].all(a, [1,2,3,4,5,6,7,8,9].all(b, [1,2,3,4,5,6,7,8,9].all(c, ` +
		`[1,2,3,4,5,6,7,8,9].all(d, [1,2,3,4,5,6,7,8,9].all(e, a+b+c+d+e > 0)))))`
	for content, want := range map[string]string{
		"rules: [{deny: true, if: 'variables.NONE == \"\"'}]":         "policy.yaml:1:26: if: no such key: NONE",
		"rules: [{deny: true, if: 'data.x'}]\ndata: {x: 1}":           "the result is not true or false",
		"rules: [{add_tags_expression: '[\"\"]'}]":                    "a tag must not be empty",
		"rules: [{add_tags_expression: 'data.x'}]\ndata: {x: [1]}":    "the result is not a list of texts",
		"rules: [{add_tags: [a], remove_tags_expression: '[\"a\"]'}]": `both adds and removes the tag "a"`,
		"rules: [{deny: true, if: '" + expensive + "'}]":              "cost limit",
		"match: runners[9].id == 1\nrules: [{deny: true}]":            "policy.yaml:1:8: match: index out of bounds",
		"rules: [{accept_runners_if: 'runner.tags[5] == \"x\"'}]":     "index out of bounds",
	} {
		a, err := parse(t, content).Evaluate(t.Context(), input())
		var failed *policy.EvaluationError
		require.ErrorAs(t, err, &failed, content)
		require.ErrorContains(t, err, want)
		require.Zero(t, a)
	}
}

func TestEvaluationEndsAtTheTimeout(t *testing.T) {
	t.Parallel()
	many := input()
	for i := range 5000 {
		many.Runners = append(many.Runners, policy.Runner{ID: int64(100 + i), Tags: []string{"linux"}})
	}
	content := "rules:\n" + strings.Repeat("  - accept_runners_if: runners.filter(r, r.id < 500).all(r, r.id > 0)\n", 50)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := parse(t, content).Evaluate(ctx, many)
	require.ErrorContains(t, err, "the policy was not evaluated in time")
}

func TestMatchConditionOfController(t *testing.T) {
	t.Parallel()
	c, err := policy.CompileCondition(`project.path.startsWith("shop/")`)
	require.NoError(t, err)
	for path, want := range map[string]bool{"shop/web": true, "bank/web": false} {
		got, err := c.Matches(t.Context(), input(of(1, path)))
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	_, err = policy.CompileCondition("1")
	require.ErrorContains(t, err, "match: the expression is of type int")
	failing, err := policy.CompileCondition(`variables.NONE == ""`)
	require.NoError(t, err)
	_, err = failing.Matches(t.Context(), policy.Input{})
	require.ErrorContains(t, err, "match: no such key: NONE")
}

func TestInputsAreReadFromObjectsAndPayloads(t *testing.T) {
	t.Parallel()
	in, err := policy.DecodeInput([]byte(` [{"id":7,"tags":["linux"],"variables":{"CI_PROJECT_ID":4,"CI_PROJECT_PATH":
		"shop/eu/web","CI_PROJECT_NAMESPACE":"shop/eu","GITLAB_USER_ID":98123,"GITLAB_USER_LOGIN":"ada","CI_PIPELINE_ID":3,
		"CI_JOB_NAME":"unit","CI_JOB_STAGE":"test","CI_COMMIT_REF_PROTECTED":"true"}}]`))
	require.NoError(t, err)
	require.Equal(t, policy.Job{
		ID: 7, PipelineID: 3, Name: "unit", Stage: "test", Tags: []string{"linux"}, Protected: true, Attempt: 1,
	}, in.Job)
	require.Equal(t, policy.Project{ID: 4, Path: "shop/eu/web"}, in.Project)
	require.Equal(t, policy.User{ID: 98123, Login: "ada"}, in.User)
	require.Equal(t, []policy.Group{{Path: "shop/eu"}, {Path: "shop"}}, in.Groups)
	in, err = policy.DecodeInput([]byte(`{"job":{"id":7},"runners":[{"id":31,"run_untagged":true}]}`))
	require.NoError(t, err)
	require.True(t, in.Runners[0].RunUntagged)
	for document, want := range map[string]string{
		`{"jobs":{}}`: `unknown object member name "jobs"`, `{`: "not valid", `[]`: "the array is empty",
		strings.Repeat(" ", payload.MaxBytes+1): "more than 1048576 bytes",
	} {
		_, err := policy.DecodeInput([]byte(document))
		require.ErrorContains(t, err, want)
	}
}

// FuzzPolicy checks that any content is refused with positions, or decides without a panic within the limits.
func FuzzPolicy(f *testing.F) {
	for _, content := range []string{
		"rules: [{if: user.id == 1, deny: true, reason: x}]", "allow: [{users: [1, a], runners: [31]}]",
		"data: {a: &a [1], b: *a}\nrules: [{add_tags_expression: 'data.a'}]",
		"match: 'true'\nrules: [{reject_runners_if: 'true'}]",
	} {
		f.Add([]byte(content))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		p, err := policy.Parse("p", content)
		if err != nil {
			var e *yamlfile.Error
			require.ErrorAs(t, err, &e)
			require.NotEmpty(t, e.Problems)
			return
		}
		a, err := p.Evaluate(t.Context(), input())
		if err != nil {
			require.Zero(t, a)
			return
		}
		_, err = payload.ReadAnswer("application/json", strings.NewReader(string(payload.EncodeAnswer(a))), a.JobID)
		require.NoError(t, err)
	})
}

package pipeline_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/runners/cifile"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/pipeline"
)

func TestPlanHasEverythingOfTheFile(t *testing.T) {
	t.Parallel()
	in := input()
	in.Ref.Protected = true
	jobs := plan(t, `
stages: [build, test]
default:
  before_script: [setup]
unit:
  script: [make test]
  after_script: [clean]
  needs: [compile, {job: docs, artifacts: false}]
  when: on_failure
  tags: [linux]
  timeout: 10m
  retry: {max: 2, when: script_failure}
  allow_failure: {exit_codes: [3], on_denied_admission: true}
compile:
  stage: build
  script: [make]
  artifacts: {name: bin, paths: [bin], exclude: [bin/tmp], untracked: true, when: always, expire_in: 1 week}
docs:
  stage: build
  script: [make docs]
`, in)
	require.Equal(t, []string{"compile", "docs", "unit"}, names(jobs))
	require.Equal(t, &job.Artifacts{
		Name: "bin", Paths: []string{"bin"}, Exclude: []string{"bin/tmp"}, Untracked: true, When: job.Always,
		ExpireIn: "1 week",
	}, jobs[0].Definition.Artifacts)
	require.Equal(t, pipeline.Node{
		Name: "compile", Group: "compile", Stage: "build", StageIndex: 1, When: job.OnSuccess, HasArtifacts: true,
	}, jobs[0].Node)
	require.Equal(t, time.Hour, jobs[0].Timeout)
	unit := jobs[2]
	require.NotEmpty(t, unit.Definition.Variables)
	unit.Definition.Variables = nil
	require.Equal(t, pipeline.Job{
		Node: pipeline.Node{
			Name: "unit", Group: "unit", Stage: "test", StageIndex: 2, When: job.OnFailure, HasNeeds: true,
			Needs: []pipeline.Need{{Group: "compile", Artifacts: true}, {Group: "docs"}},
		},
		Definition: job.Definition{Script: []string{"setup", "make test"}, AfterScript: []string{"clean"}},
		Policy: job.Policy{
			Retries: 2, RetryWhen: []job.FailureReason{job.ScriptFailure}, AllowExitCodes: []int{3},
			AllowDeniedAdmission: true,
		},
		Tags: []string{"linux"}, Timeout: 10 * time.Minute, Protected: true,
	}, unit)
}

func TestFirstMatchingRuleDecides(t *testing.T) {
	t.Parallel()
	const content = `
other: {script: x}
job:
  script: x
  allow_failure: {exit_codes: 3, on_denied_admission: true}
  variables: {LEVEL: job}
  rules:
    - if: $MODE == "off"
      when: never
    - if: $MODE == "failure"
      when: on_failure
      allow_failure: true
    - if: $MODE == "strict"
      allow_failure: false
    - if: $LEVEL == "rule"
    - if: $LEVEL == "job" && $MODE == "variable"
      variables: {LEVEL: rule}
    - if: $CI_PIPELINE_ID
      when: always
    - if: $CI_COMMIT_BRANCH == $CI_DEFAULT_BRANCH && $MODE == "branch"
      when: always
    - if: $CI_JOB_NAME == "job" && $MODE == "name"
      when: always
`
	own := job.Policy{AllowExitCodes: []int{3}, AllowDeniedAdmission: true}
	for mode, want := range map[string]*pipeline.Job{
		"off":      nil,
		"none":     nil,
		"failure":  {Node: pipeline.Node{When: job.OnFailure}, Policy: job.Policy{AllowFailure: true}},
		"strict":   {Node: pipeline.Node{When: job.OnSuccess}, Policy: job.Policy{}},
		"variable": {Node: pipeline.Node{When: job.OnSuccess}, Policy: own},
		"branch":   {Node: pipeline.Node{When: job.Always}, Policy: own},
		"name":     {Node: pipeline.Node{When: job.Always}, Policy: own},
	} {
		jobs := plan(t, content, with("MODE", mode))
		if want == nil {
			require.Equal(t, []string{"other"}, names(jobs), mode)
			continue
		}
		require.Equal(t, []string{"other", "job"}, names(jobs), mode)
		require.Equal(t, want.When, jobs[1].When, mode)
		require.Equal(t, want.Policy, jobs[1].Policy, mode)
		level := map[bool]string{true: "rule", false: "job"}[mode == "variable"]
		require.Equal(t, level, value(jobs[1], "LEVEL"), mode)
	}
}

func TestRuleWithoutConditionMatches(t *testing.T) {
	t.Parallel()
	jobs := plan(t, "job: {script: x, when: always, rules: [{if: $ABSENT}, {allow_failure: true}]}", input())
	require.Equal(t, job.Always, jobs[0].When, "the when of the job is that of a rule without one")
	require.True(t, jobs[0].Policy.AllowFailure)
}

func TestLaterVariablesHavePrecedence(t *testing.T) {
	t.Parallel()
	in := input()
	in.ProjectVariables = []job.Variable{{Key: "P", Value: "project", Masked: true}, {Key: "Q", Value: "project"}}
	in.Variables = []job.Variable{{Key: "Q", Value: "user"}, {Key: "CI_COMMIT_REF_NAME", Value: "user"}}
	jobs := plan(t, `
variables: {CI: file, F: file, J: file, M: file, R: file, P: file, Q: file, RAW: {value: $F, expand: false}}
job:
  script: x
  variables: {J: job, M: job, R: job, P: job, Q: job}
  parallel: {matrix: [{M: [matrix], R: [matrix], P: [matrix], Q: [matrix]}]}
  rules: [{variables: {R: rule, P: rule, Q: rule}}]
`, in)
	require.Equal(t, []string{"job: [matrix, matrix, matrix, matrix]"}, names(jobs))
	for key, want := range map[string]string{
		"CI": "file", "F": "file", "J": "job", "M": "matrix", "R": "rule", "P": "project", "Q": "user",
		"CI_COMMIT_REF_NAME": "user", "RAW": "$F",
	} {
		require.Equal(t, want, value(jobs[0], key), key)
	}
	found := map[string]job.Variable{}
	for _, v := range jobs[0].Definition.Variables {
		require.NotContains(t, found, v.Key)
		found[v.Key] = v
	}
	require.True(t, found["RAW"].Raw)
	require.False(t, found["F"].Raw)
	require.True(t, found["P"].Masked)
}

func TestReferencesInVariablesAreReplaced(t *testing.T) {
	t.Parallel()
	const content = `
variables: {IMAGE: "$REPOSITORY:$CI_COMMIT_REF_SLUG", REPOSITORY: "$HOST/app", HOST: registry.example.com}
job: {script: x, rules: [{if: $IMAGE == "$REPOSITORY:$CI_COMMIT_REF_SLUG", variables: {OWN: "<$IMAGE>"}}]}
`
	jobs := plan(t, content, input())
	require.Equal(t, "<registry.example.com/app:$CI_COMMIT_REF_SLUG>", value(jobs[0], "OWN"),
		"the runner replaces references to raw variables")
	in := input()
	in.Limits.Total = 2000
	for key := 'B'; key <= 'M'; key++ {
		in.Variables = append(in.Variables, job.Variable{Key: string(key), Value: strings.Repeat("$"+string(key-1), 3)})
	}
	in.Variables = append(in.Variables, job.Variable{Key: "A", Value: "xx"})
	require.Equal(t, `.gitlab-ci.yml:3:1: the variables of the job "job" have more than 2000 bytes after their `+
		`references were replaced`, refused(t, content, in))
}

func TestPredefinedVariables(t *testing.T) {
	t.Parallel()
	in := input()
	in.Ref = pipeline.Ref{Name: "Feature/Über-long_" + strings.Repeat("x", 80), Protected: true}
	jobs := plan(t, "Unit Test: {script: x, parallel: 2}", in)
	for key, want := range map[string]string{
		"CI": "true", "GITLAB_CI": "true", "CI_CONFIG_PATH": fileName, "CI_PIPELINE_ID": "3", "CI_PIPELINE_SOURCE": "api",
		"CI_PROJECT_ID": "4", "CI_PROJECT_NAME": "app", "CI_PROJECT_PATH": "acme/tools/app",
		"CI_PROJECT_PATH_SLUG": "acme-tools-app", "CI_PROJECT_NAMESPACE": "acme/tools",
		"CI_PROJECT_ROOT_NAMESPACE": "acme", "CI_DEFAULT_BRANCH": "main", "CI_COMMIT_REF_NAME": in.Ref.Name,
		"CI_COMMIT_BRANCH": in.Ref.Name, "CI_COMMIT_TAG": "absent", "CI_COMMIT_REF_PROTECTED": "true",
		"CI_COMMIT_REF_SLUG": "feature---ber-long-" + strings.Repeat("x", 44),
		"GITLAB_USER_ID":     "5", "GITLAB_USER_LOGIN": "ada", "CI_SERVER_URL": "https://ci.example.com",
		"CI_SERVER_HOST": "ci.example.com", "CI_SERVER_PORT": "443", "CI_SERVER_PROTOCOL": "https",
		"CI_API_V4_URL": "https://ci.example.com/api/v4", "CI_JOB_NAME": "Unit Test 2/2", "CI_JOB_STAGE": "test",
		"CI_JOB_NAME_SLUG": "unit-test-2-2", "CI_NODE_INDEX": "2", "CI_NODE_TOTAL": "2",
	} {
		require.Equal(t, want, value(jobs[1], key), key)
	}
	require.Equal(t, "absent", value(plan(t, "job: {script: x}", pipeline.Input{})[0], "CI_COMMIT_BRANCH"))
	in.Ref, in.PipelineID, in.User, in.ServerURL = pipeline.Ref{Name: "v1", Tag: true}, 0, pipeline.User{}, nil
	jobs = plan(t, "job: {script: x}", in)
	for key, want := range map[string]string{
		"CI_COMMIT_TAG": "v1", "CI_COMMIT_BRANCH": "absent", "CI_PIPELINE_ID": "absent", "GITLAB_USER_ID": "absent",
		"CI_SERVER_URL": "absent", "CI_NODE_INDEX": "absent", "CI_NODE_TOTAL": "1",
	} {
		require.Equal(t, want, value(jobs[0], key), key)
	}
}

func TestParallelJobsHaveTheNamesOfGitLab(t *testing.T) {
	t.Parallel()
	jobs := plan(t, `
test: {script: x, parallel: 3}
one: {script: x, parallel: 1}
deploy:
  stage: deploy
  script: x
  parallel:
    matrix:
      - PROVIDER: aws
        STACK: [monitoring, app1]
      - PROVIDER: [gcp, vultr]
        STACK: [data]
  rules: [{if: $STACK != "app1"}]
`, input())
	require.Equal(t, []string{
		"test 1/3", "test 2/3", "test 3/3", "one 1/1",
		"deploy: [aws, monitoring]", "deploy: [gcp, data]", "deploy: [vultr, data]",
	}, names(jobs), "rules decide about each copy")
	require.Equal(t, "test", jobs[1].Group)
	require.Equal(t, "2", value(jobs[1], "CI_NODE_INDEX"))
	gcp := jobs[5]
	require.Equal(t, "deploy", gcp.Group)
	require.Equal(t, []string{"gcp", "data", "3", "4"}, []string{
		value(gcp, "PROVIDER"), value(gcp, "STACK"), value(gcp, "CI_NODE_INDEX"), value(gcp, "CI_NODE_TOTAL"),
	})
}

func TestTimeouts(t *testing.T) {
	t.Parallel()
	const content = "own: {script: x, timeout: 2h}\nplain: {script: x}"
	jobs := plan(t, content, input())
	require.Equal(t, []time.Duration{2 * time.Hour, time.Hour}, []time.Duration{jobs[0].Timeout, jobs[1].Timeout})
	in := input()
	in.MaximumTimeout = 30 * time.Minute
	require.Equal(t, `.gitlab-ci.yml:1:1: the job "own" has a timeout of 2h0m0s: at most 30m0s is allowed`,
		refused(t, content, in))
	require.Equal(t, 30*time.Minute, plan(t, "plain: {script: x}", in)[0].Timeout)
	in.DefaultTimeout = time.Minute
	require.Equal(t, time.Minute, plan(t, "plain: {script: x}", in)[0].Timeout)
}

func TestPlanIsOrderedByStageAndNeeds(t *testing.T) {
	t.Parallel()
	jobs := plan(t, `
after: {stage: .post, script: x}
c: {script: x, needs: [b]}
b: {script: x, needs: [a, first], parallel: 2}
a: {script: x}
first: {stage: build, script: x}
before: {stage: .pre, script: x}
`, input())
	require.Equal(t, []string{"before", "first", "a", "b 1/2", "b 2/2", "c", "after"}, names(jobs))
}

func TestOptionalNeeds(t *testing.T) {
	t.Parallel()
	const content = `
build: {stage: build, script: x, rules: [{if: $BUILD}]}
test:
  script: x
  needs: [{job: build, optional: true}, {job: absent, optional: true}]
`
	jobs := plan(t, content, with("BUILD", "1"))
	require.Equal(t, []pipeline.Need{{Group: "build", Artifacts: true}}, jobs[1].Needs)
	jobs = plan(t, content, input())
	require.Equal(t, []string{"test"}, names(jobs))
	require.True(t, jobs[0].HasNeeds, "the job begins at once")
	require.Empty(t, jobs[0].Needs)
}

func TestPlanReportsAllProblems(t *testing.T) {
	t.Parallel()
	require.Equal(t, strings.Join([]string{
		`.gitlab-ci.yml:5:42: the job "early" needs "late" of the later stage "deploy": move one of them to another stage`,
		`.gitlab-ci.yml:8:24: needs run in a circle: "c" → "a" → "b" → "c"`,
		`.gitlab-ci.yml:9:27: the job "user" needs "never", which is not added: its rule 1 has when: never; ` +
			`if that is intended, write optional: true`,
		`.gitlab-ci.yml:9:34: the job "user" needs "copies 1/2", one copy of a parallel job: write "copies" to need all of ` +
			`its copies`,
		`.gitlab-ci.yml:12:1: the matrix of the job "twice" makes "twice: [x]" twice`,
		`.gitlab-ci.yml:13:1: the job "long" has a copy whose name has more than 255 bytes: use shorter values in the matrix`,
		`.gitlab-ci.yml:14:1: the copy "line: [a\nb]" of the job "line" has a control character: use other values in the ` +
			`matrix`,
		`.gitlab-ci.yml:15:1: the jobs "copies" and "copies 2/2" both make a job with the name "copies 2/2": rename one`,
	}, "\n"), refused(t, strings.Replace(`
stages: [build, test, deploy]

late: {stage: deploy, script: x}
early: {stage: build, script: x, needs: [late]}
c: {script: x, needs: [a]}
a: {script: x, needs: [b]}
b: {script: x, needs: [c]}
user: {script: x, needs: [never, {job: copies 1/2, optional: true}]}
never: {script: x, rules: [{when: never}]}
copies: {script: x, parallel: 2}
twice: {script: x, parallel: {matrix: [{A: x}, {B: x}]}}
long: {script: x, parallel: {matrix: [{A: LONG}]}}
line: {script: x, parallel: {matrix: [{A: "a\nb"}]}}
copies 2/2: {script: x}
`, "LONG", strings.Repeat("x", 250), 1), input()))
}

func TestLongCircleIsShortened(t *testing.T) {
	t.Parallel()
	var content strings.Builder
	for i := range 30 {
		fmt.Fprintf(&content, "j%d: {script: x, needs: [j%d]}\n", i, (i+1)%30)
	}
	got := refused(t, content.String(), input())
	require.Contains(t, got, `30:26: needs run in a circle: "j0" → "j1" → `)
	require.Contains(t, got, `"j19" → … → "j0"`)
}

func TestManyProblemsTakeLittleMemory(t *testing.T) {
	t.Parallel()
	var content strings.Builder
	for i := range 200 {
		fmt.Fprintf(&content, "j%d:\n  script: x\n  needs:\n", i)
		for n := range 50 {
			fmt.Fprintf(&content, "    - j%d\n", (i+n+1)%200)
		}
	}
	_, err := pipeline.NewPlan(parse(t, content.String()), input())
	var problems *cifile.Error
	require.ErrorAs(t, err, &problems)
	require.Len(t, problems.Problems, 20)
	require.Equal(t, 980, problems.More)
}

func TestEmptyPipelineTellsWhy(t *testing.T) {
	t.Parallel()
	require.Equal(t, strings.Join([]string{
		`.gitlab-ci.yml:1:1: the pipeline has no jobs: the job "a" is not added, none of its rules matches`,
		`.gitlab-ci.yml:2:1: the pipeline has no jobs: the job "b" is not added, its list of rules is empty`,
		`.gitlab-ci.yml:3:1: the pipeline has no jobs: the job "c" is not added, its rule 2 has when: never`,
	}, "\n"), refused(t, `a: {script: x, parallel: 9, rules: [{if: $ABSENT}]}
b: {script: x, rules: []}
c: {script: x, rules: [{if: $ABSENT}, {if: $CI, when: never}, {when: always}]}
`, input()))
	require.Equal(t, `.gitlab-ci.yml:1:1: the pipeline has jobs of the stages .pre and .post only: add a job of another stage`,
		refused(t, "a: {script: x, stage: .pre}\nb: {script: x, stage: .post}", input()))
}

func TestPlanIsLimited(t *testing.T) {
	t.Parallel()
	in := with("LARGE", strings.Repeat("x", 1000))
	in.Limits.Total = 100_000
	require.Contains(t, refused(t, "a: {script: x, parallel: 100}", in), "have more than 100000 bytes")
	require.Contains(t, refused(t, "a: {script: x, parallel: 100, rules: [{if: $ABSENT}]}", in), "more than 100000 bytes",
		"the limit bounds the work for jobs that are not added too")
	in.Limits.Total = 200_000
	require.Len(t, plan(t, "a: {script: x, parallel: 100}", in), 100)
	expanded := "a: {script: x, parallel: 20, variables: {A: $LARGE, B: $LARGE, C: $LARGE, D: $LARGE, E: $LARGE}}"
	in.Limits.Total = 100_000
	require.Contains(t, refused(t, expanded, in), "more than 100000 bytes", "references count with their values")
	in.Limits.Total = 200_000
	plan(t, expanded, in)
	in.Limits.Jobs = 99
	require.Contains(t, refused(t, "a: {script: x, parallel: 98}\nb: {script: x, parallel: 2}", in),
		".gitlab-ci.yml:2:1: the pipeline has more than 99 jobs")
	const slow = "a: {script: x, rules: [{if: '$LARGE =~ /x{400}x{400}$/'}]}"
	require.Contains(t, refused(t, slow, with("LARGE", strings.Repeat("x", 200_000))), "take too long to evaluate")
	plan(t, "a: {script: x, rules: [{if: '$LARGE =~ /xx$/'}]}", with("LARGE", strings.Repeat("x", 200_000)))
}

func TestEveryPartOfADefinitionCounts(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 1000)
	in := input()
	in.Limits.Total = 100_000
	for _, part := range []string{
		"script: [LONG]", "script: x, before_script: [LONG]", "script: x, after_script: [LONG]",
		"script: x, artifacts: {name: LONG, paths: [x]}", "script: x, artifacts: {paths: [LONG]}",
		"script: x, artifacts: {paths: [x], exclude: [LONG]}", "script: x, variables: {A: LONG}",
		"script: x, rules: [{if: $ABSENT, variables: {A: LONG}}, {when: on_success}]",
	} {
		content := "a: {parallel: 90, " + part + "}"
		require.Contains(t, refused(t, strings.Replace(content, "LONG", long, 1), in), "more than 100000 bytes", part)
		plan(t, strings.Replace(content, "LONG", "x", 1), in)
	}
}

func TestArtifactsOfTooManyJobsAreRefused(t *testing.T) {
	t.Parallel()
	const content = `
build: {stage: build, script: x, parallel: %d, artifacts: {paths: [x]}}
lint: {stage: build, script: x, parallel: 100}
test: {script: x}
deploy: {stage: deploy, script: x, needs: [{job: build, artifacts: %t}]}
`
	plan(t, fmt.Sprintf(content, 64, true), input())
	got := refused(t, fmt.Sprintf(content, 65, true), input())
	require.Equal(t, `.gitlab-ci.yml:4:1: the job "test" downloads the artifacts of 65 jobs: at most 64 are allowed; `+
		`name the jobs in needs, with artifacts: false where they are not used`+"\n"+
		`.gitlab-ci.yml:5:1: the job "deploy" downloads the artifacts of 65 jobs: at most 64 are allowed; `+
		`name the jobs in needs, with artifacts: false where they are not used`, got)
	require.NotContains(t, refused(t, fmt.Sprintf(content, 65, false), input()), "deploy")
}

func TestArtifactJobs(t *testing.T) {
	t.Parallel()
	jobs := statuses(plan(t, `
unit: {script: x, artifacts: {paths: [x]}, parallel: 2}
lint: {script: x}
build: {stage: build, script: x, artifacts: {paths: [x]}}
deploy: {stage: deploy, script: x}
publish: {stage: deploy, script: x, needs: [unit, lint, {job: build, artifacts: false}], artifacts: {paths: [x]}}
notify: {stage: .post, script: x, needs: []}
`, input()))
	for name, want := range map[string][]string{
		"build": {}, "unit 2/2": {"build"}, "deploy": {"build", "unit 1/2", "unit 2/2"},
		"publish": {"unit 1/2", "unit 2/2"}, "notify": {},
	} {
		require.Equal(t, want, pipeline.ArtifactJobs(jobs, name), name)
	}
	require.Nil(t, pipeline.ArtifactJobs(jobs, "absent"))
}

// TestPlanChecksFilesThatWereNotParsed covers what Parse refuses.
func TestPlanChecksFilesThatWereNotParsed(t *testing.T) {
	t.Parallel()
	ok := cifile.Job{Name: "ok", Stage: "test", Script: []string{"x"}}
	with := func(change func(*cifile.Job)) cifile.Job {
		other := cifile.Job{Name: "other", Stage: "test", Script: []string{"x"}}
		change(&other)
		return other
	}
	for want, second := range map[string]cifile.Job{
		`the stage "x" of the job "other" is not in stages`: with(func(j *cifile.Job) { j.Stage = "x" }),
		`the file has two jobs with the name "ok"`:          with(func(j *cifile.Job) { j.Name = "ok" }),
		`needs "absent", which is not in the file`: with(func(j *cifile.Job) {
			j.HasNeeds, j.Needs = true, []cifile.Need{{Job: "absent"}}
		}),
		`needs run in a circle: "other" → "other"`: with(func(j *cifile.Job) {
			j.HasNeeds, j.Needs = true, []cifile.Need{{Job: "other"}}
		}),
	} {
		_, err := pipeline.NewPlan(&cifile.File{
			Name: fileName, Stages: []string{".pre", "test", ".post"}, Jobs: []cifile.Job{ok, second},
		}, input())
		require.ErrorContains(t, err, want)
	}
	_, err := pipeline.NewPlan(&cifile.File{Name: fileName, Stages: []string{"test"}, Jobs: []cifile.Job{
		with(func(j *cifile.Job) { j.Parallel.Matrix = [][]cifile.Axis{{{Name: "A"}}} }),
	}}, input())
	require.ErrorContains(t, err, `"other" is not added, its matrix has no values`)
}

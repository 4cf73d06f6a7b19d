package cifile_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/runners/cifile"
)

const fileName = ".gitlab-ci.yml"

func parse(t *testing.T, content string) *cifile.File {
	t.Helper()
	file, err := cifile.Parse(fileName, []byte(content), cifile.Limits{})
	require.NoError(t, err)
	return file
}

func TestParseReadsEveryKeyword(t *testing.T) {
	t.Parallel()
	file := parse(t, `
stages: [build, test, deploy]
variables:
  GLOBAL: value
  COUNT: 3
  RAW:
    value: $NOT_EXPANDED
    expand: false
    description: for people
default:
  before_script: echo default
  tags: [linux]
  retry: 1
  timeout: 1h 30m
compile:
  stage: build
  script:
    - make
    - [make install, [make check]]
  artifacts:
    name: binaries
    paths: [bin/, "*.so"]
    exclude: bin/*.tmp
    untracked: true
    when: always
    expire_in: 1 week
unit:
  needs:
    - compile
    - job: lint
      artifacts: false
      optional: true
  before_script: []
  script: make test
  after_script: [echo done]
  tags: [gpu, linux, gpu]
  variables: {LOCAL: "1", EMPTY: }
  when: on_failure
  timeout: 600
  retry:
    max: 2
    when: [script_failure, runner_system_failure]
  allow_failure:
    exit_codes: 3
    on_denied_admission: true
  rules:
    - if: $GLOBAL == "value"
      when: always
      allow_failure: true
      variables: {FROM_RULE: yes}
    - when: never
    - if: $X
release:
  stage: .post
  needs: []
  script: make release
  allow_failure: true
  parallel: 3
matrix:
  stage: .pre
  script: make
  parallel:
    matrix:
      - OS: [linux, darwin]
        ARCH: amd64
      - OS: windows
        VERSION: [10, 11]
`)
	position := func(line, column int) cifile.Position { return cifile.Position{Line: line, Column: column} }
	require.Equal(t, fileName, file.Name)
	require.Equal(t, []string{".pre", "build", "test", "deploy", ".post"}, file.Stages)
	require.Equal(t, []cifile.Variable{
		{Name: "GLOBAL", Value: "value"},
		{Name: "COUNT", Value: "3"},
		{Name: "RAW", Value: "$NOT_EXPANDED", Raw: true},
	}, file.Variables)
	require.Len(t, file.Jobs, 4)

	inherited := cifile.Job{
		Tags: []string{"linux"}, BeforeScript: []string{"echo default"}, Timeout: 90 * time.Minute,
		Retry: cifile.Retry{Max: 1}, When: cifile.OnSuccess,
	}
	compile := inherited
	compile.Position, compile.Name, compile.Stage = position(15, 1), "compile", "build"
	compile.Script = []string{"make", "make install", "make check"}
	compile.Artifacts = &cifile.Artifacts{
		Name: "binaries", Paths: []string{"bin/", "*.so"}, Exclude: []string{"bin/*.tmp"}, Untracked: true,
		When: cifile.Always, ExpireIn: "1 week",
	}
	require.Equal(t, compile, file.Jobs[0])

	unit := file.Jobs[1]
	require.Len(t, unit.Rules, 3)
	require.Equal(t, `$GLOBAL == "value"`, unit.Rules[0].If.String())
	require.Equal(t, `$X`, unit.Rules[2].If.String())
	unit.Rules[0].If, unit.Rules[2].If = nil, nil
	require.Equal(t, cifile.Job{
		Position: position(27, 1), Name: "unit", Stage: "test", Script: []string{"make test"},
		AfterScript: []string{"echo done"}, Tags: []string{"gpu", "linux"},
		Variables: []cifile.Variable{{Name: "LOCAL", Value: "1"}, {Name: "EMPTY"}},
		Needs: []cifile.Need{
			{Position: position(29, 7), Job: "compile", Artifacts: true},
			{Position: position(30, 7), Job: "lint", Optional: true},
		},
		HasNeeds: true,
		Rules: []cifile.Rule{
			{When: cifile.Always, AllowFailure: new(true), Variables: []cifile.Variable{{Name: "FROM_RULE", Value: "yes"}}},
			{When: cifile.Never},
			{When: cifile.OnFailure},
		},
		HasRules: true,
		When:     cifile.OnFailure, Timeout: 10 * time.Minute,
		Retry: cifile.Retry{
			Max: 2, When: []string{"runner_system_failure", "script_failure"},
		},
		AllowFailure: cifile.AllowFailure{ExitCodes: []int{3}, OnDeniedAdmission: true},
	}, unit)

	release := file.Jobs[2]
	require.Equal(t, []cifile.Need{}, release.Needs)
	require.True(t, release.HasNeeds)
	require.Equal(t, cifile.AllowFailure{Always: true}, release.AllowFailure)
	require.Equal(t, 3, release.Parallel.Copies())

	matrix := file.Jobs[3]
	require.Equal(t, cifile.Parallel{Matrix: [][]cifile.Axis{
		{{Name: "OS", Values: []string{"linux", "darwin"}}, {Name: "ARCH", Values: []string{"amd64"}}},
		{{Name: "OS", Values: []string{"windows"}}, {Name: "VERSION", Values: []string{"10", "11"}}},
	}}, matrix.Parallel)
	require.Equal(t, 4, matrix.Parallel.Copies())
}

func TestExtendsMergesMappingsAndReplacesTheRest(t *testing.T) {
	t.Parallel()
	file := parse(t, `
.base:
  tags: [base]
  script: [base]
  variables: {A: base, B: base}
  retry: 2
.middle:
  extends: .base
  variables: {B: middle, C: middle}
.other:
  script: other
  variables: {C: other}
job:
  extends: [.middle, .other]
  variables: {D: job}
  retry: null
plain:
  extends: job
  tags: [own]
`)
	require.Len(t, file.Jobs, 2)
	want := []cifile.Variable{
		{Name: "A", Value: "base"}, {Name: "B", Value: "middle"}, {Name: "C", Value: "other"}, {Name: "D", Value: "job"},
	}
	job, plain := file.Jobs[0], file.Jobs[1]
	require.Equal(t, []string{"other"}, job.Script)
	require.Equal(t, []string{"base"}, job.Tags)
	require.Equal(t, want, job.Variables)
	require.Zero(t, job.Retry, "null removes an extended keyword")
	require.Equal(t, []string{"own"}, plain.Tags)
	require.Equal(t, want, plain.Variables)
}

func TestAnchorsAndMergeKeys(t *testing.T) {
	t.Parallel()
	file := parse(t, `
.setup: &setup
  - one
  - two
.a: &a {tags: [a], timeout: 1h}
.b: &b {tags: [b], retry: 1}
job:
  <<: [*a, *b]
  timeout: 2h
  script:
    - *setup
    - three
other:
  <<: *b
  script: *setup
`)
	require.Len(t, file.Jobs, 2)
	job, other := file.Jobs[0], file.Jobs[1]
	require.Equal(t, []string{"one", "two", "three"}, job.Script)
	require.Equal(t, []string{"a"}, job.Tags, "the first source of a merge key wins")
	require.Equal(t, 2*time.Hour, job.Timeout, "an own key wins")
	require.Equal(t, 1, job.Retry.Max)
	require.Equal(t, []string{"one", "two"}, other.Script)
	require.Equal(t, []string{"b"}, other.Tags)
}

func TestDefaultsOfAMinimalFile(t *testing.T) {
	t.Parallel()
	file := parse(t, "job: {script: make}")
	require.Equal(t, []string{".pre", "build", "test", "deploy", ".post"}, file.Stages)
	require.Equal(t, []cifile.Job{{
		Position: cifile.Position{Line: 1, Column: 1}, Name: "job", Stage: "test", Script: []string{"make"},
		When: cifile.OnSuccess,
	}}, file.Jobs)
	require.Equal(t, 1, file.Jobs[0].Parallel.Copies())
}

func TestEmptyRulesAreNoAbsentRules(t *testing.T) {
	t.Parallel()
	file := parse(t, "job: {script: make, rules: []}")
	require.True(t, file.Jobs[0].HasRules)
	require.Empty(t, file.Jobs[0].Rules)
}

func TestJobsShareTheDecodedDefault(t *testing.T) {
	t.Parallel()
	file := parse(t, "default: {before_script: [x, y]}\na: {script: x}\nb: {script: x}")
	require.Equal(t, []string{"x", "y"}, file.Jobs[0].BeforeScript)
	require.Same(t, &file.Jobs[0].BeforeScript[0], &file.Jobs[1].BeforeScript[0])
}

package cifile_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/runners/cifile"
)

// refuse returns the lines of the error.
func refuse(t *testing.T, content string, limits cifile.Limits) []string {
	t.Helper()
	file, err := cifile.Parse(fileName, []byte(content), limits)
	require.Error(t, err, content)
	require.Nil(t, file)
	var e *cifile.Error
	require.ErrorAs(t, err, &e)
	return strings.Split(strings.ReplaceAll(err.Error(), fileName+":", ""), "\n")
}

func TestEveryProblemIsReportedInOrder(t *testing.T) {
	t.Parallel()
	require.Equal(t, []string{
		`1:1: the keyword include is not supported: write all jobs into this file`,
		`2:10: an item of stages must be a text, not a mapping`,
		`4:3: the keyword image is not supported: the configuration of the runner chooses the image; choose a runner with tags`,
		`5:3: the keyword script cannot be in default: write it into the jobs`,
		`6:1: the job "build" needs a script`,
		`7:3: the keyword only is not supported: use rules with if`,
		`8:3: a job has no keyword "scripts": did you mean "script"?`,
		`9:10: the stage "tset" is not in stages: test: did you mean "test"?`,
		`11:12: a line of script must be a text, not a mapping: quote the whole line`,
		`13:11: if: unexpected "=" at character 4 of "$A = \"b\""`,
		`14:14: when: manual is not supported: use rules with if and start another pipeline with a variable`,
		`16:11: needs names the job "biuld", which is not in the file: did you mean "build"?`,
		`17:1: "text" is neither a keyword of the file nor a job: a job is a mapping with a script`,
	}, refuse(t, `include: other.yml
stages: [{}, test]
default:
  image: alpine
  script: make
build:
  only: [main]
  scripts: make
  stage: tset
test:
  script: [a: b]
  rules:
    - if: $A = "b"
    - {when: manual}
  tags: []
  needs: [biuld]
text: hello
`, cifile.Limits{}))
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	job := func(keyword string) string { return "job:\n  script: make\n  " + keyword }
	for _, test := range []struct{ content, want string }{
		// The file.
		{"", "1:1: the file is empty"},
		{"# nothing\n", "1:1: the file is empty"},
		{"- a", "1:1: the file must be a mapping of jobs, not a list"},
		{"null", "1:1: the file is empty"},
		{"{}", "1:1: the file has no job"},
		{".template: {script: make}", "1:1: the file has no job"},
		{"a: {script: x}\n---\nb: {script: y}", "2:1: the file has a second document"},
		{"a: [", "1:1: not valid YAML"},
		{"a:\n\tb: c", "2:2: not valid YAML: found character that cannot start any token"},
		{"a: {script: \"\xff\"}", "1:14: the file is not UTF-8"},
		{"a: {script: x}\nb: {scri\xc3\x28pt: y}", "2:9: the file is not UTF-8"},
		{"a: {script: \"x\\0\"}", "1:13: the text has a null byte"},
		{"a: {script: *x}", "not valid YAML: unknown anchor 'x' referenced"},
		{"a: &a\n  script: *a", "2:11: the alias *a is inside of its own anchor"},
		{"a: {script: x}\na: {script: y}", `2:1: the key "a" is already in line 1`},
		{"a: {script: x, script: y}", `1:16: the key "script" is already in line 1`},
		{"a: {script: x}\n? [b]\n: {script: y}", "2:3: a key must be a text"},
		{"a: {<<: x, script: y}", `1:5: << needs a mapping or a list of mappings, not "x"`},
		{"a: !reference [b, script]", "1:4: !reference is not supported: use extends or a YAML anchor"},
		{"a: {script: !custom x}", "1:13: the tag !custom is not supported"},
		{"stages: []\na: {script: x, stage: .pre}", "1:9: stages needs at least one stage"},
		{"stages: [a, a]\nj: {script: x, stage: a}", `1:13: the stage "a" is already in the list`},
		{"stages: [a]\nj: {script: x}", `2:1: the job "j" has no stage, and stages has no test`},
		{"stages: a\nj: {script: x}", `1:9: stages must be a list, not "a"`},
		{"variables: [A]\nj: {script: x}", "1:12: variables must be a mapping"},
		{"variables: {A: [x]}\nj: {script: x}", "1:16: the value of A must be a text or a number, not a list"},
		{"variables: {1A: x}\nj: {script: x}", `1:13: the name of a variable has letters, digits and _`},
		{"variables: {A: {valeu: x}}\nj: {script: x}", `a variable has no keyword "valeu": did you mean "value"?`},
		{"default: []\nj: {script: x}", "1:10: default must be a mapping, not a list"},
		{"before_script: x\nj: {script: x}", "1:1: the keyword before_script is not supported: write it into default"},
		{`"": {script: x}`, "1:1: a job needs a name"},
		{`"a\nb": {script: x}`, "1:1: the name of a job has a control character"},
		{strings.Repeat("a", 256) + ": {script: x}", "1:1: the name of a job has at most 255 bytes"},
		// extends.
		{job("extends: .a"), `3:12: extends names ".a", which is not in the file`},
		{job("extends: default"), `3:12: extends names "default", which is not in the file`},
		{job("extends: job"), "3:12: extends runs in a circle: job → job"},
		{
			".a: {extends: .b}\n.b: {extends: [.c, .a]}\n.c: {script: x}\nj: {script: x}",
			"2:20: extends runs in a circle: .a → .b → .a",
		},
		{job("extends: {}"), "3:12: extends must be a list, not a mapping"},
		// Keywords of a job.
		{"job: {script: []}", `1:15: the script of the job "job" is empty`},
		{"job: {script: true}", `1:15: a line of script must be a text, not "true": quote the whole line`},
		{"job: {script: x}\nb: {script: [null]}", "2:14: a line of script must be a text, not nothing"},
		{job("stage: [a]"), "3:10: stage must be a text, not a list"},
		{job("stage: ''"), "3:10: stage must not be empty"},
		{job("tags: [$TAG]"), `3:10: the tag "$TAG" contains a variable`},
		{job("tags: [\"\"]"), "3:10: a tag has 1 to 255 bytes and no control characters"},
		{job("tags: {}"), "3:9: tags must be a list, not a mapping"},
		{job("when: never"), "3:9: when: never stands in rules only"},
		{job("when: delayed"), "3:9: when: delayed is not supported"},
		{job("when: sometimes"), `3:9: when must be one of on_success, on_failure, always, not "sometimes"`},
		{job("timeout: soon"), `3:12: timeout: "soon": expected a number`},
		{job("timeout: 31 days"), `3:12: timeout must be between 10 seconds and 30 days, not "31 days"`},
		{job("timeout: 0"), "3:12: timeout must be between 10 seconds and 30 days"},
		{job("timeout: []"), "3:12: timeout must be a duration such as 1h 30m, not a list"},
		{job("needs: build"), `3:10: needs must be a list of jobs, not "build"`},
		{job("needs: [job]"), `3:11: the job "job" needs itself`},
		{job("needs: [{artifacts: true}]"), "3:11: an item of needs must name a job"},
		{job("needs: [{project: x, job: b}]\nb: {script: x}"), "3:12: the keyword project is not supported"},
		{job("needs: [b, b]\nb: {script: x}"), `3:14: needs names the job "b" twice`},
		{job("needs: [.b]\n.b: {script: x}"), `3:11: needs names the job ".b", which is not in the file`},
		{job("artifacts: []"), "3:14: artifacts must be a mapping, not a list"},
		{job("artifacts: {}"), "3:14: artifacts needs paths or untracked: true"},
		{job("artifacts: {paths: [a], reports: {}}"), "3:27: the keyword reports is not supported"},
		{job("artifacts: {paths: [a], expire_in: later}"), `3:38: expire_in: "later": expected a number`},
		{job("artifacts: {paths: [a], untracked: yes}"), `3:38: untracked must be true or false, not "yes"`},
		{job("rules: {if: $A}"), "3:10: rules must be a list, not a mapping"},
		{job("rules: [{}]"), "3:11: a rule needs if or when"},
		{job("rules: [$A]"), `3:11: an item of rules must be a mapping, not "$A"`},
		{job("rules: [{changes: [a]}]"), "3:12: the keyword changes is not supported: use if with a variable"},
		{job("rules: [{if: [a]}]"), "3:16: if must be a text, not a list"},
		{job("retry: 3"), `3:10: retry must be a whole number from 0 to 2, not "3"`},
		{job("retry: {max: -1}"), "3:16: max must be a whole number from 0 to 2"},
		{job("retry: {when: [script_failure, cosmic_rays]}"), `3:34: the reason for failure "cosmic_rays" is not one of`},
		{job("retry: {exit_codes: 2}"), "3:11: the keyword exit_codes is not supported: end with another status"},
		{job("retry: {count: 2}"), `3:11: retry has no keyword "count"`},
		{job("allow_failure: maybe"), `3:18: allow_failure must be true or false, not "maybe"`},
		{job("allow_failure: {exit_codes: [x]}"), "3:32: exit_codes must be a whole number"},
		{job("allow_failure: {on_denied: true}"), `3:19: allow_failure has no keyword "on_denied"`},
		{job("parallel: 201"), `3:13: parallel must be a whole number from 1 to 200, not "201"`},
		{job("parallel: {}"), "3:13: parallel must be a number or have a matrix"},
		{job("parallel: {matrix: [{A: []}]}"), "3:27: the variable A needs a value"},
		{job("parallel: {matrix: [{}]}"), "3:23: an item of matrix needs a variable"},
		{job("cache: {}"), "3:3: the keyword cache is not supported: pass files on with artifacts and needs"},
		{job("environment: prod"), "3:3: the keyword environment is not supported"},
	} {
		lines := refuse(t, test.content, cifile.Limits{})
		require.Contains(t, lines[0], test.want, test.content)
	}
}

func TestAtMostTwentyProblemsAreReported(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	for i := range 100 {
		fmt.Fprintf(&b, "job%d: {}\n", i)
	}
	lines := refuse(t, b.String(), cifile.Limits{})
	require.Len(t, lines, 21)
	require.Equal(t, `20:1: the job "job19" needs a script`, lines[19])
	require.Equal(t, " 80 more problems", lines[20])
}

func TestLimits(t *testing.T) {
	t.Parallel()
	laughs := "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
	for c := 'b'; c < 'k'; c++ {
		laughs += fmt.Sprintf("%c: &%c [%s*%c]\n", c, c, strings.Repeat(fmt.Sprintf("*%c, ", c-1), 9), c-1)
	}
	chain := ".a0: {script: x}\n"
	for i := range 12 {
		chain += fmt.Sprintf(".a%d: {extends: .a%d}\n", i+1, i)
	}
	nested := "a: &a0 [x]\n"
	for i := range 40 {
		nested += fmt.Sprintf("a%d: &a%d [*a%d]\n", i, i+1, i)
	}
	wide := ".a: {script: [" + strings.Repeat("x, ", 200) + "]}\n"
	for i := range 50 {
		wide += fmt.Sprintf("j%d: {extends: .a}\n", i)
	}
	copies := "j: {script: '" + strings.Repeat("x", 1000) + "', parallel: 200}"
	for _, test := range []struct {
		content, want string
		limits        cifile.Limits
	}{
		{"a: {script: xxxxxxxxxx}", "the file has 23 bytes: at most 20 are allowed", cifile.Limits{Bytes: 20}},
		{laughs, "the file is too large after its aliases were replaced", cifile.Limits{}},
		{strings.Repeat("[", 100) + strings.Repeat("]", 100), "more than 32 nested levels", cifile.Limits{}},
		{nested, "more than 32 nested levels", cifile.Limits{}},
		{chain + "j: {extends: .a12}", "extends has more than 11 levels", cifile.Limits{}},
		{wide, "the file is too large after extends was applied", cifile.Limits{Weight: 5000}},
		{"a: {script: x}\nb: {script: x, parallel: 2}", "2:1: the file has more than 2 jobs", cifile.Limits{Jobs: 2}},
		{copies, "1:1: the definitions of the jobs have more than 100000 bytes", cifile.Limits{Total: 100_000}},
		{
			"j: {script: x, parallel: {matrix: [{A: [1, 2], B: [1, 2]}]}}", "the matrix makes 4 jobs: at most 3",
			cifile.Limits{Parallel: 3},
		},
		{
			"j: {script: x, parallel: {matrix: [{" + manyAxes(20, 30) + "}]}}", "the matrix makes 1048576 jobs",
			cifile.Limits{},
		},
	} {
		require.Contains(t, strings.Join(refuse(t, test.content, test.limits), "\n"), test.want)
	}
}

func manyAxes(n, values int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "A%d: [%sx], ", i, strings.Repeat("x, ", values-1))
	}
	return b.String()
}

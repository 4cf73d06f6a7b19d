package cifile_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/runners/cifile"
)

// FuzzParse checks that any content is parsed or refused with positions inside of it and in order, and that what is
// parsed holds the promises that package pipeline builds on.
func FuzzParse(f *testing.F) {
	for _, content := range []string{
		"job: {script: make}", "a: &a\n  script: *a", "a: &a {script: [x]}\nb: {<<: *a}\nc: {extends: [a, b]}",
		"j: {script: x, parallel: {matrix: [{A: [1, 2]}]}, rules: [{if: $A == 'b', when: never}]}",
		"default: {retry: {max: 1}}\nstages: [a]\nj: {stage: a, script: [[x]], needs: [{job: k, optional: true}]}",
		"? {a: b}\n: c", "a: !reference [b]", "--- \n---\n", "a: {script: x, artifacts: {paths: [x], expire_in: 1h}}",
		"a: !!binary x\nb: 2001-01-01\n<<: {c: {script: x}}",
	} {
		f.Add([]byte(content))
	}
	limits := cifile.Limits{Bytes: 4096, Weight: 20_000, Jobs: 50, Parallel: 20, Total: 100_000}
	f.Fuzz(func(t *testing.T, content []byte) {
		file, err := cifile.Parse(fileName, content, limits)
		if err != nil {
			checkError(t, err, content)
			return
		}
		copies := 0
		for _, j := range file.Jobs {
			require.NotEmpty(t, j.Name)
			require.NotEmpty(t, j.Script, j.Name)
			require.Contains(t, file.Stages, j.Stage)
			require.NotEmpty(t, j.When)
			copies += j.Parallel.Copies()
			for _, need := range j.Needs {
				known := slices.ContainsFunc(file.Jobs, func(o cifile.Job) bool { return o.Name == need.Job })
				require.True(t, known || need.Optional, need.Job)
			}
		}
		require.NotZero(t, copies)
		require.LessOrEqual(t, copies, limits.Jobs)
	})
}

func checkError(t *testing.T, err error, content []byte) {
	var e *cifile.Error
	require.ErrorAs(t, err, &e)
	require.NotEmpty(t, e.Problems)
	lines := bytes.Count(content, []byte("\n")) + bytes.Count(content, []byte("\r")) +
		bytes.Count(content, []byte("\u0085")) + bytes.Count(content, []byte("\u2028")) +
		bytes.Count(content, []byte("\u2029")) + 2 // YAML breaks lines at all of them; a missing value is behind the last
	last := cifile.Position{}
	for _, p := range e.Problems {
		require.NotEmpty(t, p.Message)
		require.Positive(t, p.Line, err)
		require.Positive(t, p.Column, err)
		require.LessOrEqual(t, p.Line, lines, err)
		require.False(t, p.Line < last.Line || p.Line == last.Line && p.Column < last.Column, err)
		last = p.Position
	}
}

package workspaceagent_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/workspaceagent"
)

func TestNamesOfProgramsCanBePrinted(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"make": "make", "": "?", "\x1b[2J\n": "?[2J?", "a\xffb": "a?b", "äöüäöüäöüäöü": "äöüäöüä",
		"a-very-long-name-of-a-program": "a-very-long-nam",
	} {
		require.Equal(t, want, workspaceagent.CleanProgramName(name))
	}
}

func TestReportsOfWorkAreChecked(t *testing.T) {
	t.Parallel()
	for _, wrong := range []string{
		"", "[]", `{"worked_ms_ago":-1,"programs":[{"name":"x"}]}`, `{"worked_ms_ago":1}`,
		`{"worked_ms_ago":1,"programs":[{"name":"x","processor_ms":-1}]}`,
		`{"worked_ms_ago":1,"programs":[{},{},{},{},{},{}]}`,
		`{"worked_ms_ago":1,"programs":[{"name":"` + strings.Repeat("x", workspaceagent.MaxWorkReport) + `"}]}`,
	} {
		_, err := workspaceagent.ParseWorkReport([]byte(wrong))
		require.ErrorContains(t, err, "the report ", wrong)
	}
	r, err := workspaceagent.ParseWorkReport([]byte(`{}`))
	require.NoError(t, err)
	require.Nil(t, r.WorkedMSAgo)
	r, err = workspaceagent.ParseWorkReport([]byte(`{"worked_ms_ago":7,"programs":[{"name":"a\tb","processor_ms":3}]}`))
	require.NoError(t, err)
	require.EqualValues(t, 7, *r.WorkedMSAgo)
	require.Equal(t, []workspaceagent.WorkedProgram{{Name: "a?b", ProcessorMS: 3}}, r.Programs)
}

// FuzzWorkReport checks that what a workspace answers is within the limits, or an error.
func FuzzWorkReport(f *testing.F) {
	f.Add([]byte(`{"worked_ms_ago":7,"programs":[{"name":"a\tb","processor_ms":3}]}`))
	f.Add([]byte(`{"programs":[{"name":"x"}],"worked_ms_ago":"7"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := workspaceagent.ParseWorkReport(data)
		if err != nil || r.WorkedMSAgo == nil {
			require.Empty(t, r.Programs)
			return
		}
		require.GreaterOrEqual(t, *r.WorkedMSAgo, int64(0))
		require.NotEmpty(t, r.Programs)
		require.LessOrEqual(t, len(r.Programs), workspaceagent.MaxPrograms)
		encoded, err := json.Marshal(r)
		require.NoError(t, err)
		again, err := workspaceagent.ParseWorkReport(encoded)
		require.NoError(t, err)
		require.Equal(t, r, again)
	})
}

package payload_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"lockstep.internal/services/admission/payload"
)

const schemas = "../../../schemas/admission"

func read(t *testing.T, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(schemas, name))
	require.NoError(t, err)
	return content
}

func compact(t *testing.T, document []byte) string {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, json.Compact(&out, document))
	return out.String()
}

func validate(t *testing.T, schema string, document []byte) error {
	t.Helper()
	compiled, err := jsonschema.NewCompiler().Compile(filepath.Join(schemas, schema))
	require.NoError(t, err)
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(document))
	require.NoError(t, err)
	return compiled.Validate(value)
}

func answerOf(t *testing.T, document []byte, jobID int64) payload.Answer {
	t.Helper()
	a, err := payload.ReadAnswer("application/json", bytes.NewReader(document), jobID)
	require.NoError(t, err)
	return a
}

func TestExamplesAreReadAndWrittenByteForByte(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"accepted", "redirected", "rejected"} {
		request := read(t, "examples/"+name+".request.json")
		require.NoError(t, validate(t, "request.v1.schema.json", request), name)
		job, err := payload.DecodeJob(request)
		require.NoError(t, err, name)
		require.Equal(t, compact(t, request), string(payload.Encode(job)), name)

		answer := read(t, "examples/"+name+".answer.json")
		require.NoError(t, validate(t, "answer.v1.schema.json", answer), name)
		require.Equal(t, compact(t, answer), string(payload.EncodeAnswer(answerOf(t, answer, job.ID))), name)
	}
}

func TestExamplesHaveTheirMeaning(t *testing.T) {
	t.Parallel()
	require.Equal(t, payload.Answer{JobID: 123, Accepted: true, Reason: "it's always-allow-day-wednesday"},
		answerOf(t, read(t, "examples/accepted.answer.json"), 123))
	require.Equal(t, payload.Answer{
		JobID: 245, Accepted: true, AddTags: []string{"linux", "us-west"}, RemoveTags: []string{"eu-west"},
		AcceptRunners: []int64{822993167}, RejectRunners: []int64{822993168},
		Reason: "user is US employee: retagged region; user only has uid on runner 822993167",
	}, answerOf(t, read(t, "examples/redirected.answer.json"), 245))
	require.Equal(t, payload.Answer{JobID: 666, Reason: "you have no power here"},
		answerOf(t, read(t, "examples/rejected.answer.json"), 666))
}

func TestRequestsFollowTheSchema(t *testing.T) {
	t.Parallel()
	job := payload.Job{
		ID: 9007199254740993, Tags: nil, Variables: map[string]payload.Value{
			"CI_PROJECT_ID":     payload.Variable("CI_PROJECT_ID", "4"),
			"CI_JOB_ID":         payload.Variable("CI_JOB_ID", "9007199254740993"),
			"GITLAB_USER_ID":    payload.Variable("GITLAB_USER_ID", "007"),
			"CI_COMMIT_MESSAGE": payload.Text("<b>\"Grüße\"</b>\n\x00\xff & more"),
		},
	}
	encoded := payload.Encode(job)
	require.NoError(t, validate(t, "request.v1.schema.json", encoded))
	require.JSONEq(t, `[{"id":9007199254740993,"variables":{"CI_COMMIT_MESSAGE":"<b>\"Grüße\"</b>\n\u0000`+
		"\ufffd"+` & more","CI_JOB_ID":"9007199254740993","CI_PROJECT_ID":4,"GITLAB_USER_ID":"007"},"tags":[]}]`,
		string(encoded))
	again, err := payload.DecodeJob(encoded)
	require.NoError(t, err)
	require.Equal(t, encoded, payload.Encode(again))
	require.True(t, again.Variables["CI_PROJECT_ID"].IsNumber())
	require.Equal(t, "4", again.Variables["CI_PROJECT_ID"].String())
}

func TestInvalidRequestsAreRefused(t *testing.T) {
	t.Parallel()
	for document, want := range map[string]string{
		`{}`:                                "must be an array of one job, not an object",
		`[]`:                                "the array is empty",
		`[{"id":0}]`:                        "id must be the id of a job, not 0",
		`[{"tags":[]}]`:                     "id is missing",
		`[{"id":1,"variables":[]}]`:         "variables must be an object, not an array",
		`[{"id":1,"variables":{"A":true}}]`: `"A" must be a text or a number, not a boolean`,
		`[{"id":1,"tags":[""]}]`:            "item 1 of tags: a tag must not be empty",
		strings.Repeat(" ", payload.MaxBytes) + `[{"id":1}]`: "more than 1048576 bytes",
	} {
		_, err := payload.DecodeJob([]byte(document))
		require.ErrorContains(t, err, want)
	}
}

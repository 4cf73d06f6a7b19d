package payload_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/admission/payload"
)

// FuzzAnswer checks that an accepted answer says so in its only job, that limits hold, and that what is written is read
// again as the same.
func FuzzAnswer(f *testing.F) {
	for _, c := range lyingAnswers() {
		if len(c.body) < 10_000 {
			f.Add([]byte(c.body))
		}
	}
	f.Add([]byte(`[{"id":7,"admission":"accepted","tags":{"add":["a"],"remove":["b"]},"runners":{"accepted_ids":["1"]}}]`))
	f.Add([]byte(`[{"id":7,"admission":"denied","reason":"\u00fc"}]`))
	f.Fuzz(func(t *testing.T, body []byte) {
		a, err := payload.ReadAnswer("application/json", strings.NewReader(string(body)), jobID)
		if err != nil {
			var refused *payload.AnswerError
			require.ErrorAs(t, err, &refused)
			require.NotEmpty(t, refused.Message)
			require.Zero(t, a)
			return
		}
		var other []map[string]any
		require.NoError(t, json.Unmarshal(body, &other))
		require.Len(t, other, 1)
		require.EqualValues(t, jobID, other[0]["id"])
		require.Equal(t, a.Accepted, other[0]["admission"] == "accepted")
		require.LessOrEqual(t, utf8.RuneCountInString(a.Reason), payload.MaxReasonCharacters)
		require.LessOrEqual(t, max(len(a.AddTags), len(a.RemoveTags)), payload.MaxTags)
		require.LessOrEqual(t, max(len(a.AcceptRunners), len(a.RejectRunners)), payload.MaxRunners)
		require.True(t, a.Accepted || !a.Changes())
		encoded := payload.EncodeAnswer(a)
		again, err := payload.ReadAnswer("application/json", strings.NewReader(string(encoded)), jobID)
		require.NoError(t, err)
		require.Equal(t, encoded, payload.EncodeAnswer(again))
	})
}

// FuzzJob checks that a request that is read and written is the same the second time.
func FuzzJob(f *testing.F) {
	f.Add([]byte(`[{"id":1,"variables":{"A":"b","C":1e3},"tags":["x"]}]`))
	f.Add([]byte(`[{"id":-1,"variables":{"\u0000":"\ud83d\ude00"},"tags":null}]`))
	f.Fuzz(func(t *testing.T, document []byte) {
		job, err := payload.DecodeJob(document)
		if err != nil {
			return
		}
		encoded := payload.Encode(job)
		again, err := payload.DecodeJob(encoded)
		require.NoError(t, err)
		require.Equal(t, encoded, payload.Encode(again))
	})
}

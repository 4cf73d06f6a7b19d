package payload_test

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/admission/payload"
)

const jobID = 7

func TestSynonymsAndUnknownFields(t *testing.T) {
	t.Parallel()
	for _, contentType := range []string{"application/json", "application/json; charset=utf-8", "application/vnd.x+json"} {
		a, err := payload.ReadAnswer(contentType, strings.NewReader(`[{"id":7,"admission":"accepted","reason":null,
			"tags":{"additions":["a","a"],"removals":["b"],"x":1},"runners":{"accepted_ids":[],"rejected_ids":null},"y":{}}]`),
			jobID)
		require.NoError(t, err)
		require.Equal(t, payload.Answer{
			JobID: jobID, Accepted: true, AddTags: []string{"a"}, RemoveTags: []string{"b"},
		}, a)
		require.True(t, a.Changes())
	}
	a := answerOf(t, []byte(`[{"id":7,"admission":"denied","reason":"no"}]`), jobID)
	require.Equal(t, payload.Answer{JobID: jobID, Reason: "no"}, a)
}

// A controller with the failure policy ignore must not let a job pass that it rejects.
func TestRejectionStaysOneWithInvalidDetails(t *testing.T) {
	t.Parallel()
	a := answerOf(t, []byte(`[{"id":7,"admission":"rejected","reason":5,"tags":{"add":[""]},"runners":[]}]`), jobID)
	require.Equal(t, payload.Answer{JobID: jobID}, a)
}

func TestReasonsAreCutAndPrintable(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("ü", 3000)
	a := answerOf(t, fmt.Appendf(nil, `[{"id":7,"admission":"rejected","reason":"\u001b[31m\n%s"}]`, long), jobID)
	require.Equal(t, payload.MaxReasonCharacters, utf8.RuneCountInString(a.Reason))
	require.True(t, strings.HasPrefix(a.Reason, "[31m üü"), a.Reason[:10])
	require.True(t, strings.HasSuffix(a.Reason, "ü…"))
}

func lyingAnswers() map[string]struct {
	body string
	code payload.Code
	text string
} {
	accepted := func(more string) string { return `[{"id":7,"admission":"accepted",` + more + `}]` }
	list := func(n int, item string) string { return strings.TrimSuffix(strings.Repeat(item+",", n), ",") }
	many := make([]string, 1001)
	for i := range many {
		many[i] = fmt.Sprintf(`"%d"`, i+1)
	}
	return map[string]struct {
		body string
		code payload.Code
		text string
	}{
		"empty":              {"", payload.CodeNotJSON, "the document is empty"},
		"not JSON":           {"ok", payload.CodeNotJSON, "not valid JSON"},
		"HTML":               {"<html>", payload.CodeNotJSON, "not valid JSON"},
		"cut":                {`[{"id":7,"admission":"accep`, payload.CodeNotJSON, "not valid JSON"},
		"two documents":      {accepted(`"a":1`) + accepted(`"a":1`), payload.CodeNotJSON, "more than one JSON value"},
		"more behind it":     {accepted(`"a":1`) + "x", payload.CodeNotJSON, "more than one JSON value"},
		"invalid UTF-8":      {accepted("\"reason\":\"\xff\""), payload.CodeNotJSON, "invalid UTF-8"},
		"a field twice":      {`[{"id":7,"admission":"rejected","admission":"accepted"}]`, payload.CodeNotJSON, "duplicate"},
		"deep":               {strings.Repeat("[", 100_000), payload.CodeNotJSON, "not valid JSON"},
		"object":             {`{"id":7,"admission":"accepted"}`, payload.CodeNotArray, "not an object"},
		"null":               {`null`, payload.CodeNotArray, "not null"},
		"empty array":        {`[]`, payload.CodeNoJob, "the array is empty"},
		"two jobs":           {`[{"id":7,"admission":"accepted"},{"id":7}]`, payload.CodeSeveralJobs, "has 2 items"},
		"many jobs":          {`[` + list(300_000, "0") + `]`, payload.CodeSeveralJobs, "has 300000 items"},
		"item of wrong type": {`[7]`, payload.CodeWrongType, "must be an object, not a number"},
		"other job": {
			`[{"id":8,"admission":"accepted"}]`,
			payload.CodeOtherJob, "about job 8, but the request was about job 7",
		},
		"no id":      {`[{"admission":"accepted"}]`, payload.CodeMissing, "id is missing"},
		"id is null": {`[{"id":null,"admission":"accepted"}]`, payload.CodeMissing, "id is missing"},
		"id is a text": {
			`[{"id":"7","admission":"accepted"}]`,
			payload.CodeWrongType, "id must be a number, not a text",
		},
		"id is a fraction": {`[{"id":7.0,"admission":"accepted"}]`, payload.CodeWrongType, `whole number, not "7.0"`},
		"id overflows": {
			`[{"id":18446744073709551623,"admission":"accepted"}]`,
			payload.CodeWrongType, "whole number",
		},
		"no admission": {`[{"id":7}]`, payload.CodeMissing, "admission is missing"},
		"admission is true": {
			`[{"id":7,"admission":true}]`,
			payload.CodeWrongType, "admission must be a text, not a boolean",
		},
		"another admission":   {`[{"id":7,"admission":"Accepted"}]`, payload.CodeVerdict, `not "Accepted"`},
		"other case of a key": {`[{"id":7,"Admission":"accepted"}]`, payload.CodeMissing, "admission is missing"},
		"reason is a list":    {accepted(`"reason":["x"]`), payload.CodeWrongType, "reason must be a text, not an array"},
		"tags is a list":      {accepted(`"tags":["a"]`), payload.CodeWrongType, "tags must be an object, not an array"},
		"add is a text":       {accepted(`"tags":{"add":"a"}`), payload.CodeWrongType, "tags.add must be an array of texts"},
		"a tag is a number": {
			accepted(`"tags":{"remove":["a",5]}`),
			payload.CodeWrongType, "item 2 of tags.remove must be a text",
		},
		"empty tag": {accepted(`"tags":{"add":[""]}`), payload.CodeTag, "must not be empty"},
		"long tag": {
			accepted(`"tags":{"add":["` + strings.Repeat("x", 10_000) + `"]}`), payload.CodeTag,
			"item 1 of tags.add: a tag has at most 255 characters, not 10000",
		},
		"control character": {accepted(`"tags":{"add":["a\u0007"]}`), payload.CodeTag, "control character"},
		"many tags": {
			accepted(`"tags":{"add":[` + list(101, `"a"`) + `]}`),
			payload.CodeTooMany, "101 items: at most 100",
		},
		"both synonyms": {
			accepted(`"tags":{"add":[],"additions":[]}`),
			payload.CodeContradiction, "both add and additions",
		},
		"tag added, removed": {
			accepted(`"tags":{"add":["a"],"remove":["a"]}`),
			payload.CodeContradiction, `"a" is both added and removed`,
		},
		"runners is a list": {accepted(`"runners":["1"]`), payload.CodeWrongType, "runners must be an object"},
		"a runner is a number": {
			accepted(`"runners":{"accepted_ids":[1]}`), payload.CodeWrongType, "item 1 of runners.accepted_ids must be a text",
		},
		"no runner id": {
			accepted(`"runners":{"accepted_ids":["all"]}`),
			payload.CodeRunner, `not the id of a runner: "all"`,
		},
		"negative runner": {accepted(`"runners":{"rejected_ids":["-1"]}`), payload.CodeRunner, `"-1"`},
		"leading zero":    {accepted(`"runners":{"rejected_ids":["01"]}`), payload.CodeRunner, `"01"`},
		"many runners": {
			accepted(`"runners":{"accepted_ids":[` + strings.Join(many, ",") + `]}`),
			payload.CodeTooMany, "1001 items",
		},
		"contradictory lists": {
			accepted(`"runners":{"accepted_ids":["1","2"],"rejected_ids":["2"]}`),
			payload.CodeContradiction, "runner 2 is both accepted and rejected",
		},
		"too large": {
			accepted(`"x":"` + strings.Repeat("x", payload.MaxBytes) + `"`),
			payload.CodeTooLarge, "more than 1048576 bytes",
		},
	}
}

func TestLyingAnswersAreErrors(t *testing.T) {
	t.Parallel()
	for name, c := range lyingAnswers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, err := payload.ReadAnswer("application/json", strings.NewReader(c.body), jobID)
			requireRefused(t, a, err, c.code, c.text)
		})
	}
	for _, contentType := range []string{"", "text/html", "application/xml", "json", "application/json; charset"} {
		a, err := payload.ReadAnswer(contentType, strings.NewReader(`[{"id":7,"admission":"accepted"}]`), jobID)
		requireRefused(t, a, err, payload.CodeContentType, "must be application/json, not ")
	}
	a, err := payload.ReadAnswer("application/json",
		io.MultiReader(strings.NewReader(`[{"id":7,"admission":"accepted"}]`), iotest.ErrReader(errors.New("reset"))), jobID)
	requireRefused(t, a, err, payload.CodeUnreadable, "could not be read to its end: reset")
}

func requireRefused(t *testing.T, a payload.Answer, err error, code payload.Code, text string) {
	t.Helper()
	var refused *payload.AnswerError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, code, refused.Code, err)
	require.ErrorContains(t, err, text)
	require.Zero(t, a)
	require.Less(t, len(err.Error()), 500)
}

func TestReadingStopsAtTheLimit(t *testing.T) {
	t.Parallel()
	endless := strings.NewReader(strings.Repeat(" ", 10*payload.MaxBytes))
	_, err := payload.ReadAnswer("application/json", endless, jobID)
	require.Error(t, err)
	require.Greater(t, endless.Len(), 8*payload.MaxBytes)
}

package payload

import (
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// maxExact is the largest integer that every JSON decoder reads exactly.
const maxExact = 1<<53 - 1

// Value is the value of a variable: a text or a number. The zero value is the empty text.
type Value struct {
	text   string
	number bool
}

// Text returns a text.
func Text(text string) Value { return Value{text: text} }

// Number returns a number. An integer that some JSON decoders cannot read exactly becomes a text.
func Number(n int64) Value {
	return Value{text: strconv.FormatInt(n, 10), number: -maxExact <= n && n <= maxExact}
}

// String returns the text, or the number as it is written in JSON.
func (v Value) String() string { return v.text }

// IsNumber reports whether the value is a number.
func (v Value) IsNumber() bool { return v.number }

func (v Value) token() jsontext.Value {
	if v.number {
		return jsontext.Value(v.text)
	}
	return quote(v.text)
}

// Variable returns the value of a predefined variable. The ids of GitLab's documentation are numbers, all others texts.
func Variable(name, text string) Value {
	switch name {
	case "CI_PROJECT_ID", "CI_PIPELINE_ID", "CI_JOB_ID", "CI_PROJECT_NAMESPACE_ID", "GITLAB_USER_ID":
		if n, err := strconv.ParseInt(text, 10, 64); err == nil && strconv.FormatInt(n, 10) == text {
			return Number(n)
		}
	}
	return Text(text)
}

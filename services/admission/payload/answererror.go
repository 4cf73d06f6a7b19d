package payload

import "fmt"

// Code names what is wrong with an answer.
type Code string

// The codes.
const (
	CodeContentType   Code = "content_type"
	CodeTooLarge      Code = "too_large"
	CodeUnreadable    Code = "unreadable"
	CodeNotJSON       Code = "not_json"
	CodeNotArray      Code = "not_an_array"
	CodeNoJob         Code = "no_job"
	CodeSeveralJobs   Code = "several_jobs"
	CodeOtherJob      Code = "other_job"
	CodeMissing       Code = "missing_field"
	CodeWrongType     Code = "wrong_type"
	CodeVerdict       Code = "unknown_admission"
	CodeTooMany       Code = "too_many"
	CodeTag           Code = "invalid_tag"
	CodeRunner        Code = "invalid_runner"
	CodeContradiction Code = "contradiction"
)

// AnswerError reports what is wrong with an answer.
type AnswerError struct {
	Code    Code
	Message string
}

// Error returns the message.
func (e *AnswerError) Error() string { return e.Message }

func wrong(code Code, format string, arguments ...any) error {
	return &AnswerError{Code: code, Message: fmt.Sprintf(format, arguments...)}
}

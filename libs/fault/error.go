package fault

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/schemas/gen/errcode"
)

// Code names one kind of error; the registry is package errcode.
type Code = errcode.Code

// Error is an error for callers. It is immutable and safe for concurrent use. Message names the resource, the
// problem and the remedy. Details are for programs, a few short entries with snake_case keys. Neither may hold
// secrets.
type Error struct {
	Code    Code
	Message string
	Details map[string]string
	cause   error
}

// Faulter is implemented by errors that convert themselves to an Error. If the chain contains no *Error, From calls
// the outermost Faulter.
type Faulter interface {
	error
	Fault() *Error
}

// New makes an Error with a message for people.
func New(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Wrap makes an Error that keeps the cause for errors.Is, errors.As and the log, never for callers.
func Wrap(cause error, code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...), cause: cause}
}

// With returns a copy with one more detail.
func (e *Error) With(key, value string) *Error {
	c := *e
	c.Details = maps.Clone(e.Details)
	if c.Details == nil {
		c.Details = make(map[string]string, 1)
	}
	c.Details[key] = value
	return &c
}

// Error is for logs and terminals of operators: it includes the cause. API callers see only Message.
func (e *Error) Error() string {
	if e == nil {
		return "no fault"
	}
	if e.cause != nil {
		return fmt.Sprintf("%s: %s: %v", e.Code, e.Message, e.cause)
	}
	return fmt.Sprintf("%s: %s", e.Code, e.Message)
}

// Unwrap returns the cause, nil when there is none.
func (e *Error) Unwrap() error {
	if e == nil {
		return nil
	}
	return e.cause
}

// LogValue groups code, message, details and cause.
func (e *Error) LogValue() slog.Value {
	attrs := []slog.Attr{slog.String(logkey.Code, string(e.Code)), slog.String(logkey.Message, e.Message)}
	for _, key := range slices.Sorted(maps.Keys(e.Details)) {
		attrs = append(attrs, slog.String(key, e.Details[key])) //nolint:sloglint // keys of the caller
	}
	if e.cause != nil {
		attrs = append(attrs, slog.String(logkey.Cause, e.cause.Error()))
	}
	return slog.GroupValue(attrs...)
}

// CodeOf returns the code of From(err), or "" for nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	return From(err).Code
}

// Is reports whether err is a fault of this code.
func Is(err error, code Code) bool { return err != nil && CodeOf(err) == code }

// ExitCode returns the exit status of a program that ends with err: 0 when err is nil.
func ExitCode(err error) int {
	if err == nil {
		return 0
	}
	return lookup(CodeOf(err)).Exit
}

// lookup treats a code that is not registered as internal.
func lookup(code Code) errcode.Entry {
	entry, ok := errcode.Lookup(code)
	if !ok {
		entry, _ = errcode.Lookup(errcode.Internal)
	}
	return entry
}

// asError finds the outermost *Error; a nil one inside an error interface does not count.
func asError(err error) (*Error, bool) {
	var e *Error
	if errors.As(err, &e) && e != nil {
		return e, true
	}
	return nil, false
}

// Package invalid collects validation errors by field, so that the caller gets all errors at once.
package invalid

import (
	"fmt"
	"strings"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

// Fields collects one error per field. The zero value is ready to use.
type Fields struct {
	paths    []string
	messages map[string]string
}

// Addf adds an error for a field. Only the first error of each field is kept.
func (f *Fields) Addf(path, format string, args ...any) {
	if f.messages == nil {
		f.messages = make(map[string]string)
	}
	if _, known := f.messages[path]; !known {
		f.paths = append(f.paths, path)
		f.messages[path] = fmt.Sprintf(format, args...)
	}
}

// Err returns the fault invalid_argument with all fields, or nil without any.
func (f *Fields) Err(what string) error {
	if len(f.paths) == 0 {
		return nil
	}
	parts := make([]string, len(f.paths))
	for i, path := range f.paths {
		parts[i] = path + ": " + f.messages[path]
	}
	e := fault.New(errcode.InvalidArgument, "%s is not valid: %s", what, strings.Join(parts, "; "))
	e.Details = f.messages
	return e
}

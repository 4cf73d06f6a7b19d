// Package invalid collects the faults of an input by field, so that a caller gets all of them at once.
package invalid

import (
	"fmt"
	"strings"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

// Fields collects one fault per field. The zero value is ready to use.
type Fields struct {
	paths     []string
	sentences map[string]string
}

// Addf adds the fault of a field. Only the first one of each field counts.
func (f *Fields) Addf(path, format string, args ...any) {
	if f.sentences == nil {
		f.sentences = make(map[string]string)
	}
	if _, known := f.sentences[path]; !known {
		f.paths = append(f.paths, path)
		f.sentences[path] = fmt.Sprintf(format, args...)
	}
}

// Err returns the fault invalid_argument with all fields, or nil without any.
func (f *Fields) Err(what string) error {
	if len(f.paths) == 0 {
		return nil
	}
	parts := make([]string, len(f.paths))
	for i, path := range f.paths {
		parts[i] = path + ": " + f.sentences[path]
	}
	e := fault.New(errcode.InvalidArgument, "%s is not valid: %s", what, strings.Join(parts, "; "))
	e.Details = f.sentences
	return e
}

package domain

import (
	"fmt"
	"strings"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

// faults collects what is wrong with an input, field by field, so that a caller hears of all of it at once.
type faults struct {
	paths     []string
	sentences map[string]string
}

// addf notes the first fault of a field.
func (f *faults) addf(path, format string, args ...any) {
	if f.sentences == nil {
		f.sentences = make(map[string]string)
	}
	if _, there := f.sentences[path]; !there {
		f.paths = append(f.paths, path)
		f.sentences[path] = fmt.Sprintf(format, args...)
	}
}

// err is nil without a fault.
func (f *faults) err(what string) error {
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

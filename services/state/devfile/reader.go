package devfile

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

const (
	// maxErrors limits the reported errors, and so the size of the answer.
	maxErrors = 20
	// maxExpanded limits the total size of the values that replace variables, in bytes. A valid workspace is smaller.
	maxExpanded = 256 << 10
)

// reader reads one devfile and collects its errors.
type reader struct {
	variables map[string]string
	// remaining bytes of maxExpanded.
	remaining int
	// expansions are the parts of composite commands that were looked up.
	expansions int
	// warnings say what has no effect.
	warnings []string

	// paths are the invalid fields, in the order in which they were found. messages has a sentence for each.
	paths    []string
	messages map[string]string
}

// addf adds an error. Only the first one of a field is kept.
func (r *reader) addf(path, format string, args ...any) {
	if r.messages == nil {
		r.messages = map[string]string{}
	}
	if _, exists := r.messages[path]; !exists {
		r.paths = append(r.paths, path)
		r.messages[path] = fmt.Sprintf(format, args...)
	}
}

// warnf adds a warning. More than the limit of a spec are counted in the last one.
func (r *reader) warnf(path, format string, args ...any) {
	const maxWarnings, maxWarning = 49, 400
	switch warning := path + ": " + fmt.Sprintf(format, args...); {
	case len(r.warnings) < maxWarnings:
		r.warnings = append(r.warnings, strings.ToValidUTF8(warning[:min(len(warning), maxWarning)], ""))
	case len(r.warnings) == maxWarnings:
		r.warnings = append(r.warnings, "there are more")
	}
}

// err returns the collected errors as one fault; nil without an error.
func (r *reader) err() error {
	if len(r.paths) == 0 {
		return nil
	}
	reported := r.paths[:min(len(r.paths), maxErrors)]
	parts, details := make([]string, 0, len(reported)+1), map[string]string{}
	for _, path := range reported {
		at := path
		if at == "" {
			at = "the document"
		}
		parts, details[at] = append(parts, at+": "+r.messages[path]), r.messages[path]
	}
	if more := len(r.paths) - len(reported); more > 0 {
		parts = append(parts, strconv.Itoa(more)+" more")
	}
	e := fault.New(errcode.InvalidArgument, "the devfile is not valid: %s", strings.Join(parts, "; "))
	e.Details = details
	return e
}

func referencePattern() *regexp.Regexp { return regexp.MustCompile(`\{\{(.*?)\}\}`) }

// expand replaces the variables in a text. It does not replace variables in their values.
func (r *reader) expand(path, text string) string {
	if !strings.Contains(text, "{{") {
		return text
	}
	var unknown []string
	tooLong := false
	expanded := referencePattern().ReplaceAllStringFunc(text, func(reference string) string {
		name := strings.TrimSpace(reference[2 : len(reference)-2])
		value, defined := r.variables[name]
		if !defined {
			if !slices.Contains(unknown, name) {
				unknown = append(unknown, name)
			}
			return ""
		}
		if r.remaining -= len(value); r.remaining < 0 {
			tooLong = true
			return ""
		}
		return value
	})
	switch {
	case tooLong:
		r.addf("variables", "expand to more than %d bytes; use fewer or shorter ones", maxExpanded)
	case len(unknown) > 0:
		r.addf(path, "the variable %.40q is not defined; define it in variables", unknown[0])
	}
	return expanded
}

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
	// maxFaults that are told: enough to mend a devfile, not a way to have a long answer made.
	maxFaults = 20
	// maxExpanded is the size of all texts of a devfile with its variables in place, in bytes: more than
	// fits into a workspace.
	maxExpanded = 256 << 10
)

// reader reads one devfile and collects what is wrong with it.
type reader struct {
	variables map[string]string
	// left of maxExpanded.
	left int

	paths     []string
	sentences map[string]string
}

// addf notes the first fault of a field.
func (r *reader) addf(path, format string, args ...any) {
	if r.sentences == nil {
		r.sentences = map[string]string{}
	}
	if _, there := r.sentences[path]; !there {
		r.paths = append(r.paths, path)
		r.sentences[path] = fmt.Sprintf(format, args...)
	}
}

// err is nil without a fault.
func (r *reader) err() error {
	if len(r.paths) == 0 {
		return nil
	}
	told := r.paths[:min(len(r.paths), maxFaults)]
	parts, details := make([]string, 0, len(told)+1), map[string]string{}
	for _, path := range told {
		at := path
		if at == "" {
			at = "the document"
		}
		parts, details[at] = append(parts, at+": "+r.sentences[path]), r.sentences[path]
	}
	if more := len(r.paths) - len(told); more > 0 {
		parts = append(parts, strconv.Itoa(more)+" more")
	}
	e := fault.New(errcode.InvalidArgument, "the devfile is not valid: %s", strings.Join(parts, "; "))
	e.Details = details
	return e
}

func referencePattern() *regexp.Regexp { return regexp.MustCompile(`\{\{(.*?)\}\}`) }

// expand puts variables in place, once.
func (r *reader) expand(path, value string) string {
	if !strings.Contains(value, "{{") {
		return value
	}
	var unknown []string
	tooLong := false
	expanded := referencePattern().ReplaceAllStringFunc(value, func(reference string) string {
		name := strings.TrimSpace(reference[2 : len(reference)-2])
		found, there := r.variables[name]
		if !there {
			if !slices.Contains(unknown, name) {
				unknown = append(unknown, name)
			}
			return ""
		}
		if r.left -= len(found); r.left < 0 {
			tooLong = true
			return ""
		}
		return found
	})
	switch {
	case tooLong:
		r.addf("variables", "make more than %d bytes of the devfile; use them less", maxExpanded)
	case len(unknown) > 0:
		r.addf(path, "the variable %.40q is not defined; define it in variables", unknown[0])
	}
	return expanded
}

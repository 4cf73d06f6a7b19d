package yamlfile

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Position is a place in the file. Lines and columns count from 1, columns in characters. The zero value is no place.
type Position struct{ Line, Column int }

// Problem is one thing that is wrong with the file.
type Problem struct {
	Position

	Message string
}

// Error reports what is wrong with a file.
type Error struct {
	File     string
	Problems []Problem // by position, at most maxProblems
	More     int       // problems that are left out
}

const maxProblems = 20

// NewError returns the problems as an error about a file, sorted by position; nil if there are none.
func NewError(file string, problems []Problem) error {
	if len(problems) == 0 {
		return nil
	}
	problems = slices.Clone(problems)
	slices.SortStableFunc(problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column), cmp.Compare(a.Message, b.Message))
	})
	problems = slices.Compact(problems)
	e := &Error{File: file, Problems: problems}
	if len(problems) > maxProblems {
		e.Problems, e.More = problems[:maxProblems], len(problems)-maxProblems
	}
	return e
}

// Error returns one line for each problem: file:line:column: message.
func (e *Error) Error() string {
	var b strings.Builder
	for i, p := range e.Problems {
		if i > 0 {
			b.WriteByte('\n')
		}
		if p.Line == 0 {
			fmt.Fprintf(&b, "%s: %s", e.File, p.Message)
		} else {
			fmt.Fprintf(&b, "%s:%d:%d: %s", e.File, p.Line, p.Column, p.Message)
		}
	}
	if e.More > 0 {
		fmt.Fprintf(&b, "\n%s: %d more problems", e.File, e.More)
	}
	return b.String()
}

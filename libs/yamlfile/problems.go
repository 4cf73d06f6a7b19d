package yamlfile

import (
	"errors"
	"fmt"
	"slices"
)

// Problems collects what is wrong with a file. The zero value is ready to use.
type Problems struct {
	Found []Problem
	More  int // problems that were not collected
}

// maxCollected bounds the memory for problems of a file that repeats one by aliases.
const maxCollected = 10_000

// Addf adds a problem.
func (p *Problems) Addf(at Position, format string, arguments ...any) {
	if len(p.Found) == maxCollected {
		p.More++
		return
	}
	p.Found = append(p.Found, Problem{Position: at, Message: fmt.Sprintf(format, arguments...)})
}

// Err returns the problems as an *[Error] about a file; nil if there are none.
func (p *Problems) Err(file string) error {
	err := NewError(file, p.Found)
	if e, ok := errors.AsType[*Error](err); ok {
		e.More += p.More
	}
	return err
}

// Suggestion returns the most similar of the words as the end of a sentence; nothing if none is similar, or for later
// problems, which nobody reads.
func (p *Problems) Suggestion(word string, words []string) string {
	if len(p.Found) > maxProblems {
		return ""
	}
	best, distance := "", 3
	for _, candidate := range slices.Sorted(slices.Values(words)) {
		if n := editDistance(word, candidate, distance); n < distance {
			best, distance = candidate, n
		}
	}
	if best == "" {
		return ""
	}
	return ": did you mean " + Quote(best) + "?"
}

// editDistance returns the number of bytes to insert, delete or replace; limit if there are more.
func editDistance(a, b string, limit int) int {
	if len(a) > 64 || len(b) > 64 || max(len(a), len(b))-min(len(a), len(b)) >= limit {
		return limit
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, diagonal+1)
		}
	}
	return min(row[len(b)], limit)
}

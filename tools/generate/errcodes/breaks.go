package errcodes

import (
	"fmt"
	"slices"
)

// Breaks says, one sentence each, which promises of a released registry another one breaks: a code
// is never renamed or reused, and never changes what it is on HTTP, on Connect and as an exit
// status. A new code is no break; descriptions are free.
func Breaks(released, current []byte) ([]string, error) {
	old, err := parse(released)
	if err != nil {
		return nil, fmt.Errorf("released error codes: %w", err)
	}
	now, err := parse(current)
	if err != nil {
		return nil, fmt.Errorf("error codes: %w", err)
	}
	var sentences []string
	for _, before := range old.Errors {
		at := slices.IndexFunc(now.Errors, func(e entry) bool { return e.Code == before.Code })
		if at < 0 {
			sentences = append(sentences, before.Code+": the error code is gone: callers branch on it")
			continue
		}
		after := now.Errors[at]
		for _, promise := range []struct {
			name          string
			before, after any
		}{
			{"http", before.HTTP, after.HTTP}, {"connect", before.Connect, after.Connect}, {"exit", before.Exit, after.Exit},
		} {
			if promise.before != promise.after {
				sentences = append(sentences, fmt.Sprintf("%s: %s %v became %v: callers branch on it", before.Code, promise.name, promise.before, promise.after))
			}
		}
	}
	return sentences, nil
}

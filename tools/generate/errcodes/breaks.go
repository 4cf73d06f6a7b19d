package errcodes

import (
	"fmt"
	"slices"
)

// Breaks returns a sentence for each incompatible change of a released registry. A code keeps its
// name, HTTP status, Connect code and exit status. A new code and another description are
// compatible.
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
				sentences = append(sentences, fmt.Sprintf("%s: %s %v became %v: callers branch on it",
					before.Code, promise.name, promise.before, promise.after))
			}
		}
	}
	return sentences, nil
}

package runnerclient

import (
	"bytes"
	"slices"
	"strings"
	"sync"
)

// masked replaces a masked value.
const masked = "[MASKED]"

// trace is the output of a job. It may be written and read at the same time.
type trace struct {
	mu   sync.Mutex
	data []byte
	// held may be the start of a masked value.
	held []byte
	// values that are masked, the longest first.
	values [][]byte
}

func newTrace(variables []Variable, unmasked bool) *trace {
	t := &trace{}
	for _, v := range variables {
		if v.Masked && v.Value != "" && !unmasked {
			t.values = append(t.values, []byte(v.Value))
		}
	}
	slices.SortFunc(t.values, func(a, b []byte) int { return len(b) - len(a) })
	return t
}

// Write implements [io.Writer]. It never fails.
func (t *trace) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.held = append(t.held, p...)
	for _, value := range t.values {
		t.held = bytes.ReplaceAll(t.held, value, []byte(masked))
	}
	keep := 0
	for _, value := range t.values {
		for n := min(len(value)-1, len(t.held)); n > keep; n-- {
			if bytes.HasSuffix(t.held, value[:n]) {
				keep = n
			}
		}
	}
	t.data = append(t.data, t.held[:len(t.held)-keep]...)
	t.held = append([]byte(nil), t.held[len(t.held)-keep:]...)
	return len(p), nil
}

func (t *trace) line(parts ...string) {
	_, _ = t.Write([]byte(strings.Join(parts, "") + "\n")) // it never fails
}

// end appends what was held. Nothing is written afterwards.
func (t *trace) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.data, t.held = append(t.data, t.held...), nil
}

// from returns at most limit bytes from the offset.
func (t *trace) from(offset int64, limit int) []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	rest := t.data[min(offset, int64(len(t.data))):]
	return slices.Clip(rest[:min(len(rest), limit)])
}

func (t *trace) all() []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clip(t.data)
}

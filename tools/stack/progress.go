package stack

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// progress prints the steps of the start.
type progress struct {
	mu  sync.Mutex
	out io.Writer
}

// step starts a step and returns a function that prints its result and duration.
func (p *progress) step(name string) func(format string, args ...any) {
	begun := time.Now()
	return func(format string, args ...any) {
		p.printf(name, "%s (%.1fs)", fmt.Sprintf(format, args...), time.Since(begun).Seconds())
	}
}

func (p *progress) printf(name, format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _ = fmt.Fprintf(p.out, "  ✓ %-12s %s\n", name, fmt.Sprintf(format, args...))
}

// indented returns a writer that indents each line.
func (p *progress) indented() io.Writer { return &indented{p: p} }

type indented struct {
	p    *progress
	rest string
}

func (w *indented) Write(raw []byte) (int, error) {
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	w.rest += string(raw)
	for {
		line, rest, found := strings.Cut(w.rest, "\n")
		if !found {
			return len(raw), nil
		}
		w.rest = rest
		if _, err := fmt.Fprintf(w.p.out, "    %s\n", line); err != nil {
			return len(raw), fmt.Errorf("write progress: %w", err)
		}
	}
}

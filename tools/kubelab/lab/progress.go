package lab

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// progress tells a person what a lab is doing.
type progress struct{ w io.Writer }

func (p progress) sayf(format string, args ...any) {
	// A terminal that is gone is no reason to stop.
	_, _ = fmt.Fprintf(p.w, format+"\n", args...)
}

// begin announces that a component is waited for and returns how to say that it
// is ready.
func (p progress) begin(name string) func() {
	start := time.Now()
	p.sayf("  %-24s waiting", name)
	return func() { p.sayf("  %-24s ready in %.1fs", name, time.Since(start).Seconds()) }
}

// tail returns the last n lines of text.
func tail(text string, n int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

package lab

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// progress prints progress messages.
type progress struct{ w io.Writer }

func (p progress) printf(format string, args ...any) {
	// Ignore errors: the terminal may be closed.
	_, _ = fmt.Fprintf(p.w, format+"\n", args...)
}

// begin prints that a component is starting. The returned function prints that it is ready.
func (p progress) begin(name string) func() {
	start := time.Now()
	p.printf("  %-24s waiting", name)
	return func() { p.printf("  %-24s ready in %.1fs", name, time.Since(start).Seconds()) }
}

// tail returns the last n lines of text.
func tail(text string, n int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

package pipelines

import (
	"fmt"

	"github.com/charmbracelet/x/ansi"
)

// columns returns the width of a text on a terminal. It may have colours.
func columns(text string) int { return ansi.StringWidth(text) }

// fit cuts a text to a width.
func fit(text string, width int) string { return ansi.Truncate(text, max(0, width), "…") }

// jobs counts jobs.
func jobs(n int) string {
	if n == 1 {
		return "1 job"
	}
	return fmt.Sprintf("%d jobs", n)
}

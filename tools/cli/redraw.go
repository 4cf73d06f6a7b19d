package cli

import (
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

const (
	hideCursor = "\x1b[?25l"
	showCursor = "\x1b[?25h"
	clearBelow = "\x1b[J"
)

// terminal returns the terminal that standard output is, if it understands control sequences.
func (a *app) terminal() (*os.File, bool) {
	file, ok := a.stdout.(*os.File)
	return file, ok && term.IsTerminal(int(file.Fd())) && os.Getenv("TERM") != "dumb"
}

// redrawn is the last lines of a terminal, which are replaced as a whole. Other lines scroll above them.
type redrawn struct {
	out io.Writer
	// drawn is the number of lines to overwrite, last is their text.
	drawn int
	last  string
	above []string
}

// scroll shows a line above the others with the next draw.
func (r *redrawn) scroll(line string) { r.above = append(r.above, line) }

func (r *redrawn) draw(lines []string) error {
	text := strings.Join(lines, "\n") + "\n"
	if text == r.last && len(r.above) == 0 {
		return nil
	}
	var b strings.Builder
	b.WriteString(hideCursor)
	if r.drawn > 0 {
		fmt.Fprintf(&b, "\x1b[%dA\r", r.drawn)
	}
	b.WriteString(clearBelow)
	for _, line := range r.above {
		b.WriteString(line + "\n")
	}
	b.WriteString(text)
	r.above, r.drawn, r.last = nil, len(lines), text
	if _, err := io.WriteString(r.out, b.String()); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

// close restores the terminal.
func (r *redrawn) close() { _, _ = io.WriteString(r.out, showCursor) }

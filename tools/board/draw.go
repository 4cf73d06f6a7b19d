package board

import (
	"fmt"
	"strings"
	"time"

	deploysv1 "lockstep.internal/schemas/gen/lockstep/deploys/v1"
)

// Page is the size of the terminal.
type Page struct {
	// Width and Height in characters. Lines are never wider, and never more, except that there is
	// always one.
	Width, Height int
	// Colour enables colours.
	Colour bool
}

// Characters of the bar: new and available, new and not available, old, missing.
const (
	cellAvailable = '█'
	cellComing    = '▓'
	cellOld       = '▒'
	cellMissing   = '·'
)

const (
	colourGood  = "\x1b[32m"
	colourBusy  = "\x1b[36m"
	colourOld   = "\x1b[33m"
	colourBad   = "\x1b[31m"
	colourFaint = "\x1b[2m"
	colourNone  = "\x1b[0m"
)

// minBar and maxBar are the widths of a bar in columns.
const (
	minBar = 5
	maxBar = 40
)

// linesEach is the number of lines of a rollout.
const linesEach = 3

// Lines draws the running rollouts in their order. The last line counts those that do not fit the page.
func Lines(running []*deploysv1.Rollout, now time.Time, page Page) []string {
	if len(running) == 0 {
		return []string{page.paint(colourFaint, fit("no rollout is running", page.Width))}
	}
	shown := running
	if len(running)*linesEach > page.Height {
		shown = running[:max(0, page.Height-1)/linesEach]
	}
	lines := make([]string, 0, linesEach*len(shown)+1)
	for _, r := range shown {
		lines = append(lines, page.rollout(r, now)...)
	}
	if more := len(running) - len(shown); more > 0 {
		text := fmt.Sprintf("and %d more", more)
		if len(shown) == 0 {
			text = plural(int32(more), "rollout", "rollouts")
		}
		lines = append(lines, page.paint(colourFaint, fit(text, page.Width)))
	}
	return lines
}

func (p Page) rollout(r *deploysv1.Rollout, now time.Time) []string {
	title := fmt.Sprintf("%s  r%d %s", Name(r), r.GetRevision(), Change(r))
	if images := Images(r); images != "" {
		title += "  " + images
	}
	waits, colour := "  "+Waits(r), colourFaint
	if State(r) != "running" {
		waits, colour = "  "+strings.ToUpper(State(r))+": "+Waits(r), colourBad
	}
	return []string{
		justify(title, span(Age(r, now)), p.Width),
		p.barLine(r.GetCounts()),
		p.paint(colour, fit(waits, p.Width)),
	}
}

// barLine returns the bar and its numbers.
func (p Page) barLine(c *deploysv1.Counts) string {
	numbers := Counts(c)
	width := min(maxBar, p.Width-columns(numbers)-len("  [] "))
	if width < minBar {
		return fit("  "+numbers, p.Width)
	}
	return "  [" + p.bar(c, width) + "] " + numbers
}

// bar draws pods in proportion. Each kind of pods has at least one character if the width allows.
func (p Page) bar(c *deploysv1.Counts, width int) string {
	fresh := max(0, min(c.GetUpdated(), c.GetTotal()))
	old := c.GetTotal() - fresh
	// Counts do not tell which pods are unavailable: assume the new ones.
	coming := min(fresh, max(0, c.GetTotal()-c.GetAvailable()))
	parts := []struct {
		n      int
		cell   rune
		colour string
	}{
		{int(fresh - coming), cellAvailable, colourGood},
		{int(coming), cellComing, colourBusy},
		{int(old), cellOld, colourOld},
		{int(max(0, c.GetDesired()-c.GetTotal())), cellMissing, colourFaint},
	}
	shares := make([]int, len(parts))
	for i := range parts {
		shares[i] = parts[i].n
	}
	var b strings.Builder
	for i, n := range divide(shares, width) {
		if n > 0 {
			b.WriteString(p.paint(parts[i].colour, strings.Repeat(string(parts[i].cell), n)))
		}
	}
	if b.Len() == 0 {
		return p.paint(colourFaint, strings.Repeat(string(cellMissing), width))
	}
	return b.String()
}

// divide splits a width in proportion to shares. Each positive share gets at least 1 if the width
// allows.
func divide(shares []int, width int) []int {
	out := make([]int, len(shares))
	all, some := 0, 0
	for _, n := range shares {
		if n > 0 {
			all += n
			some++
		}
	}
	if all == 0 || width < some {
		return out
	}
	left, sum := width-some, 0
	for i, n := range shares {
		if n <= 0 {
			continue
		}
		// Each gets what lies between the rounded sums before and after it.
		before := left * sum / all
		sum += n
		out[i] = 1 + left*sum/all - before
	}
	return out
}

// Ended returns the line of an ended rollout.
func Ended(r *deploysv1.Rollout, page Page) string {
	mark, colour := "✓", colourGood
	if r.GetState() != deploysv1.RolloutState_ROLLOUT_STATE_COMPLETED {
		mark, colour = "✗", colourBad
	}
	text := fmt.Sprintf("%s  r%d %s  %s", Name(r), r.GetRevision(), Change(r), State(r))
	if images := Images(r); images != "" {
		text += "  " + images
	}
	if why := plain(r.GetMessage()); why != "" && r.GetState() != deploysv1.RolloutState_ROLLOUT_STATE_COMPLETED {
		text += "  " + why
	}
	if page.Width < minBar {
		return fit(mark, page.Width)
	}
	return page.paint(colour, mark) + " " + justify(text, span(Age(r, time.Time{})), page.Width-2)
}

func (p Page) paint(colour, text string) string {
	if !p.Colour || text == "" {
		return text
	}
	return colour + text + colourNone
}

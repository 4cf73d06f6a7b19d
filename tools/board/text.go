package board

import (
	"fmt"
	"strings"
	"time"
	"unicode"
)

// plain returns text on one line with printable characters only.
func plain(text string) string {
	var b strings.Builder
	for word := range strings.FieldsFuncSeq(text, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }) {
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(word)
	}
	return b.String()
}

// cells returns the columns of a character. East Asian scripts take two.
func cells(r rune) int {
	if r >= 0x1100 &&
		(unicode.In(r, unicode.Han, unicode.Hangul, unicode.Hiragana, unicode.Katakana) ||
			r >= 0xff01 && r <= 0xff60 || r >= 0x1f300) {
		return 2
	}
	return 1
}

// columns returns the columns of a text.
func columns(text string) int {
	n := 0
	for _, r := range text {
		n += cells(r)
	}
	return n
}

// fit cuts a text to a number of columns.
func fit(text string, width int) string {
	if columns(text) <= width {
		return text
	}
	if width <= 0 {
		return ""
	}
	n := 0
	for i, r := range text {
		if n += cells(r); n >= width {
			return text[:i] + "…"
		}
	}
	return text
}

// justify puts one text at the left and one at the right end of a line.
func justify(left, right string, width int) string {
	room := width - columns(right) - 1
	if room < columns(right) {
		return fit(left, width)
	}
	left = fit(left, room)
	return left + strings.Repeat(" ", width-columns(left)-columns(right)) + right
}

// span formats a duration.
func span(d time.Duration) string {
	d = max(0, d)
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", d.Truncate(100*time.Millisecond).Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	default:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
}

func plural(n int32, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

package trace

import (
	"strings"
	"unicode"

	"github.com/charmbracelet/x/ansi"
)

// Line returns a text that others wrote as one line without control characters.
func Line(text string) string {
	return strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case hidden(r):
			return -1
		default:
			return r
		}
	}, ansi.Strip(text))), " ")
}

// hidden reports whether a terminal may take a character as a command, or use it to reorder the text.
func hidden(r rune) bool { return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) }

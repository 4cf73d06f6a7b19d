package sink

import (
	"fmt"
	"strings"
	"unicode"
)

// Markup writes values into a formatted text so that the destination shows them and interprets none of their
// characters.
type Markup struct {
	// Text shows a text without formatting, links and mentions.
	Text func(string) string
	// Code shows a text as code.
	Code func(string) string
	// URL shows a valid URL as a link.
	URL func(string) string
}

// plain writes values unchanged.
func plain() *Markup {
	unchanged := func(s string) string { return s }
	return &Markup{Text: unchanged, Code: unchanged, URL: unchanged}
}

// escaped is a text that is written as it is.
type escaped string

// escape is what each output of a template passes through.
func (m *Markup) escape(value any) escaped {
	switch v := value.(type) {
	case escaped:
		return v
	case URL:
		return escaped(m.URL(string(v)))
	default:
		return escaped(m.Text(fmt.Sprint(v)))
	}
}

func (m *Markup) code(value any) escaped { return escaped(m.Code(fmt.Sprint(value))) }

// OneLine returns the text as one line: sequences of white space and control characters are one space. It removes
// characters that change the direction of text or have no width.
func OneLine(text string) string {
	return strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		switch {
		case unicode.IsControl(r), unicode.IsSpace(r):
			return ' '
		case unicode.Is(unicode.Cf, r), r == unicode.ReplacementChar:
			return -1
		default:
			return r
		}
	}, text)), " ")
}

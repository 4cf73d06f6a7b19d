package github

import (
	"strings"

	"lockstep.internal/services/deploys/sink"
)

// Markup writes values into a comment in GitHub Flavored Markdown.
func Markup() *sink.Markup {
	return &sink.Markup{Text: escapeText, Code: escapeCode, URL: autolink}
}

// noWidth separates characters that GitHub itself makes links of: mentions, issues and URLs.
const noWidth = "\u200b"

// punctuation are the characters with a meaning in Markdown. A backslash before one makes it text.
const punctuation = "!#$&()*+-.:<=>@[\\]^_`{|}~"

func escapeText(text string) string {
	var b strings.Builder
	for _, r := range sink.OneLine(text) {
		if strings.ContainsRune(punctuation, r) {
			b.WriteByte('\\')
		}
		b.WriteRune(r)
		if r == '@' || r == '#' || r == ':' {
			b.WriteString(noWidth)
		}
	}
	return b.String()
}

// escapeCode returns a code span. Text that cannot be in one everywhere, such as a | in a table, is not code.
func escapeCode(text string) string {
	if text = sink.OneLine(text); text == "" || strings.ContainsAny(text, "`|") {
		return escapeText(text)
	}
	return "`" + text + "`"
}

func autolink(url string) string {
	if url == "" {
		return ""
	}
	return "<" + url + ">"
}

package slack

import (
	"strings"

	"lockstep.internal/services/deploys/sink"
)

// Markup writes values into a message in Slack's mrkdwn. Slack can escape only &, < and >. Other characters with a
// meaning are replaced by similar ones, or separated from their neighbours by a character without width.
//
// See https://docs.slack.dev/messaging/formatting-message-text.
func Markup() *sink.Markup {
	return &sink.Markup{Text: escapeText, Code: escapeCode, URL: strings.NewReplacer("&", "&amp;").Replace}
}

const noWidth = "\u200b"

var (
	entities = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "`", "'")
	// Underscores stay: inside of words they have no meaning, and names contain them.
	formatting = strings.NewReplacer("*", "∗", "~", "∼", "://", ":"+noWidth+"//")
)

func escapeText(text string) string {
	return entities.Replace(separateEmoji(formatting.Replace(sink.OneLine(text))))
}

func escapeCode(text string) string {
	if text = entities.Replace(sink.OneLine(text)); text == "" {
		return ""
	}
	return "`" + text + "`"
}

// separateEmoji makes :name: not an emoji.
func separateEmoji(text string) string {
	var b strings.Builder
	for i, r := range text {
		b.WriteRune(r)
		if r != ':' {
			continue
		}
		rest := text[i+1:]
		if end := strings.IndexByte(rest, ':'); end > 0 && strings.Trim(rest[:end], emojiName) == "" {
			b.WriteString(noWidth)
		}
	}
	return b.String()
}

// emojiName are the characters of an emoji's name.
const emojiName = "abcdefghijklmnopqrstuvwxyz0123456789_-+'"

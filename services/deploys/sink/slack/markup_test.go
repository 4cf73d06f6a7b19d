package slack_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/sink"
	"lockstep.internal/services/deploys/sink/slack"
)

// interpreted are the sequences that Slack gives a meaning: mentions and links, entities, code, bold, strike-through,
// emoji, URLs.
var interpreted = regexp.MustCompile("[<>`*~\\x00-\\x1f\\x7f]|&(?:[^alg]|$)|:[a-z0-9_+'-]+:|://")

func FuzzValuesInMessagesAreText(f *testing.F) {
	for _, text := range []string{
		"<!channel> <@U1> <https://evil.example|here>", "*b* ~s~ `c` ```\nd", "&lt;!channel&gt;",
		":white_check_mark: completed",
		"::a:b::c:", "https://evil.example", "> quote", "a\u2028b\u202ec", ":a\u200bb:",
	} {
		f.Add(text)
	}
	markup := slack.Markup()
	shown := strings.NewReplacer("&amp;", "&", "&lt;", "<", "&gt;", ">", "\u200b", "", "∗", "*", "∼", "~")
	original := strings.NewReplacer("`", "'", "∗", "*", "∼", "~")
	f.Fuzz(func(t *testing.T, text string) {
		escaped := markup.Text(text)
		require.NotRegexp(t, interpreted, escaped)
		require.Equal(t, original.Replace(sink.OneLine(text)), shown.Replace(escaped))

		code := markup.Code(text)
		require.Contains(t, []int{0, 2}, strings.Count(code, "`"))
		require.NotRegexp(t, `[<>\x00-\x1f\x7f]`, code)
	})
}

func TestEveryValueInMessageIsEscaped(t *testing.T) {
	t.Parallel()
	const evil = "<!channel> *x* `y` https://evil.example :tada:"
	b := setup(t)
	f := b.fact(events.FactStalled)
	f.Message, f.Workload.Name, f.Rollout.Images[0].Image = evil, evil, evil
	f.Environment = &events.Environment{Group: evil, Run: evil, Url: "https://x.example|<!channel>"}
	require.NoError(t, b.deliver(f))
	text := b.server.Messages()[0].Text
	require.NotContains(t, text, "<")
	lines := strings.Split(text, "\n")
	require.Equal(t, "`&lt;!channel&gt; *x* 'y' https://evil.example :tada:`", lines[len(lines)-1])
	for _, bad := range []string{"*x*", "`", "://", ":tada:"} {
		require.NotContains(t, strings.Join(lines[:len(lines)-1], "\n"), bad)
	}
}

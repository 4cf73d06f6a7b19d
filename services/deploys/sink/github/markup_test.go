package github_test

import (
	"bytes"
	"html"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/extension"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/sink"
	"lockstep.internal/services/deploys/sink/github"
	"lockstep.internal/services/deploys/sink/github/githubtest"
)

// render renders GitHub Flavored Markdown as HTML.
func render(t *testing.T, markdown string) string {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, goldmark.New(goldmark.WithExtensions(extension.GFM)).Convert([]byte(markdown), &out))
	return strings.TrimSpace(out.String())
}

var hostile = []string{
	"<!-- x --> @everyone [a](https://evil.example.com) `code` #12 GH-1", "| a | b |\n|---|---|", "www.evil.example mail@evil.example",
	"![x](http://evil.example/x.png)", "<script>alert(1)</script>", "    code", "# title", "- item", "1. item", "1) item",
	"+ x", "> x",
	"***",
	"===", "~~~\nx", "```\nx", "\\*x\\*", "&lt;b&gt; &#64;x", "[x]: https://evil.example", "**b** _i_ ~~s~~ ~s~", "a\u2028b\x00c", "[ ] x",
	"https://evil.example", "ftp://evil.example/", "mailto:a@b.c", "<https://evil.example>", "[^1]", ":smile:",
	"\\", "`", "``", "|",
}

// links are what GitHub makes links of after it has rendered the Markdown.
var links = regexp.MustCompile(`(^|\W)@\w|#\d|://`)

func FuzzValuesInCommentsAreText(f *testing.F) {
	for _, text := range hostile {
		f.Add(text)
	}
	markup := github.Markup()
	f.Fuzz(func(t *testing.T, text string) {
		line := sink.OneLine(text)
		escaped := markup.Text(text)
		shown := html.UnescapeString(strings.TrimSuffix(strings.TrimPrefix(render(t, escaped), "<p>"), "</p>"))
		if line == "" {
			require.Empty(t, escaped)
			return
		}
		require.Equal(t, line, strings.ReplaceAll(shown, "\u200b", ""))
		require.NotRegexp(t, links, shown)

		row := render(t, "| a | b |\n|---|---|\n| "+escaped+" | "+markup.Code(text)+" |")
		require.Equal(t, 2, strings.Count(row, "<td"), row)
		cells := regexp.MustCompile(`<td>(.*)</td>`).FindAllStringSubmatch(row, -1)
		require.Len(t, cells, 2, row)
		for _, cell := range cells {
			plain := strings.TrimSuffix(strings.TrimPrefix(cell[1], "<code>"), "</code>")
			require.NotContains(t, plain, "<", row)
			require.Equal(t, line, strings.ReplaceAll(html.UnescapeString(plain), "\u200b", ""))
		}
	})
}

func TestURLInCommentIsLink(t *testing.T) {
	t.Parallel()
	markup := github.Markup()
	for _, url := range []string{"https://pr-1.example.com", "http://[::1]:8080/_a_[b](c)!~~d~~?x=1&y=2#@z"} {
		require.Contains(t, render(t, "**"+markup.URL(url)+"**"), ">"+html.EscapeString(url)+"</a></strong>")
	}
	require.Empty(t, markup.URL(""))
}

func TestEveryValueInCommentIsEscaped(t *testing.T) {
	t.Parallel()
	const evil = "<b>@all `x` | [a](https://evil.example)"
	for _, template := range []string{
		"",
		`{{.Message}} {{.Group}} {{index .Labels "l"}} {{printf "%s" .Run}} {{range .Members}}{{.}}{{end}}`,
	} {
		b := setup(t)
		b.repo.Pulls[318] = &githubtest.Pull{State: "open"}
		options := b.options()
		if template != "" {
			var err error
			options.Template, err = sink.ParseTemplate(template, github.Markup())
			require.NoError(t, err)
		}
		comments, err := github.NewComments(b.cfg, options)
		require.NoError(t, err)
		f := environment(events.FactEnvironmentReady, evil, "https://x.example|<!channel>")
		f.Message, f.Environment.Group, f.Workload.Labels = evil, evil, map[string]string{"l": evil}
		f.Workload.Annotations["lockstep.dev/pull-request"] = "318"
		f.Environment.Members = []events.Member{{Namespace: evil, Name: evil}}
		require.NoError(t, b.deliver(comments, f))
		shown := regexp.MustCompile(`<code>[^<]*</code>`).ReplaceAllString(render(t, b.bodies()[0]), "")
		for _, bad := range []string{"@all", "<a", "<b>", "channel"} {
			require.NotContains(t, shown, bad)
		}
	}
}

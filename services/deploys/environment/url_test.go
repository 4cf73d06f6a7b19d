package environment_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/deploys/environment"
)

func TestOnlyAbsoluteWebURLIsPublished(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"https://pr-1.example.com", "http://[::1]:8080/a?b=c&d#e", "HTTPS://x.example/%20_(1)",
		"https://x/" + strings.Repeat("a", 2038),
	} {
		require.Equal(t, text, environment.WebURL(text))
	}
	for _, text := range []string{
		"", "pr-1.example.com", "/path", "//host/path", "javascript:alert(1)", "data:text/html,x", "ftp://x", "https://",
		"https:x", "https://:80/", "https://user:secret@x.example", "https://x/ y", "https://x/\ny", "https://x/\x00",
		"https://x/\u202e",
		"https://x|<!channel>", "https://x/<b>", "https://x/*a*", "https://x/`", `https://x/"`, `https://x/\`,
		"https://x/%zz", "https://ex\u00e4mple.com", "https://x/" + strings.Repeat("a", 2039),
	} {
		require.Empty(t, environment.WebURL(text), text)
	}
}

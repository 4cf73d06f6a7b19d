package sink_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/deploys/sink"
)

// shout is a markup that shows what a template escapes.
var shout = &sink.Markup{
	Text: strings.ToUpper,
	Code: func(s string) string { return "[" + s + "]" },
	URL:  func(s string) string { return "(" + s + ")" },
}

func TestOneLineHasNoInvisibleCharacters(t *testing.T) {
	t.Parallel()
	require.Equal(t, "a b c d e", sink.OneLine(" a\r\nb\tc\u2028d\u0085\x00e\u202e\u200b\xff\u2066 "))
	require.Empty(t, sink.OneLine(" \n"))
}

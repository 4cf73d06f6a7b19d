package trace_test

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"lockstep.internal/tools/trace"
)

var update = flag.Bool("update", false, "write the golden files")

// show returns what a Writer makes of parts of a trace.
func show(t *testing.T, options trace.Options, parts ...string) string {
	t.Helper()
	var out strings.Builder
	w := trace.NewWriter(&out, options)
	for _, part := range parts {
		n, err := w.Write([]byte(part))
		require.NoError(t, err)
		require.Equal(t, len(part), n)
	}
	require.NoError(t, w.Close())
	return out.String()
}

const (
	start = "section_start:100:build\r\x1b[0K"
	end   = "section_end:165:build\r\x1b[0K"
	fold  = "section_start:100:build[collapsed=true]\r\x1b[0K"
)

func TestTextOfATrace(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ trace, plain, terminal string }{
		"text is kept":                   {"a\tb\n\nc", "a\tb\n\nc", "a\tb\n\nc\n"},
		"colours need a terminal":        {"\x1b[31;1mred\x1b[0;m\n", "red\n", "\x1b[31;1mred\x1b[0;m\n"},
		"colours may have sub-values":    {"\x1b[38:2::1:2:3mx\x1b[m\n", "x\n", "\x1b[38:2::1:2:3mx\x1b[m\n"},
		"an open colour is closed":       {"\x1b[31mred\n", "red\n", "\x1b[31mred\n\x1b[0m"},
		"a title of the window":          {"a\x1b]0;title\x07b\x1b]8;;x\x1b\\c\n", "abc\n", "abc\n"},
		"a cursor that moves":            {"a\x1b[2J\x1b[1;1Hb\x1b[?25lc\n", "abc\n", "abc\n"},
		"a mode of the keyboard":         {"a\x1b[>4;1mb\x1b[1 mc\n", "abc\n", "abc\n"},
		"a device control string":        {"a\x1bPq#0\x1b\\b\n", "ab\n", "ab\n"},
		"a reset of the terminal":        {"a\x1bcb\n", "ab\n", "ab\n"},
		"controls with eight bits":       {"a\u009b2Jb\x9b2Jc\n", "a2Jb\uFFFD2Jc\n", "a2Jb\uFFFD2Jc\n"},
		"bells and backspaces":           {"a\ab\bc\x00\n", "abc\n", "abc\n"},
		"text that changes its order":    {"a\u202Eb\u2066c\n", "abc\n", "abc\n"},
		"bytes that are not UTF-8":       {"a\xffb\xc3\nc\n", "a\uFFFDb\uFFFD\nc\n", "a\uFFFDb\uFFFD\nc\n"},
		"a line end of two characters":   {"a\r\nb\r\n", "a\nb\n", "a\nb\n"},
		"a line that replaces itself":    {"10%\r20%\n", "10%\n20%\n", "10%\r\x1b[K20%\n"},
		"a sequence without an end":      {"a\x1b[31", "a", "a\n"},
		"a line that is almost a marker": {"section_end:x\nsect\ns", "section_end:x\nsect\ns", "section_end:x\nsect\ns\n"},
		"a marker within a line":         {"x section_end:1:\ry\n", "x section_end:1:\ny\n", "x section_end:1:\r\x1b[Ky\n"},
		"a section": {
			"a\n" + start + "\x1b[36mBuild it\x1b[m\nb\n" + end + "c\n",
			"a\nBuild it\nb\nc\n",
			"a\n\x1b[1m▾ Build it\x1b[0m\nb\n\x1b[2m└ 1m05s\x1b[0m\nc\n",
		},
		"a section without heading": {
			start + "\na\n" + end + "\nb\n", "a\nb\n", "\x1b[1m▾ build\x1b[0m\na\n\x1b[2m└ 1m05s\x1b[0m\nb\n",
		},
		"a collapsed section": {
			fold + "Build it\na\nb\n" + end + "c\n", "Build it\na\nb\nc\n",
			"\x1b[1m▸ Build it\x1b[0m  \x1b[2m1m05s, 2 lines\x1b[0m\nc\n",
		},
		"a collapsed section without end": {
			fold + "Build it\na\nfailed\n", "Build it\na\nfailed\n",
			"\x1b[1m▾ Build it\x1b[0m\na\nfailed\n\x1b[0m",
		},
		"a section within a collapsed one": {
			fold + "A\nb\nsection_start:110:in\r\x1b[0KB\nc\nsection_end:120:in\r\x1b[0K" + end + "d\n",
			"A\nb\nB\nc\nd\n", "\x1b[1m▸ A\x1b[0m  \x1b[2m1m05s, 3 lines\x1b[0m\nd\n",
		},
		"an end without a section": {"section_end:1:none\r\x1b[0Ka\n", "a\n", "a\n"},
		"a collapsed section whose end is missing": {
			"section_start:1:out\r\x1b[0KOut\n" + fold + "A\nb\nsection_end:9:out\r\x1b[0Kd\n",
			"Out\nA\nb\nd\n", "\x1b[1m▾ Out\x1b[0m\n\x1b[1m▸ A\x1b[0m  \x1b[2m1 line\x1b[0m\nd\n",
		},
		"a section that ends before it begins": {
			"section_start:9:a\r\x1b[0KA\nsection_end:1:a\r\x1b[0K", "A\n", "\x1b[1m▾ A\x1b[0m\n\x1b[2m└ 0s\x1b[0m\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tc.plain, show(t, trace.Options{}, tc.trace), "plain")
			terminal := trace.Options{Terminal: true, Colour: true}
			require.Equal(t, tc.terminal, show(t, terminal, tc.trace), "on a terminal")
			require.Equal(t, tc.terminal, show(t, terminal, strings.SplitAfter(tc.trace, "")...), "in parts")
		})
	}
}

func TestFullTraceShowsCollapsedSections(t *testing.T) {
	t.Parallel()
	require.Equal(t, "▾ Build it\na\n└ 1m05s\n",
		show(t, trace.Options{Terminal: true, Full: true}, fold+"Build it\na\n"+end))
}

func TestCollapsedSectionKeepsItsLastLines(t *testing.T) {
	t.Parallel()
	shown := show(t, trace.Options{Terminal: true},
		fold+"Build\n"+strings.Repeat("one more line\n", 100_000)+"the reason\n")
	require.Less(t, len(shown), 256<<10)
	require.True(t, strings.HasPrefix(shown, "▾ Build\n…\none more line\n"), shown[:50])
	require.True(t, strings.HasSuffix(shown, "one more line\nthe reason\n"))
}

func TestGoldenTraces(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile(filepath.Join("testdata", "runner.trace"))
	require.NoError(t, err)
	for name, options := range map[string]trace.Options{
		"plain":      {},
		"terminal":   {Terminal: true, Colour: true},
		"monochrome": {Terminal: true},
		"full":       {Terminal: true, Full: true},
	} {
		shown, path := show(t, options, string(raw)), filepath.Join("testdata", name+".golden")
		if *update {
			require.NoError(t, os.WriteFile(path, []byte(shown), 0o600))
		}
		want, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, string(want), shown, name)
	}
}

type closed struct{}

func (closed) Write([]byte) (int, error) { return 0, errors.New("closed") }

func TestErrorOfTheOutputIsReturned(t *testing.T) {
	t.Parallel()
	_, err := trace.NewWriter(closed{}, trace.Options{}).Write([]byte("text\n"))
	require.EqualError(t, err, "print: closed")
}

func TestLine(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                            "",
		"unit: [linux]":               "unit: [linux]",
		" a\n\tb\x00 ":                "a b",
		"\x1b[31mred\x1b]0;x\x07\x1b": "red",
		"a\u202Eb\u009b2J":            "ab2J",
	} {
		require.Equal(t, want, trace.Line(text), "%q", text)
	}
}

var allowed = regexp.MustCompile("\x1b\\[[0-9;:]*m|\r\x1b\\[K")

// FuzzWriter checks that nothing but text and styles reaches a terminal, and that it does not matter where a trace is
// split.
func FuzzWriter(f *testing.F) {
	raw, err := os.ReadFile(filepath.Join("testdata", "runner.trace"))
	require.NoError(f, err)
	f.Add(raw, uint(7))
	f.Add([]byte(fold+"A\n\x1b[31mb\n"+end), uint(3))
	f.Add([]byte("a\x1b]0;t\xc3\x9cx\x07\xc2\x9b2J\x1b[>1m\x90q\x9c"), uint(1))
	f.Fuzz(func(t *testing.T, text []byte, at uint) {
		split := int(at % uint(len(text)+1))
		for _, options := range []trace.Options{
			{}, {Colour: true}, {Terminal: true}, {Terminal: true, Colour: true}, {Terminal: true, Full: true},
		} {
			shown := show(t, options, string(text))
			require.Equal(t, shown, show(t, options, string(text[:split]), string(text[split:])))
			require.True(t, utf8.ValidString(shown))
			for _, r := range allowed.ReplaceAllString(shown, "") {
				require.False(t, unicode.IsControl(r) && r != '\n' && r != '\t' || unicode.Is(unicode.Bidi_Control, r), "%q", shown)
			}
			if !options.Colour {
				require.NotContains(t, strings.ReplaceAll(shown, "\r\x1b[K", ""), "\x1b")
			}
		}
	})
}

package yamlfile_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/yamlfile"
	"lockstep.internal/tools/testkit/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func format() yamlfile.Format {
	return yamlfile.Format{
		Bytes: 4096, Depth: 8, Weight: 2000, Content: "write a key", OneDocument: "write one",
		Tags: map[string]string{"!env": "write the value"},
	}
}

// read returns the mapping, and the problems without the name of the file.
func read(content string) (*yamlfile.Value, string) {
	found := &yamlfile.Problems{}
	v := format().Read([]byte(content), "a mapping of keys", found)
	if err := found.Err("f"); err != nil {
		return v, strings.ReplaceAll(err.Error(), "f:", "")
	}
	return v, ""
}

func TestValuesKnowTheirPositions(t *testing.T) {
	t.Parallel()
	v, problems := read("a: &x [1, text]\nb:\n  <<: {c: null, d: true}\n  d: *x\n")
	require.Empty(t, problems)
	require.Nil(t, v.Get("none"))
	a, d := v.Get("a"), v.Get("b").Get("d")
	require.Same(t, a, d, "aliases share their value")
	require.Equal(t, yamlfile.Position{Line: 1, Column: 11}, a.Items[1].Position)
	require.Nil(t, v.Get("b").Get("c"), "null counts as absent")

	p := &yamlfile.Problems{}
	require.Equal(t, []string{"1", "text"}, p.Texts(a, "a"))
	require.Equal(t, 1, p.Integer(a.Items[0], "n", 1, 9))
	require.Empty(t, p.Found)
	p.Boolean(a.Items[1], "b")
	p.Mapping(a, "m")
	p.Addf(v.Position, "the first%s", p.Suggestion("ruels", []string{"rules", "data"}))
	require.EqualError(t, p.Err("f"), "f:1:1: the first: did you mean \"rules\"?\n"+
		"f:1:4: m must be a mapping, not a list\n"+
		"f:1:11: b must be true or false, not \"text\"")
}

func TestInvalidFilesAreRefused(t *testing.T) {
	t.Parallel()
	bomb := "a: &a [x, x, x, x, x, x, x, x, x, x]\nb: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a, *a]\nc: [*b, *b, *b, *b, *b, *b, *b, *b, *b, *b]\n"
	for content, want := range map[string]string{
		"":                        "1:1: the file is empty: write a key",
		"# nothing":               "1:1: the file is empty: write a key",
		"- a":                     "1:1: the file must be a mapping of keys, not a list",
		"a: 1\na: 2":              `2:1: the key "a" is already in line 1`,
		"a: 1\n---\nb: 2":         "2:1: the file has a second document: write one",
		"a: !env X":               "1:4: !env is not supported: write the value",
		"a: !other X":             "1:4: the tag !other is not supported: remove it",
		"a: &a [*a]":              "1:8: the alias *a is inside of its own anchor",
		"a: \xff":                 "1:4: the file is not UTF-8",
		"a:\n\tb: c":              "2:2: not valid YAML: found character that cannot start any token",
		strings.Repeat("#", 4097): "1:1: the file has 4097 bytes: at most 4096 are allowed",
		"a: " + strings.Repeat("[", 8) + strings.Repeat("]", 8): "1:11: more than 8 nested levels",
		bomb: "1:1: the file is too large after its aliases were replaced: weight",
	} {
		v, problems := read(content)
		require.Nil(t, v)
		require.Contains(t, problems, want, content)
	}
}

func TestProblemsAreBounded(t *testing.T) {
	t.Parallel()
	p := &yamlfile.Problems{}
	for i := range 20_000 {
		p.Addf(yamlfile.Position{Line: i + 1, Column: 1}, "wrong")
	}
	lines := strings.Split(p.Err("f").Error(), "\n")
	require.Len(t, lines, 21)
	require.Equal(t, fmt.Sprintf("f: %d more problems", 20_000-20), lines[20])
	require.NoError(t, (&yamlfile.Problems{}).Err("f"))
}

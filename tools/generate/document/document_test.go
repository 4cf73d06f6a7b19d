package document_test

import (
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"lockstep.internal/tools/generate/document"
)

func TestReadReportsEveryInvalidFile(t *testing.T) {
	t.Parallel()
	_, err := document.Read(fstest.MapFS{
		"a.schema.json": {Data: []byte(`{`)},
		"b.schema.json": {Data: []byte(`{} {}`)},
		"c.schema.json": {Data: []byte(`{}`)},
		"README.md":     {Data: []byte(`no`)},
	})
	require.ErrorContains(t, err, "a.schema.json: is not JSON: unexpected EOF")
	require.ErrorContains(t, err, "b.schema.json: is not JSON: a second value follows the document")
	require.NotContains(t, err.Error(), "c.schema.json")
}

func TestResolveFollowsReferences(t *testing.T) {
	t.Parallel()
	s, err := document.New(map[string][]byte{
		"a.schema.json": []byte(`{"title":"A","$defs":{"Own":{"title":"Own"},` +
			`"Two":{"$ref":"b.schema.json#/$defs/x~1y~0z"},"Loop":{"$ref":"#/$defs/Loop"}}}`),
		"b.schema.json": []byte(`{"title":"B","$defs":{"x/y~z":{"title":"Odd"},"Back":{"$ref":"#/$defs/x~1y~0z"}}}`),
	})
	require.NoError(t, err)
	for ref, want := range map[string]string{
		"#/$defs/Own": "Own", "#": "A", "": "A", "b.schema.json": "B", "b.schema.json#": "B", "#/$defs/Two": "Odd",
		"https://lockstep.dev/schemas/events/b.schema.json#/$defs/Back": "Odd",
	} {
		n, err := node(t, s, ref).Resolve()
		require.NoError(t, err, ref)
		require.Equal(t, want, n.At("title").Text(), ref)
	}
	for ref, want := range map[string]string{
		"#/$defs/None":              `$ref "#/$defs/None": n.schema.json has no /$defs/None`,
		"c.schema.json#/":           `file c.schema.json`,
		"a.schema.json#/$defs/Loop": "references form a cycle",
	} {
		_, err := node(t, s, ref).Resolve()
		require.ErrorContains(t, err, want)
	}
}

// node is {"$ref": ref} in a file n beside those of the set; a bare fragment is meant in a.
func node(t *testing.T, s document.Set, ref string) document.Node {
	t.Helper()
	file := ref
	if ref == "" || ref[0] == '#' && ref != "#/$defs/None" {
		file = "a.schema.json" + ref
	}
	files := map[string][]byte{"n.schema.json": []byte(`{"$ref":"` + file + `"}`)}
	for _, name := range s.Names() {
		files[name] = s.Raw(name)
	}
	joined, err := document.New(files)
	require.NoError(t, err)
	return joined.Root("n.schema.json")
}

func TestNodesOfTheWrongKindAreEmpty(t *testing.T) {
	t.Parallel()
	s, err := document.New(map[string][]byte{"a.schema.json": []byte(`[1,"x",{}]`)})
	require.NoError(t, err)
	n := s.Root("a.schema.json")
	require.Empty(t, n.Text())
	require.Equal(t, []string{"x"}, n.Texts())
	require.Empty(t, n.Keys())
	require.False(t, n.At("a").At("b").Has("c"))
	require.Nil(t, s.Root("none").Value)
	_, err = document.Node{Value: map[string]any{"$ref": "#"}}.Resolve()
	require.Error(t, err)
}

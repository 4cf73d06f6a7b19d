package tree_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/tools/generate/tree"
)

func TestWriteMatchesTheTree(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	want := tree.Tree{"gen/a.go": []byte("a"), "gen/deep/b.go": []byte("b"), "one.yaml": []byte("1")}
	owned := []string{"gen", "not-there"}

	sentences, err := want.Differences(root, owned)
	require.NoError(t, err)
	require.Equal(t, []string{
		"gen/a.go: is missing: run make generate",
		"gen/deep/b.go: is missing: run make generate",
		"one.yaml: is missing: run make generate",
	}, sentences)

	touched, err := want.Write(root, owned)
	require.NoError(t, err)
	require.Equal(t, []string{"gen/a.go", "gen/deep/b.go", "one.yaml"}, touched)
	touched, err = want.Write(root, owned)
	require.NoError(t, err)
	require.Empty(t, touched, "files that match are not written")

	for path, text := range map[string]string{
		"gen/a.go": "changed", "gen/deep/left.go": "over", "mine.yaml": "not owned",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(root, path), []byte(text), 0o600))
	}
	sentences, err = want.Differences(root, owned)
	require.NoError(t, err)
	require.Equal(t, []string{
		"gen/a.go: is stale: run make generate", "gen/deep/left.go: has no source any more: run make generate",
	}, sentences)
	touched, err = want.Write(root, owned)
	require.NoError(t, err)
	require.Equal(t, []string{"gen/a.go", "gen/deep/left.go"}, touched)
	require.NoFileExists(t, filepath.Join(root, "gen/deep/left.go"))
	require.FileExists(t, filepath.Join(root, "mine.yaml"))
	sentences, err = want.Differences(root, owned)
	require.NoError(t, err)
	require.Empty(t, sentences)
}

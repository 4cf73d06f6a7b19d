package architecture_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/architecture"
)

func TestNoFileNamesPathOutsideRepository(t *testing.T) {
	t.Parallel()
	root, err := architecture.Root()
	require.NoError(t, err)
	files, err := architecture.Files(root)
	require.NoError(t, err)
	require.Subset(t, files, []string{"go.work", "Makefile", ".ci/run", "schemas/errors.json", "libs/event/doc.go"})
	for _, file := range files {
		content := contentOf(t, root, file)
		if bytes.IndexByte(content[:min(len(content), 8000)], 0) >= 0 {
			continue // not text
		}
		require.Empty(t, architecture.Paths(file, content))
	}
}

func TestPathsOutsideRepositoryAreFound(t *testing.T) {
	t.Parallel()
	// Put together here, so that this file is not found itself.
	for _, line := range []string{
		"see /wo" + "rk/notes.md", "/wo" + "rk/main", `path: "/ro` + `ot/go"`,
		"../sha" + "red/spec", "../../sha" + "red",
	} {
		require.Len(t, architecture.Paths("some/file", []byte("first\n"+line+"\n")), 1, line)
	}
	for _, line := range []string{
		"libs/wo" + "rk/x", "https://example.org/wo" + "rk/x", "go.work", "../../libs",
		"-mod=work", "/workspace/x",
	} {
		require.Empty(t, architecture.Paths("some/file", []byte(line)), line)
	}
}

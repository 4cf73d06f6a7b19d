package architecture_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/architecture"
	"lockstep.internal/tools/testkit/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func read(t *testing.T) (string, architecture.Tree) {
	t.Helper()
	root, err := architecture.Root()
	require.NoError(t, err)
	tree, err := architecture.Read(root)
	require.NoError(t, err)
	return root, tree
}

func contentOf(t *testing.T, root, file string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(file)))
	require.NoError(t, err)
	return content
}

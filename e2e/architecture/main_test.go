package architecture_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"lockstep.internal/e2e/architecture"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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

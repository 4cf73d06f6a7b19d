package architecture_test

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"path"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/architecture"
)

// TestLandedMigrationsAreUnchanged compares each migration with its checksum in SHA256SUMS beside it. A database that
// has applied a file refuses a program with another content of it.
func TestLandedMigrationsAreUnchanged(t *testing.T) {
	t.Parallel()
	root, err := architecture.Root()
	require.NoError(t, err)
	files, err := architecture.Files(root)
	require.NoError(t, err)
	migrations := map[string][]string{}
	for _, file := range files {
		if dir := path.Dir(file); path.Base(dir) == "migrations" && path.Ext(file) == ".sql" {
			migrations[dir] = append(migrations[dir], file)
		}
	}
	require.GreaterOrEqual(t, len(migrations), 5)
	for dir, files := range migrations {
		landed := map[string]string{}
		lines := bufio.NewScanner(bytes.NewReader(contentOf(t, root, path.Join(dir, "SHA256SUMS"))))
		for lines.Scan() {
			sum, name, ok := strings.Cut(lines.Text(), "  ")
			require.True(t, ok, "%s/SHA256SUMS: %q", dir, lines.Text())
			landed[path.Join(dir, name)] = sum
		}
		for _, file := range files {
			sum := sha256.Sum256(contentOf(t, root, file))
			require.Contains(t, landed, file, "add the new file: cd %s && sha256sum %s >>SHA256SUMS", dir, path.Base(file))
			require.Equal(t, landed[file], hex.EncodeToString(sum[:]),
				"%s was edited: a migration never changes once it has landed; write a new file", file)
			delete(landed, file)
		}
		require.Empty(t, landed, "a migration was removed")
	}
}

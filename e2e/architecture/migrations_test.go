package architecture_test

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/architecture"
)

func tree(t *testing.T) (root string, files []string) {
	t.Helper()
	root, err := architecture.Root()
	require.NoError(t, err)
	files, err = architecture.Files(root)
	require.NoError(t, err)
	return root, files
}

// migrationsOf returns the files of each folder with migrations.
func migrationsOf(t *testing.T, files []string) map[string][]string {
	t.Helper()
	migrations := map[string][]string{}
	for _, file := range files {
		if dir := path.Dir(file); path.Base(dir) == "migrations" && path.Ext(file) == ".sql" {
			migrations[dir] = append(migrations[dir], file)
		}
	}
	require.GreaterOrEqual(t, len(migrations), 5)
	return migrations
}

// TestLandedMigrationsAreUnchanged compares each migration with its checksum in SHA256SUMS beside it. A database that
// has applied a file refuses a program with another content of it.
func TestLandedMigrationsAreUnchanged(t *testing.T) {
	t.Parallel()
	root, files := tree(t)
	for dir, files := range migrationsOf(t, files) {
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

// TestEachSchemaBeforeTheNewestHasAFrozenDump finds migrations that no test applies to the schema before them.
// Migrations before the first dump were released together.
func TestEachSchemaBeforeTheNewestHasAFrozenDump(t *testing.T) {
	t.Parallel()
	root, files := tree(t)
	dumped := map[string][]int{} // versions by series
	for _, file := range files {
		if path.Base(path.Dir(file)) != "released" || path.Ext(file) != ".sql" {
			continue
		}
		for _, found := range dumpedVersion.FindAllSubmatch(contentOf(t, root, file), -1) {
			version, err := strconv.Atoi(string(found[2]))
			require.NoError(t, err)
			dumped[string(found[1])] = append(dumped[string(found[1])], version)
		}
	}
	for dir, files := range migrationsOf(t, files) {
		series := path.Base(strings.TrimSuffix(path.Dir(dir), "/postgres"))
		if len(files) == 1 {
			continue // there is no schema before it
		}
		require.NotEmpty(t, dumped[series], "%s: no dump in testdata/released has %s_migrations", dir, series)
		for version := slices.Min(dumped[series]); version < len(files); version++ {
			require.Contains(t, dumped[series], version,
				"%s: dump the schema with migration %03d and rows in each table to testdata/released", dir, version)
		}
	}
}

// dumpedVersion is the version of a series in a dump.
var dumpedVersion = regexp.MustCompile(`(?m)^INSERT INTO public\.(\w+)_migrations \(version\) VALUES \((\d+)\);$`)

package pgtest

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
)

// Upgrades upgrades dumps of databases with each schema that was ever released, in testdata/released. The dumps are
// frozen: a new schema gets a new file. An upgraded database must have the schema of a new one, and use must work.
//
// migrated returns a new database on which a script and then the migrations have run.
func Upgrades(
	t *testing.T, migrated func(t *testing.T, script string) *pgxpool.Pool,
	use func(t *testing.T, pool *pgxpool.Pool, dump string),
) {
	t.Helper()
	schema := func(t *testing.T, pool *pgxpool.Pool) []string {
		t.Helper()
		lines, err := Schema(t.Context(), pool)
		require.NoError(t, err)
		return lines
	}
	want := schema(t, migrated(t, ""))
	const folder = "testdata/released"
	files, err := fs.Glob(os.DirFS(folder), "*.sql")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			dump, err := os.ReadFile(filepath.Join(folder, file))
			require.NoError(t, err)
			pool := migrated(t, string(dump))
			require.Equal(t, want, schema(t, pool))
			use(t, pool, string(dump))
		})
	}
}

package pgtest_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"lockstep.internal/tools/testkit/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestDatabasesAreSeparateAndDropped(t *testing.T) {
	t.Parallel()
	var first string
	t.Run("first", func(t *testing.T) {
		first = pgtest.Database(t)
		conn, err := pgx.Connect(t.Context(), first)
		require.NoError(t, err)
		_, err = conn.Exec(t.Context(), "CREATE TABLE here ()")
		require.NoError(t, err)
		require.NoError(t, conn.Close(context.Background()))
	})
	t.Run("second", func(t *testing.T) {
		second := pgtest.Database(t)
		require.NotEqual(t, first, second)
		conn, err := pgx.Connect(t.Context(), second)
		require.NoError(t, err)
		var found bool
		require.NoError(t, conn.QueryRow(t.Context(), "SELECT to_regclass('here') IS NOT NULL").Scan(&found))
		require.False(t, found)
		require.NoError(t, conn.Close(context.Background()))
		_, err = pgx.Connect(t.Context(), first)
		require.Error(t, err, "dropped with its test")
	})
}

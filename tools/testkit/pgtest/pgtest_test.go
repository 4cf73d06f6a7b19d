package pgtest_test

import (
	"context"
	"errors"
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

func TestPreparedDatabaseIsEmptyAgainForTheNextTest(t *testing.T) {
	t.Parallel()
	prepare := func(url string) error {
		conn, err := pgx.Connect(t.Context(), url)
		if err != nil {
			return err
		}
		_, err = conn.Exec(t.Context(), `
			create table x_migrations (version int); insert into x_migrations values (1);
			create sequence numbers; create table parents (id int primary key);
			create table children (id serial primary key, parent int references parents)`)
		return errors.Join(err, conn.Close(context.Background()))
	}
	var first string
	for range 2 {
		t.Run("use", func(t *testing.T) {
			url := pgtest.Prepared(t, prepare)
			if first == "" {
				first = url
			}
			require.Equal(t, first, url, "the same database")
			other, err := pgx.Connect(t.Context(), url)
			require.NoError(t, err)
			var version, number, child int
			require.NoError(t, other.QueryRow(t.Context(), `select version from x_migrations`).Scan(&version))
			require.NoError(t, other.QueryRow(t.Context(), `select nextval('numbers')`).Scan(&number))
			require.NoError(t, other.QueryRow(t.Context(), `insert into children default values returning id`).Scan(&child))
			require.Equal(t, []int{1, 1, 1}, []int{version, number, child})
			require.NoError(t, other.Close(t.Context()))

			left, err := pgx.Connect(t.Context(), url)
			require.NoError(t, err)
			_, err = left.Exec(t.Context(), `begin; lock table parents`)
			require.NoError(t, err, "a session that is left open does not block the reset")
		})
	}
}

package postgres_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/idrange"
	"lockstep.internal/libs/postgres"
	"lockstep.internal/tools/testkit/pgtest"
)

func TestIDsAreInTheRangeOfTheCell(t *testing.T) {
	t.Parallel()
	pool := connect(t, postgres.Config{URL: pgtest.Database(t)})
	_, err := pool.Exec(t.Context(), `CREATE SEQUENCE ids`)
	require.NoError(t, err)
	next := func() (id int64) {
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT nextval('ids')`).Scan(&id))
		return id
	}
	require.NoError(t, postgres.ReserveIDs(t.Context(), pool, 3))
	require.Equal(t, 3*idrange.Size+1, next())
	require.NoError(t, postgres.ReserveIDs(t.Context(), pool, 3))
	require.Equal(t, 3*idrange.Size+2, next())
	require.ErrorContains(t, postgres.ReserveIDs(t.Context(), pool, 4), "keep the old number")
	require.Equal(t, 3*idrange.Size+3, next())
}

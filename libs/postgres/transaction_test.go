package postgres_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/postgres"
	"lockstep.internal/tools/testkit/pgtest"
)

var errRollBack = errors.New("roll back")

// numbers returns a pool on a database with an empty table of numbers below 1000.
func numbers(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), pgtest.Database(t))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	_, err = pool.Exec(t.Context(), `create table numbers (n int primary key check (n < 1000))`)
	require.NoError(t, err)
	return pool
}

func insert(ctx context.Context, tx pgx.Tx, n int) error {
	_, err := tx.Exec(ctx, `insert into numbers (n) values ($1)`, n)
	return err
}

func content(t *testing.T, pool *pgxpool.Pool) []int {
	t.Helper()
	rows, err := pool.Query(t.Context(), `select n from numbers order by n`)
	require.NoError(t, err)
	found, err := pgx.CollectRows(rows, pgx.RowTo[int])
	require.NoError(t, err)
	return found
}

func TestInTxCommitsWhenTheFunctionSucceeds(t *testing.T) {
	t.Parallel()
	pool := numbers(t)
	require.NoError(t, postgres.InTx(t.Context(), pool, func(tx pgx.Tx) error { return insert(t.Context(), tx, 1) }))
	require.Equal(t, []int{1}, content(t, pool))
}

func TestInTxRollsBackWhenTheFunctionFails(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fn   func(ctx context.Context, tx pgx.Tx) error
		want string
	}{
		"after a statement": {
			fn: func(ctx context.Context, tx pgx.Tx) error {
				return errors.Join(insert(ctx, tx, 1), errRollBack)
			}, want: errRollBack.Error(),
		},
		"in a statement": {
			fn:   func(ctx context.Context, tx pgx.Tx) error { return insert(ctx, tx, 1000) },
			want: "numbers_n_check",
		},
		"in a statement whose error is ignored": {
			fn: func(ctx context.Context, tx pgx.Tx) error {
				_ = insert(ctx, tx, 1000)
				return nil
			}, want: pgx.ErrTxCommitRollback.Error(),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := numbers(t)
			err := postgres.InTx(t.Context(), pool, func(tx pgx.Tx) error { return test.fn(t.Context(), tx) })
			require.ErrorContains(t, err, test.want)
			require.Empty(t, content(t, pool))
		})
	}
}

func TestInTxRollsBackWhenTheFunctionPanics(t *testing.T) {
	t.Parallel()
	pool := numbers(t)
	require.Panics(t, func() {
		_ = postgres.InTx(t.Context(), pool, func(tx pgx.Tx) error {
			require.NoError(t, insert(t.Context(), tx, 1))
			panic("broken")
		})
	})
	require.Empty(t, content(t, pool))
}

func TestInTxOnATransactionIsASavepoint(t *testing.T) {
	t.Parallel()
	pool := numbers(t)
	require.NoError(t, postgres.InTx(t.Context(), pool, func(tx pgx.Tx) error {
		if err := insert(t.Context(), tx, 1); err != nil {
			return err
		}
		err := postgres.InTx(t.Context(), tx, func(tx pgx.Tx) error {
			return errors.Join(insert(t.Context(), tx, 2), errRollBack)
		})
		require.ErrorIs(t, err, errRollBack)
		return nil
	}))
	require.Equal(t, []int{1}, content(t, pool))
}

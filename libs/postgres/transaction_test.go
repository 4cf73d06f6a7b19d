package postgres_test

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/postgres"
	"lockstep.internal/tools/testkit/pgtest"
)

// counted counts what is sent to the server.
type counted struct {
	net.Conn

	writes *atomic.Int64
}

func (c counted) Write(b []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(b)
}

// numbers is a table of numbers, on a pool of one connection that counts its writes.
func numbers(t *testing.T) (*pgxpool.Pool, *atomic.Int64) {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(pgtest.Database(t))
	require.NoError(t, err)
	var writes atomic.Int64
	dial := cfg.ConnConfig.DialFunc
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		return counted{Conn: conn, writes: &writes}, err
	}
	cfg.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	_, err = pool.Exec(t.Context(), `create table numbers (n int primary key check (n < 1000))`)
	require.NoError(t, err)
	return pool, &writes
}

func inserting(ns ...int) *pgx.Batch {
	var b pgx.Batch
	for _, n := range ns {
		b.Queue(`insert into numbers (n) values ($1)`, n)
	}
	return &b
}

func content(t *testing.T, pool *pgxpool.Pool) []int {
	t.Helper()
	rows, err := pool.Query(t.Context(), `select n from numbers order by n`)
	require.NoError(t, err)
	found, err := pgx.CollectRows(rows, pgx.RowTo[int])
	require.NoError(t, err)
	return found
}

func TestATransactionBeginsWithItsFirstStatementAndCommitsWithItsLast(t *testing.T) {
	t.Parallel()
	pool, writes := numbers(t)
	n := 0
	transaction := func(read int) {
		require.NoError(t, postgres.InTx(t.Context(), pool, func(tx pgx.Tx) error {
			for range read {
				var count int
				if err := tx.QueryRow(t.Context(), `select count(*) from numbers where n > $1`, 10).Scan(&count); err != nil {
					return err
				}
			}
			n++
			return postgres.Later(t.Context(), tx, inserting(n), "insert %d", n)
		}))
	}
	for read, want := range []int64{1, 2, 3} {
		transaction(read) // statements are prepared
		before := writes.Load()
		transaction(read)
		require.Equal(t, want, writes.Load()-before, "%d reads", read)
	}
	require.Len(t, content(t, pool), 6)

	before := writes.Load()
	require.NoError(t, postgres.InTx(t.Context(), pool, func(pgx.Tx) error { return nil }))
	require.Equal(t, before, writes.Load(), "nothing is done without a word")
}

func TestWhatIsWrittenLaterIsSeenByTheNextStatement(t *testing.T) {
	t.Parallel()
	for name, next := range map[string]func(ctx context.Context, tx pgx.Tx) (int, error){
		"query row": func(ctx context.Context, tx pgx.Tx) (n int, err error) {
			return n, tx.QueryRow(ctx, `select count(*) from numbers where n > $1`, 0).Scan(&n)
		},
		"query": func(ctx context.Context, tx pgx.Tx) (int, error) {
			rows, err := tx.Query(ctx, `select n from numbers where n > $1`, 0)
			if err != nil {
				return 0, err
			}
			found, err := pgx.CollectRows(rows, pgx.RowTo[int])
			return len(found), err
		},
		"exec": func(ctx context.Context, tx pgx.Tx) (int, error) {
			tag, err := tx.Exec(ctx, `update numbers set n = n + $1`, 100)
			return int(tag.RowsAffected()), err
		},
		"exec of several": func(ctx context.Context, tx pgx.Tx) (int, error) {
			tag, err := tx.Exec(ctx, `select 1; update numbers set n = n + 100`)
			return int(tag.RowsAffected()), err
		},
		"batch": func(ctx context.Context, tx pgx.Tx) (n int, err error) {
			var b pgx.Batch
			b.Queue(`select count(*) from numbers`).QueryRow(func(row pgx.Row) error { return row.Scan(&n) })
			return n, tx.SendBatch(ctx, &b).Close()
		},
		"copy": func(ctx context.Context, tx pgx.Tx) (int, error) {
			if _, err := tx.CopyFrom(ctx, pgx.Identifier{"numbers"}, []string{"n"}, pgx.CopyFromRows([][]any{{1}})); err == nil {
				return 0, errors.New("a number was there twice")
			}
			return 0, errRollBack
		},
		"prepare": func(ctx context.Context, tx pgx.Tx) (n int, err error) {
			if _, err := tx.Prepare(ctx, "counting", `select count(*) from numbers`); err != nil {
				return 0, err
			}
			return n, tx.QueryRow(ctx, "counting").Scan(&n)
		},
		"savepoint": func(ctx context.Context, tx pgx.Tx) (n int, err error) {
			err = postgres.InTx(ctx, tx, func(tx pgx.Tx) error {
				if err := postgres.Later(ctx, tx, inserting(3), "insert"); err != nil {
					return err
				}
				if err := tx.QueryRow(ctx, `select count(*) from numbers`).Scan(&n); err != nil {
					return err
				}
				return errRollBack
			})
			if !errors.Is(err, errRollBack) {
				return 0, err
			}
			return n - 1, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, _ := numbers(t)
			var got int
			err := postgres.InTx(t.Context(), pool, func(tx pgx.Tx) error {
				if err := postgres.Later(t.Context(), tx, inserting(1, 2), "insert"); err != nil {
					return err
				}
				var err error
				got, err = next(t.Context(), tx)
				return err
			})
			if errors.Is(err, errRollBack) {
				require.Empty(t, content(t, pool))
				return
			}
			require.NoError(t, err)
			require.Equal(t, 2, got)
			require.Len(t, content(t, pool), 2)
		})
	}
}

var errRollBack = errors.New("roll back")

func TestWhatFailsRollsBack(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fn   func(ctx context.Context, tx pgx.Tx) error
		says string
	}{
		"the first statement": {
			fn: func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `insert into numbers (n) values ($1)`, 1000)
				return err
			}, says: "numbers_n_check",
		},
		"a row of the first statement": {
			fn: func(ctx context.Context, tx pgx.Tx) error {
				return tx.QueryRow(ctx, `insert into numbers (n) values ($1) returning n`, 1000).Scan(nil)
			}, says: "numbers_n_check",
		},
		"no row": {
			fn: func(ctx context.Context, tx pgx.Tx) error {
				return tx.QueryRow(ctx, `select n from numbers where n = $1`, 1).Scan(nil)
			}, says: pgx.ErrNoRows.Error(),
		},
		"later, with the commit": {
			fn: func(ctx context.Context, tx pgx.Tx) error {
				return postgres.Later(ctx, tx, inserting(1, 1000), "note %d numbers", 2)
			}, says: "commit transaction: note 2 numbers: ",
		},
		"later, with the next statement": {
			fn: func(ctx context.Context, tx pgx.Tx) error {
				if err := postgres.Later(ctx, tx, inserting(1, 1000), "note %d numbers", 2); err != nil {
					return err
				}
				_, err := tx.Exec(ctx, `delete from numbers where n > $1`, 3)
				return err
			}, says: "note 2 numbers: ",
		},
		"an error that was swallowed": {
			fn: func(ctx context.Context, tx pgx.Tx) error {
				if err := tx.SendBatch(ctx, inserting(1, 1000)).Close(); err == nil {
					return errors.New("1000 was taken")
				}
				return nil
			}, says: pgx.ErrTxCommitRollback.Error(),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, _ := numbers(t)
			err := postgres.InTx(t.Context(), pool, func(tx pgx.Tx) error {
				postgres.AfterCommit(tx, func() { t.Error("it was not committed") })
				return test.fn(t.Context(), tx)
			})
			require.ErrorContains(t, err, test.says)
			require.Empty(t, content(t, pool), "and the connection can be used")
		})
	}
}

func TestACallbackThatFailsWithTheCommitUndoesNothing(t *testing.T) {
	t.Parallel()
	pool, _ := numbers(t)
	err := postgres.InTx(t.Context(), pool, func(tx pgx.Tx) error {
		var b pgx.Batch
		b.Queue(`insert into numbers (n) values ($1)`, 1).Exec(func(pgconn.CommandTag) error { return errRollBack })
		return postgres.Later(t.Context(), tx, &b, "insert")
	})
	require.ErrorIs(t, err, errRollBack)
	require.Equal(t, []int{1}, content(t, pool))
}

func TestHintsComeAfterTheCommit(t *testing.T) {
	t.Parallel()
	pool, writes := numbers(t)
	var sent int64
	require.NoError(t, postgres.InTx(t.Context(), pool, func(tx pgx.Tx) error {
		postgres.AfterCommit(tx, func() { sent = writes.Load() })
		return postgres.Later(t.Context(), tx, inserting(1), "insert")
	}))
	require.Equal(t, writes.Load(), sent, "nothing is sent after it")
	require.Equal(t, []int{1}, content(t, pool))
}

func TestATransactionThatIsOverIsClosed(t *testing.T) {
	t.Parallel()
	pool, _ := numbers(t)
	var kept pgx.Tx
	require.NoError(t, postgres.InTx(t.Context(), pool, func(tx pgx.Tx) error {
		kept = tx
		_, err := tx.Exec(t.Context(), `select $1::int`, 1)
		return err
	}))
	_, err := kept.Exec(t.Context(), `select $1::int`, 1)
	require.ErrorIs(t, err, pgx.ErrTxClosed)
	rows, err := kept.Query(t.Context(), `select $1::int`, 1)
	require.ErrorIs(t, err, pgx.ErrTxClosed)
	rows.Close()
	require.ErrorIs(t, kept.SendBatch(t.Context(), inserting(1)).Close(), pgx.ErrTxClosed)
	_, err = kept.Begin(t.Context())
	require.ErrorIs(t, err, pgx.ErrTxClosed)
	require.ErrorIs(t, kept.Commit(t.Context()), pgx.ErrTxClosed)
	require.ErrorIs(t, kept.Rollback(t.Context()), pgx.ErrTxClosed)
}

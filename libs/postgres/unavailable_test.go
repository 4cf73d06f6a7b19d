package postgres_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/postgres"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/tools/testkit/pgtest"
)

func TestErrorsThatMayPassAreUnavailable(t *testing.T) {
	t.Parallel()
	const unreachable = "the database is unreachable: try again; the request may have been executed"
	const concurrent = "a concurrent request changed the same data: try again"
	for code, want := range map[string]string{
		"40001": concurrent, "40P01": concurrent,
		"08006": unreachable, "57P01": unreachable, "57P03": unreachable, "53300": unreachable,
		"40002": "", "40003": "", "22021": "", "23505": "", "42501": "", "57014": "", "": "",
	} {
		err := fmt.Errorf("handler: %w", &pgconn.PgError{Code: code})
		require.Equal(t, want != "", postgres.IsUnavailable(err), code)
		mapped := postgres.Unavailable(t.Context(), err)
		require.Equal(t, want != "", fault.Is(mapped, errcode.Unavailable), code)
		require.ErrorIs(t, mapped, err)
		require.Contains(t, mapped.Error(), want)
	}
}

// TestVictimOfADeadlockMayTryAgain locks two rows in opposite order.
func TestVictimOfADeadlockMayTryAgain(t *testing.T) {
	t.Parallel()
	pool := connect(t, postgres.Config{URL: pgtest.Database(t)})
	_, err := pool.Exec(t.Context(), "create table rows (id int primary key); insert into rows values (1), (2)")
	require.NoError(t, err)
	lock := func(tx pgx.Tx, id int) error {
		_, err := tx.Exec(t.Context(), "select from rows where id = $1 for update", id)
		return err
	}
	begin := func(id int) pgx.Tx {
		tx, err := pool.Begin(t.Context())
		require.NoError(t, err)
		require.NoError(t, lock(tx, id))
		return tx
	}
	first, second := begin(1), begin(2)
	ended := make(chan error, 2)
	for tx, id := range map[pgx.Tx]int{first: 2, second: 1} {
		go func() {
			err := lock(tx, id)
			_ = tx.Rollback(t.Context())
			ended <- err
		}()
	}
	victim := errors.Join(<-ended, <-ended)
	require.True(t, fault.Is(postgres.Unavailable(t.Context(), victim), errcode.Unavailable), "%v", victim)
}

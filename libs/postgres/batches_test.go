package postgres_test

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/postgres"
)

func inserts(n ...int) *pgx.Batch {
	var b pgx.Batch
	for _, n := range n {
		b.Queue(`INSERT INTO numbers (n) VALUES ($1)`, n)
	}
	return &b
}

func TestInBatchesCommitsAllOrNothing(t *testing.T) {
	t.Parallel()
	failed := errors.New("failed")
	for name, test := range map[string]struct {
		first *pgx.Batch
		then  func() (postgres.Last, error)
		want  string
	}{
		"commit": {
			first: inserts(1), then: func() (postgres.Last, error) { return postgres.Last{Batch: inserts(2)}, nil },
		},
		"commit after a check": {first: inserts(1), then: func() (postgres.Last, error) {
			return postgres.Last{Batch: inserts(2), Check: func() error { return nil }}, nil
		}},
		"failed check": {first: inserts(1), then: func() (postgres.Last, error) {
			return postgres.Last{Batch: inserts(2), Check: func() error { return failed }}, nil
		}, want: "failed"},
		"failed decision": {
			first: inserts(1), then: func() (postgres.Last, error) { return postgres.Last{}, failed }, want: "failed",
		},
		"first statement": {first: inserts(1, 1000), want: "begin transaction"},
		"last statement": {
			first: inserts(1), then: func() (postgres.Last, error) { return postgres.Last{Batch: inserts(2, 1000)}, nil },
			want: "commit transaction",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := numbers(t)
			err := postgres.InBatches(t.Context(), pool, postgres.Batches{First: test.first, Then: test.then})
			if test.want == "" {
				require.NoError(t, err)
				require.Equal(t, []int{1, 2}, content(t, pool))
			} else {
				require.ErrorContains(t, err, test.want)
				require.Empty(t, content(t, pool))
			}
			require.EqualValues(t, 1, pool.Stat().TotalConns(), "the connection is used again")
		})
	}
}

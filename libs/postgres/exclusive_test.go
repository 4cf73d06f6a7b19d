package postgres_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/postgres"
	"lockstep.internal/tools/testkit/pgtest"
)

// TestExclusiveWorkIsDoneByOneReplica starts two replicas: the second one works after the first one has ended.
func TestExclusiveWorkIsDoneByOneReplica(t *testing.T) {
	t.Parallel()
	pool := connect(t, postgres.Config{URL: pgtest.Database(t)})
	start := func() (turns, ready chan struct{}, end func() error) {
		turns, ready = make(chan struct{}), make(chan struct{}, 10)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- postgres.ExclusiveWork{
				Lock: "work", Interval: time.Hour, Channel: "work",
				Ready: func() {
					select {
					case ready <- struct{}{}:
					default:
					}
				},
				Do: func(ctx context.Context, _ *pgx.Conn) error {
					select {
					case turns <- struct{}{}:
						return nil
					case <-ctx.Done():
						return ctx.Err()
					}
				},
			}.Run(ctx, pool)
		}()
		return turns, ready, func() error { cancel(); return <-ended }
	}
	first, _, end := start()
	<-first
	second, ready, endSecond := start()
	<-ready
	_, err := pool.Exec(t.Context(), `NOTIFY work`)
	require.NoError(t, err)
	select {
	case <-first:
	case <-second:
		require.FailNow(t, "both replicas work")
	}
	require.NoError(t, end())
	<-second
	require.NoError(t, endSecond())
}

func TestExclusiveWorkEndsWithItsError(t *testing.T) {
	t.Parallel()
	pool := connect(t, postgres.Config{URL: pgtest.Database(t)})
	failed := errors.New("failed")
	work := postgres.ExclusiveWork{
		Lock: "work", Interval: time.Hour, Do: func(context.Context, *pgx.Conn) error { return failed },
	}
	require.ErrorIs(t, work.Run(t.Context(), pool), failed)
	require.ErrorIs(t, work.Run(t.Context(), pool), failed, "the lock was released")
}

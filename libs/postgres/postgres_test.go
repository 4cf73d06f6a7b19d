package postgres_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"lockstep.internal/libs/postgres"
	"lockstep.internal/libs/retry"
	"lockstep.internal/tools/testkit/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

func connect(t *testing.T, cfg postgres.Config) *pgxpool.Pool {
	t.Helper()
	pool, err := postgres.Connect(t.Context(), cfg, discard())
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

func scan[T any](t *testing.T, pool *pgxpool.Pool, sql string, args ...any) T {
	t.Helper()
	rows, err := pool.Query(t.Context(), sql, args...)
	require.NoError(t, err)
	value, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
	require.NoError(t, err)
	return value
}

// signalHandler closes seen with the first record whose message is the one awaited.
type signalHandler struct {
	slog.Handler

	message string
	seen    chan struct{}
	once    *sync.Once
}

func newSignal(message string) signalHandler {
	return signalHandler{Handler: slog.DiscardHandler, message: message, seen: make(chan struct{}), once: new(sync.Once)}
}

func (h signalHandler) Enabled(context.Context, slog.Level) bool { return true }

func (h signalHandler) Handle(_ context.Context, r slog.Record) error {
	if r.Message == h.message {
		h.once.Do(func() { close(h.seen) })
	}
	return nil
}

func TestConnectWaitsForTheDatabase(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t)
	server.Kill()
	signal := newSignal("waiting for the database")
	var pool *pgxpool.Pool
	var group errgroup.Group
	group.Go(func() error {
		var err error
		pool, err = postgres.Connect(
			t.Context(),
			postgres.Config{URL: server.URL(), Retry: retry.Policy{Min: time.Millisecond, Max: 10 * time.Millisecond}},
			slog.New(signal),
		)
		return err
	})
	<-signal.seen
	require.NoError(t, server.Restart(t.Context()))
	require.NoError(t, group.Wait())
	t.Cleanup(pool.Close)

	check := postgres.Check(pool)
	healthy := func() bool { return check(t.Context()) == nil }
	require.Eventually(t, healthy, time.Minute, time.Millisecond)
	server.Kill()
	require.ErrorContains(t, check(t.Context()), "database does not answer")
	require.NoError(t, server.Restart(t.Context()))
	require.NoError(t, postgres.WaitUntilReady(t.Context(), pool, discard()))
	require.Eventually(t, healthy, time.Minute, time.Millisecond, "a pool outlives its server")
}

func TestConnectEndsWithTheContext(t *testing.T) {
	t.Parallel()
	signal := newSignal("waiting for the database")
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	go func() {
		<-signal.seen
		cancel(enough)
	}()
	_, err := postgres.Connect(ctx, postgres.Config{URL: "postgres://127.0.0.1:1/none?sslmode=disable"}, slog.New(signal))
	require.ErrorIs(t, err, enough)
	require.ErrorContains(t, err, "connect", "the error contains the last failure")
}

func TestConnectFailsAtOnceForPermanentErrors(t *testing.T) {
	t.Parallel()
	_, err := postgres.Connect(t.Context(), postgres.Config{URL: "postgres://%%%"}, discard())
	require.ErrorContains(t, err, "read the database URL")
	_, err = postgres.Connect(t.Context(), postgres.Config{URL: "postgres://localhost/x", Schema: `x"; DROP`}, discard())
	require.ErrorContains(t, err, "schema")
}

func TestEverySettingReachesTheSession(t *testing.T) {
	t.Parallel()
	pool := connect(t, postgres.Config{
		URL: pgtest.Database(
			t,
		),
		Schema:                   "state",
		ApplicationName:          "lockstep-state",
		MaxConnections:           3,
		IdleInTransactionTimeout: 7 * time.Second,
	})
	require.Equal(t, "state", scan[string](t, pool, "SHOW search_path"))
	require.Equal(t, "lockstep-state", scan[string](t, pool, "SHOW application_name"))
	require.Equal(t, "7s", scan[string](t, pool, "SHOW idle_in_transaction_session_timeout"))
	require.Equal(t, "UTC", scan[string](t, pool, "SHOW timezone"))
	require.Equal(t, "15", scan[string](t, pool, "SHOW tcp_keepalives_idle"))
	require.Equal(t, int32(3), pool.Config().MaxConns)
	other := connect(t, postgres.Config{URL: pgtest.Database(t) + "&pool_max_conns=4"})
	require.Equal(t, int32(4), other.Config().MaxConns)
	require.Equal(t, "lockstep", scan[string](t, other, "SHOW application_name"))
}

func series(name string, files ...string) postgres.Migrations {
	fsys := fstest.MapFS{}
	for i, sql := range files {
		fsys["00"+string(rune('1'+i))+"_step.sql"] = &fstest.MapFile{Data: []byte(sql)}
	}
	return postgres.Migrations{Name: name, FS: fsys}
}

func TestMigrateRunsEachFileOnceAmongReplicas(t *testing.T) {
	t.Parallel()
	cfg := postgres.Config{URL: pgtest.Database(t), Schema: "state"}
	first := series("state", "CREATE TABLE steps (n int)", "INSERT INTO steps VALUES (1)")
	library := series("library", "INSERT INTO steps VALUES (100)")
	var group errgroup.Group
	for range 4 {
		pool := connect(t, cfg)
		group.Go(func() error { return postgres.Migrate(t.Context(), pool, discard(), first, library) })
	}
	require.NoError(t, group.Wait())
	pool := connect(t, cfg)
	require.Equal(t, int64(101), scan[int64](t, pool, "SELECT sum(n) FROM state.steps"))

	newer := series("state", "CREATE TABLE steps (n int)", "INSERT INTO steps VALUES (1)", "INSERT INTO steps VALUES (10)")
	require.NoError(t, postgres.Migrate(t.Context(), pool, discard(), newer))
	require.Equal(t, int64(111), scan[int64](t, pool, "SELECT sum(n) FROM steps"))
	require.NoError(t, postgres.Migrate(t.Context(), pool, discard(), first), "an older replica works on a newer schema")
	require.Equal(t, int32(3), scan[int32](t, pool, "SELECT version FROM state_migrations"))
}

func TestFailedMigrationIsRolledBack(t *testing.T) {
	t.Parallel()
	pool := connect(t, postgres.Config{URL: pgtest.Database(t)})
	err := postgres.Migrate(t.Context(), pool, discard(), series("state", "CREATE TABLE here (); SELECT 1/0"))
	require.ErrorContains(t, err, "division by zero")
	require.False(t, scan[bool](t, pool, "SELECT to_regclass('here') IS NOT NULL"))
	require.ErrorContains(
		t, postgres.Migrate(t.Context(), pool, discard(), postgres.Migrations{Name: "empty", FS: fstest.MapFS{}}),
		"load the files",
	)
	require.ErrorContains(t, postgres.Migrate(t.Context(), pool, discard(), series("a b")), "name")
}

func TestMigrationThatWasEditedAfterItWasAppliedIsRefused(t *testing.T) {
	t.Parallel()
	pool := connect(t, postgres.Config{URL: pgtest.Database(t), Schema: "state"})
	migrate := func(files ...string) error {
		return postgres.Migrate(t.Context(), pool, discard(), series("state", files...))
	}
	const first, second = "CREATE TABLE steps (n int)", "INSERT INTO steps VALUES (1) -- a comment ends the file"
	require.NoError(t, migrate(first, second))
	require.NoError(t, migrate(first, second))
	err := migrate(first+" -- edited", second, "INSERT INTO steps VALUES (100)")
	require.ErrorContains(t, err, "series state: 001_step.sql differs from 001_step.sql, which this database has applied")
	require.ErrorContains(t, migrate(first, "SELECT 1"), "002_step.sql differs")
	require.ErrorContains(t, migrate(first+" "), "001_step.sql differs", "also of an older program")
	require.NoError(t, migrate(first), "an older program knows fewer files")
	require.NoError(t, migrate(first, second, "INSERT INTO steps VALUES (10)"))
	require.Equal(t, int64(11), scan[int64](t, pool, "SELECT sum(n) FROM steps"))
}

func TestFilesAppliedWithoutChecksumsAreAdopted(t *testing.T) {
	t.Parallel()
	pool := connect(t, postgres.Config{URL: pgtest.Database(t)})
	_, err := pool.Exec(t.Context(), `
		CREATE TABLE state_migrations (version int4 NOT NULL); INSERT INTO state_migrations VALUES (1);
		CREATE TABLE steps (n int)`)
	require.NoError(t, err)
	require.NoError(t, postgres.Migrate(t.Context(), pool, discard(),
		series("state", "CREATE TABLE steps (n int)", "INSERT INTO steps VALUES (1)")))
	require.Equal(t, int64(1), scan[int64](t, pool, "SELECT sum(n) FROM steps"))
	require.Equal(t, int64(2), scan[int64](t, pool, "SELECT count(*) FROM applied_migrations WHERE series = 'state'"))
	err = postgres.Migrate(t.Context(), pool, discard(), series("state", "SELECT 1", "INSERT INTO steps VALUES (1)"))
	require.ErrorContains(t, err, "001_step.sql differs")
}

func TestLockHasOneHolderAndPassesOnWhenTheHolderDies(t *testing.T) {
	t.Parallel()
	pool := connect(t, postgres.Config{URL: pgtest.Database(t)})
	lock := postgres.Lock{Name: "leader", Interval: time.Millisecond}
	first, err := lock.Acquire(t.Context(), pool)
	require.NoError(t, err)
	require.NoError(t, postgres.InTx(t.Context(), first.Conn(), func(pgx.Tx) error { return nil }))

	other, err := postgres.Lock{Name: "another"}.Acquire(t.Context(), pool)
	require.NoError(t, err, "locks with other names are independent")
	require.NoError(t, other.Release(t.Context()))

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = lock.Acquire(ctx, pool)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	taken := make(chan *postgres.HeldLock, 1)
	var group errgroup.Group
	group.Go(func() error {
		held, err := lock.Acquire(t.Context(), pool)
		taken <- held
		return err
	})
	// The holder's session dies on the server, as when its machine fails: the holder gets no notification.
	var ended bool
	require.NoError(
		t, pool.QueryRow(t.Context(), "SELECT pg_terminate_backend($1)", first.Conn().PgConn().PID()).Scan(&ended),
	)
	require.True(t, ended)
	second := <-taken
	require.NoError(t, group.Wait())
	_, err = first.Conn().Exec(t.Context(), "SELECT 1")
	require.Error(t, err, "the superseded holder's connection is dead as well")
	_ = first.Release(t.Context())
	require.NoError(t, second.Release(t.Context()))
}

// The session of a lock that is slow to end: the server drops its temporary tables before it releases its locks.
func TestReleasedLockIsFree(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*testing.T, *postgres.HeldLock, *pgxpool.Pool){
		"after work":             func(*testing.T, *postgres.HeldLock, *pgxpool.Pool) {},
		"in a transaction":       beginTransaction,
		"in a failed one":        failTransaction,
		"after a canceled query": cancelQuery,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := connect(t, postgres.Config{URL: pgtest.Database(t)})
			lock := postgres.Lock{Name: "leader"}
			held, err := lock.Acquire(t.Context(), pool)
			require.NoError(t, err)
			exec(t, held, `DO $$ BEGIN FOR i IN 1..50 LOOP
				EXECUTE 'CREATE TEMP TABLE t' || i || ' (n int PRIMARY KEY)'; END LOOP; END $$`)
			end(t, held, pool)
			require.NoError(t, held.Release(t.Context()))
			next, err := lock.Try(t.Context(), pool)
			require.NoError(t, err)
			require.NotNil(t, next, "the lock is free")
			require.NoError(t, next.Release(t.Context()))
		})
	}
}

func exec(t *testing.T, held *postgres.HeldLock, sql string) {
	t.Helper()
	_, err := held.Conn().Exec(t.Context(), sql)
	require.NoError(t, err)
}

func beginTransaction(t *testing.T, held *postgres.HeldLock, _ *pgxpool.Pool) {
	t.Helper()
	exec(t, held, "BEGIN")
}

func failTransaction(t *testing.T, held *postgres.HeldLock, pool *pgxpool.Pool) {
	t.Helper()
	beginTransaction(t, held, pool)
	_, err := held.Conn().Exec(t.Context(), "SELECT 1/0")
	require.ErrorContains(t, err, "division by zero")
}

// cancelQuery cancels a query that runs on the server. A request to cancel that arrives earlier has no effect.
func cancelQuery(t *testing.T, held *postgres.HeldLock, pool *pgxpool.Pool) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended, pid := make(chan error, 1), held.Conn().PgConn().PID()
	go func() {
		_, err := held.Conn().Exec(ctx, "SELECT pg_sleep(600)")
		ended <- err
	}()
	require.Eventually(t, func() bool {
		return scan[int](t, pool, "SELECT count(*) FROM pg_stat_activity WHERE pid = $1 AND wait_event = 'PgSleep'", pid) == 1
	}, time.Minute, time.Millisecond)
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
}

func TestIsUnavailableSeparatesOutagesFromRefusals(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t)
	pool := connect(t, postgres.Config{URL: server.URL()})
	_, err := pool.Exec(t.Context(), "select 1 / 0")
	require.Error(t, err)
	require.False(t, postgres.IsUnavailable(err), "%v", err)
	require.False(t, postgres.IsUnavailable(errors.New("anything else")))
	require.False(t, postgres.IsUnavailable(nil))
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = pool.Exec(canceled, "select 1")
	require.False(t, postgres.IsUnavailable(err), "%v", err)

	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	running := make(chan error, 1)
	go func() {
		_, err := pool.Exec(context.Background(), "select pg_sleep(600)")
		running <- err
	}()
	require.Eventually(t, func() bool {
		return scan[int](t, pool, "select count(*) from pg_stat_activity where query = 'select pg_sleep(600)'") == 1
	}, time.Minute, time.Millisecond)
	server.Kill()
	err = <-running
	require.True(t, postgres.IsUnavailable(err), "in the middle: %v", err)
	err = tx.Commit(t.Context())
	require.True(t, postgres.IsUnavailable(err), "at the end: %v", err)
	_, err = pool.Exec(t.Context(), "select 1")
	require.True(t, postgres.IsUnavailable(err), "before it is back: %v", err)
}

package postgres_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/postgres"
	"lockstep.internal/services/runners/publish"
	"lockstep.internal/tools/testkit/pgtest"
)

// migrated connects to a database, runs a script and migrates it, twice.
func migrated(t *testing.T, script string) *pgxpool.Pool {
	t.Helper()
	cfg := libpostgres.Config{URL: pgtest.Database(t), Schema: "public"}
	pool, err := libpostgres.Connect(t.Context(), cfg, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	_, err = pool.Exec(t.Context(), script)
	require.NoError(t, err)
	series, err := postgres.Migrations()
	require.NoError(t, err)
	for range 2 {
		require.NoError(t, libpostgres.Migrate(t.Context(), pool, slog.New(slog.DiscardHandler), series...))
	}
	return pool
}

func TestReleasedSchemasAreUpgraded(t *testing.T) {
	t.Parallel()
	pgtest.Upgrades(t, migrated, useStores)
}

func useStores(t *testing.T, pool *pgxpool.Pool, dump string) {
	t.Helper()
	live, err := postgres.LiveJobs(t.Context(), pool)
	require.NoError(t, err)
	require.Len(t, live, 1)
	require.Equal(t, job.Pending, live[0].State)
	moves, err := postgres.Moves{Pool: pool}.List(t.Context())
	require.NoError(t, err)
	require.Len(t, moves, strings.Count(dump, "INSERT INTO public.moves "))
	store := postgres.Runners{Pool: pool, Encoder: publish.Encoder{Cell: "local"}, Now: time.Now}
	for range 2 { // runners that an earlier version stored are published once
		require.NoError(t, store.PublishNew(t.Context()))
		var published int
		const count = `SELECT count(*) FROM outbox WHERE subject LIKE '%.runner.%'`
		require.NoError(t, pool.QueryRow(t.Context(), count).Scan(&published))
		require.Equal(t, strings.Count(dump, "INSERT INTO public.runners "), published)
	}
}

package postgres_test

import (
	"io/fs"
	"log/slog"
	"os"
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

func migrateAll(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	series, err := postgres.Migrations()
	require.NoError(t, err)
	require.NoError(t, libpostgres.Migrate(t.Context(), pool, slog.New(slog.DiscardHandler), series...))
}

func connectPublic(t *testing.T) *pgxpool.Pool {
	t.Helper()
	cfg := libpostgres.Config{URL: pgtest.Database(t), Schema: "public"}
	pool, err := libpostgres.Connect(t.Context(), cfg, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// TestReleasedSchemasAreUpgraded upgrades dumps of databases with each schema that was ever released, and uses the
// stores. The dumps are frozen: a new schema gets a new file.
func TestReleasedSchemasAreUpgraded(t *testing.T) {
	t.Parallel()
	fresh := connectPublic(t)
	migrateAll(t, fresh)
	want, err := pgtest.Schema(t.Context(), fresh)
	require.NoError(t, err)
	files, err := fs.Glob(os.DirFS("testdata/released"), "*.sql")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			dump, err := os.ReadFile("testdata/released/" + file)
			require.NoError(t, err)
			pool := connectPublic(t)
			_, err = pool.Exec(t.Context(), string(dump))
			require.NoError(t, err)
			migrateAll(t, pool)
			got, err := pgtest.Schema(t.Context(), pool)
			require.NoError(t, err)
			require.Equal(t, want, got)
			migrateAll(t, pool)
			live, err := postgres.LiveJobs(t.Context(), pool)
			require.NoError(t, err)
			require.Len(t, live, 1)
			require.Equal(t, job.Pending, live[0].State)
			moves, err := postgres.Moves{Pool: pool}.List(t.Context())
			require.NoError(t, err)
			require.Len(t, moves, strings.Count(string(dump), "INSERT INTO public.moves "))
			store := postgres.Runners{Pool: pool, Encoder: publish.Encoder{Cell: "local"}, Now: time.Now}
			for range 2 { // runners that an earlier version stored are published once
				require.NoError(t, store.PublishNew(t.Context()))
				var published int
				const count = `SELECT count(*) FROM outbox WHERE subject LIKE '%.runner.%'`
				require.NoError(t, pool.QueryRow(t.Context(), count).Scan(&published))
				require.Equal(t, strings.Count(string(dump), "INSERT INTO public.runners "), published)
			}
		})
	}
}

package postgres_test

import (
	"log/slog"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/services/admission/chain"
	"lockstep.internal/services/admission/postgres"
	"lockstep.internal/services/admission/publish"
	"lockstep.internal/tools/testkit/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

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

func useStores(t *testing.T, pool *pgxpool.Pool, _ string) {
	t.Helper()
	metrics, err := postgres.NewMetrics(prometheus.NewRegistry())
	require.NoError(t, err)
	store := postgres.Jobs{Pool: pool, Encoder: publish.Encoder{Cell: "local"}, Metrics: metrics}
	open, controllers, err := store.LoadAll(t.Context(), []int64{9004, 9005})
	require.NoError(t, err)
	require.Len(t, open, 1)
	require.Len(t, controllers, 1)
	require.Equal(t, "zones", controllers[0].Name)
	decided, found, err := store.Get(t.Context(), 9005)
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, chain.Admitted, decided.State.Outcome)
	attempts, err := store.AttemptsOfJob(t.Context(), 9004)
	require.NoError(t, err)
	require.Len(t, attempts, 1)
	require.Equal(t, "the controller answers later", attempts[0].Result)
	require.Zero(t, attempts[0].Status)
}

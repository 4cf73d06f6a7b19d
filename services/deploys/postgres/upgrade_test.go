package postgres_test

import (
	"log/slog"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/services/deploys/history"
	"lockstep.internal/services/deploys/ingest"
	"lockstep.internal/services/deploys/ownership"
	"lockstep.internal/services/deploys/postgres"
	"lockstep.internal/services/deploys/sink"
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
	sinks, err := sink.Migrations()
	require.NoError(t, err)
	series = append(series, sinks)
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
	rollouts := &postgres.Rollouts{DB: pool}
	found, err := rollouts.List(t.Context(), postgres.RolloutFilter{}, postgres.RolloutPage{Size: 10})
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.Equal(t, "cluster-1/web/1/h", found[0].ID)
	facts, omitted, err := rollouts.Facts(t.Context(), &found[0], 10)
	require.NoError(t, err)
	require.Zero(t, omitted)
	require.Len(t, facts, 1)
	_, _, err = rollouts.Stats(t.Context(), postgres.RolloutFilter{}, 10)
	require.NoError(t, err)

	clusters := &postgres.Clusters{Pool: pool}
	before, err := clusters.List(t.Context(), "")
	require.NoError(t, err)
	store := &postgres.Store{}
	inTx(t, pool, func(tx pgx.Tx) error {
		_, loaded, err := store.NewBatch(tx).Begin(t.Context(), ingest.Query{
			Agents: true, ReporterIDs: []int64{7}, ClaimClusters: []string{"cluster-1"},
		})
		require.NoError(t, err)
		require.Len(t, loaded.Agents, 1)
		return store.Claim(t.Context(), tx, []ownership.Reporter{{AgentID: 8, ProjectID: 4, Since: 100}},
			[]ownership.Claim{{ClusterUID: "cluster-9", Since: 100, ProjectID: 4, AgentID: 8, Reason: "first"}})
	})
	after, err := clusters.List(t.Context(), "")
	require.NoError(t, err)
	require.Len(t, after, len(before)+1)
	save(t, pool, postgres.Rows{
		Facts: []postgres.Fact{fact("f2", "new", 1, "{}")}, Rollouts: []history.Rollout{newRollout("new", 1, 1000)},
	})
	_, err = store.Fact(t.Context(), pool, "f2")
	require.NoError(t, err)
}

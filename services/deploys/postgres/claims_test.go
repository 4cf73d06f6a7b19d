package postgres_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"lockstep.internal/services/deploys/agents"
	"lockstep.internal/services/deploys/ingest"
	"lockstep.internal/services/deploys/ownership"
	"lockstep.internal/services/deploys/postgres"
	"lockstep.internal/services/deploys/rollout"
)

func TestClaimsAreLoadedOldestFirst(t *testing.T) {
	t.Parallel()
	pool, store := setup(t), &postgres.Store{}
	first, second := ownership.Claim{ClusterUID: "c", Since: 900, ProjectID: 1, AgentID: 7},
		ownership.Claim{ClusterUID: "c", Since: 5, ProjectID: 2, AgentID: 8}
	inTx(t, pool, func(tx pgx.Tx) error {
		return store.Claim(t.Context(), tx, []ownership.Reporter{{AgentID: 7, ProjectID: 1, Since: 3}},
			[]ownership.Claim{first, {ClusterUID: "d", Since: 1, ProjectID: 1, AgentID: 7}})
	})
	inTx(t, pool, func(tx pgx.Tx) error { return store.Claim(t.Context(), tx, nil, []ownership.Claim{second}) })
	inTx(t, pool, func(tx pgx.Tx) error {
		number, loaded, err := store.NewBatch(tx).Begin(t.Context(), ingest.Query{
			ClaimClusters: []string{"c", "none"}, ReporterIDs: []int64{7, 8},
		})
		require.NoError(t, err)
		for i := range loaded.Claims {
			require.False(t, loaded.Claims[i].At.IsZero())
			loaded.Claims[i].At = time.Time{}
		}
		require.Equal(t, []ownership.Claim{first, second}, loaded.Claims)
		require.Equal(t, []ownership.Reporter{{AgentID: 7, ProjectID: 1, Since: 3}}, loaded.Reporters)
		require.EqualValues(t, 1, number)
		return nil
	})
}

func TestClustersAreListedWithAllClaims(t *testing.T) {
	t.Parallel()
	pool, store := setup(t), &postgres.Store{}
	inTx(t, pool, func(tx pgx.Tx) error {
		if err := store.Save(t.Context(), tx, postgres.Rows{
			Agents: []agents.Agent{
				{ID: 7, ClusterUID: "c"},
				{ID: 8, ClusterUID: "c"},
				{ID: 9, ClusterUID: "d"},
				{ID: 10, ClusterUID: "unclaimed"},
			},
			Workloads: []*ingest.Record[rollout.State]{
				{ID: uuid.New(), AgentID: 7, State: present("c")},
				{ID: uuid.New(), AgentID: 7, State: rollout.State{Key: rollout.Key{ClusterUID: "c"}}},
				{ID: uuid.New(), AgentID: 9, State: present("d")},
			},
		}); err != nil {
			return err
		}
		return store.Claim(t.Context(), tx,
			[]ownership.Reporter{
				{AgentID: 9, ProjectID: 3, Since: 1},
				{AgentID: 7, ProjectID: 1, Since: 3},
				{AgentID: 8, ProjectID: 2, Since: 5},
			}, []ownership.Claim{
				{ClusterUID: "d", Since: 1, ProjectID: 3, AgentID: 9},
				{ClusterUID: "c", Since: 3, ProjectID: 1, AgentID: 7},
				{ClusterUID: "c", Since: 9, ProjectID: 2, UserID: 5, Reason: "moved"},
			})
	})
	clusters := &postgres.Clusters{Pool: pool}
	all, err := clusters.List(t.Context(), "")
	require.NoError(t, err)
	require.Len(t, all, 2)
	require.Equal(t, []int64{8}, all[0].Agents, "only agents of the owning project")
	require.EqualValues(t, 1, all[0].Workloads)
	require.Zero(t, all[0].Running)
	require.Len(t, all[0].Claims, 2)
	require.EqualValues(t, 2, all[0].Claim().ProjectID)
	require.Equal(t, "moved", all[0].Claim().Reason)
	one, err := clusters.List(t.Context(), "d")
	require.NoError(t, err)
	require.Equal(t, all[1:], one)
	none, err := clusters.List(t.Context(), "unclaimed")
	require.NoError(t, err)
	require.Empty(t, none)
	reporters, err := clusters.Reporters(t.Context())
	require.NoError(t, err)
	require.Equal(t,
		[]ownership.Reporter{
			{AgentID: 7, ProjectID: 1, Since: 3},
			{AgentID: 8, ProjectID: 2, Since: 5},
			{AgentID: 9, ProjectID: 3, Since: 1},
		}, reporters)
	ended, err := clusters.Ended(t.Context(), "c", time.Now())
	require.NoError(t, err)
	require.Zero(t, ended)
}

package postgres_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"lockstep.internal/services/deploys/postgres"
	"lockstep.internal/services/deploys/roster"
)

func TestClaimsAreReadInTheOrderInWhichTheyWereMade(t *testing.T) {
	t.Parallel()
	pool, store := setup(t), &postgres.Store{}
	first, second := roster.Claim{ClusterUID: "c", Since: 900, ProjectID: 1, AgentID: 7}, roster.Claim{ClusterUID: "c", Since: 5, ProjectID: 2, AgentID: 8}
	in(t, pool, func(tx pgx.Tx) error {
		return store.Claim(t.Context(), tx, []roster.Reporter{{AgentID: 7, ProjectID: 1, Since: 3}}, []roster.Claim{first, {ClusterUID: "d", Since: 1, ProjectID: 1, AgentID: 7}})
	})
	in(t, pool, func(tx pgx.Tx) error { return store.Claim(t.Context(), tx, nil, []roster.Claim{second}) })
	in(t, pool, func(tx pgx.Tx) error {
		reading, err := store.Begin(t.Context(), tx, postgres.Ask{Claims: []string{"c", "none"}, Reporters: []int64{7, 8}})
		require.NoError(t, err)
		for i := range reading.Claims {
			require.False(t, reading.Claims[i].At.IsZero())
			reading.Claims[i].At = time.Time{}
		}
		require.Equal(t, []roster.Claim{first, second}, reading.Claims)
		require.Equal(t, []roster.Reporter{{AgentID: 7, ProjectID: 1, Since: 3}}, reading.Reporters)
		require.EqualValues(t, 1, reading.Batches)
		return nil
	})
}

func TestClustersAreListedWithWhoseTheyAreAndWere(t *testing.T) {
	t.Parallel()
	pool, store := setup(t), &postgres.Store{}
	in(t, pool, func(tx pgx.Tx) error {
		if err := store.Save(t.Context(), tx, postgres.Writing{
			Agents: []roster.Agent{{ID: 7, ClusterUID: "c"}, {ID: 8, ClusterUID: "c"}, {ID: 9, ClusterUID: "d"}, {ID: 10, ClusterUID: "nobodys"}},
			Workloads: []postgres.Record{
				{ID: uuid.New(), ClusterUID: "c", AgentID: 7, Present: true, State: "{}"},
				{ID: uuid.New(), ClusterUID: "c", AgentID: 7, State: "{}"},
				{ID: uuid.New(), ClusterUID: "d", AgentID: 9, Present: true, State: "{}"},
			},
		}); err != nil {
			return err
		}
		return store.Claim(t.Context(), tx, []roster.Reporter{{AgentID: 9, ProjectID: 3, Since: 1}, {AgentID: 7, ProjectID: 1, Since: 3}, {AgentID: 8, ProjectID: 2, Since: 5}}, []roster.Claim{
			{ClusterUID: "d", Since: 1, ProjectID: 3, AgentID: 9},
			{ClusterUID: "c", Since: 3, ProjectID: 1, AgentID: 7},
			{ClusterUID: "c", Since: 9, ProjectID: 2, UserID: 5, Reason: "moved"},
		})
	})
	clusters := &postgres.Clusters{Pool: pool}
	all, err := clusters.List(t.Context(), "")
	require.NoError(t, err)
	require.Len(t, all, 2)
	require.Equal(t, []int64{8}, all[0].Agents, "of its project alone")
	require.EqualValues(t, 1, all[0].Workloads)
	require.Zero(t, all[0].Running)
	require.Len(t, all[0].Claims, 2)
	require.EqualValues(t, 2, all[0].Claim().ProjectID)
	require.Equal(t, "moved", all[0].Claim().Reason)
	one, err := clusters.List(t.Context(), "d")
	require.NoError(t, err)
	require.Equal(t, all[1:], one)
	none, err := clusters.List(t.Context(), "nobodys")
	require.NoError(t, err)
	require.Empty(t, none)
	reporters, err := clusters.Reporters(t.Context())
	require.NoError(t, err)
	require.Equal(t, []roster.Reporter{{AgentID: 7, ProjectID: 1, Since: 3}, {AgentID: 8, ProjectID: 2, Since: 5}, {AgentID: 9, ProjectID: 3, Since: 1}}, reporters)
	ended, err := clusters.Ended(t.Context(), "c", time.Now())
	require.NoError(t, err)
	require.Zero(t, ended)
}

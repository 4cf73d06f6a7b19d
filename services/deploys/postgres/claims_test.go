package postgres_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"lockstep.internal/services/deploys/postgres"
)

func TestClaimsAreReadInTheOrderInWhichTheyWereMade(t *testing.T) {
	t.Parallel()
	pool, store := setup(t), &postgres.Store{}
	first, second := postgres.Claim{ClusterUID: "c", Since: 900, ProjectID: 1, AgentID: 7}, postgres.Claim{ClusterUID: "c", Since: 5, ProjectID: 2, AgentID: 8}
	in(t, pool, func(tx pgx.Tx) error {
		return store.Claim(t.Context(), tx, []postgres.Reporter{{AgentID: 7, ProjectID: 1, Since: 3}}, []postgres.Claim{first, {ClusterUID: "d", Since: 1, ProjectID: 1, AgentID: 7}})
	})
	in(t, pool, func(tx pgx.Tx) error { return store.Claim(t.Context(), tx, nil, []postgres.Claim{second}) })
	in(t, pool, func(tx pgx.Tx) error {
		reading, err := store.Begin(t.Context(), tx, postgres.Ask{Claims: []string{"c", "none"}, Reporters: []int64{7, 8}})
		require.NoError(t, err)
		require.Equal(t, []postgres.Claim{first, second}, reading.Claims)
		require.Equal(t, []postgres.Reporter{{AgentID: 7, ProjectID: 1, Since: 3}}, reading.Reporters)
		require.EqualValues(t, 1, reading.Batches)
		return nil
	})
}

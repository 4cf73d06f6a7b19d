package postgres_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"lockstep.internal/services/state/agent"
	"lockstep.internal/services/state/postgres"
)

func TestBlockOfAnAgentEndsAndIsStoredOnce(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	now := start()
	d := &postgres.Directory{DB: b.pool, Now: func() time.Time { return now }}
	block := func(reason string, until time.Duration) (bool, agent.Block) {
		blocked, made := false, agent.Block{Reason: reason, At: now, Until: start().Add(until)}
		require.NoError(t, b.tx(func(tx pgx.Tx) (err error) {
			blocked, err = d.BlockAgent(t.Context(), tx, 7, made)
			return err
		}))
		return blocked, made
	}
	blocks := func() map[int64]agent.Block {
		found, err := d.AgentBlocks(t.Context(), 7, 8)
		require.NoError(t, err)
		return found
	}
	require.Empty(t, blocks())
	blocked, first := block("first", time.Hour)
	require.True(t, blocked)
	now = start().Add(time.Hour - time.Second)
	blocked, _ = block("again", time.Hour)
	require.False(t, blocked)
	require.Equal(t, map[int64]agent.Block{7: first}, blocks())
	blocked, longer := block("longer", 2*time.Hour)
	require.True(t, blocked)
	require.Equal(t, map[int64]agent.Block{7: longer}, blocks())
	now = start().Add(2 * time.Hour)
	require.Empty(t, blocks())
	blocked, second := block("second", 3*time.Hour)
	require.True(t, blocked)
	require.NoError(t, d.UnblockAgents(t.Context(), now.Add(time.Second), []int64{7}))
	require.NoError(t, d.UnblockAgents(t.Context(), now, []int64{}))
	require.Equal(t, map[int64]agent.Block{7: second}, blocks(), "it was not stored before that time")
	require.NoError(t, d.UnblockAgents(t.Context(), now.Add(time.Second), []int64{}))
	require.Empty(t, blocks())
}

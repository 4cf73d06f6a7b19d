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
	block := func(reason string) (bool, agent.Block) {
		blocked, made := false, agent.Block{Reason: reason, At: now, Until: now.Add(time.Hour)}
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
	blocked, first := block("first")
	require.True(t, blocked)
	now = start().Add(time.Hour - 1)
	blocked, _ = block("again")
	require.False(t, blocked)
	require.Equal(t, map[int64]agent.Block{7: first}, blocks())
	now = start().Add(time.Hour)
	require.Empty(t, blocks())
	blocked, second := block("second")
	require.True(t, blocked)
	require.Equal(t, map[int64]agent.Block{7: second}, blocks())
}

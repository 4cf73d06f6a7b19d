package postgres_test

import (
	"encoding/hex"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/natsauth"
	"lockstep.internal/services/state/agent"
)

// Agents 7 and 8 have entries of an earlier version, without token hash.
func TestEntriesOfOldAgentsArePublishedAgainOnce(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	d := b.directory()
	hash, err := natsauth.HashToken(natsauth.TokenAgent, natsauth.NewToken(natsauth.TokenAgent))
	require.NoError(t, err)
	made, err := d.RegisterAgent(
		t.Context(),
		agent.Agent{ProjectID: 4, Name: "new", CurvePublicKey: "X", TokenHash: hash[:]},
		10,
	)
	require.NoError(t, err)
	messages := b.outbox()
	require.Equal(t, hex.EncodeToString(hash[:]), messages[0].Data["token_hash"], "a new agent's entry has the token hash")
	_, err = d.RevokeAgent(t.Context(), 8)
	require.NoError(t, err)
	b.outbox()

	var upgrading sync.WaitGroup
	errs := make([]error, 4) // four replicas start at the same time
	for i := range errs {
		upgrading.Go(func() { errs[i] = d.UpgradeAgentEntries(t.Context()) })
	}
	upgrading.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	entries := map[string]map[string]any{}
	for _, m := range b.outbox() {
		require.NotContains(t, entries, m.Subject)
		entries[m.Subject] = m.Data
	}
	require.Equal(t, map[string]map[string]any{
		"lockstep.local.directory.agent.7": {
			"agent_id":         7.0,
			"name":             "a",
			"project_id":       4.0,
			"curve_public_key": "X",
			"token_hash":       hex.EncodeToString([]byte("a")),
		},
		"lockstep.local.directory.agent.8": {
			"agent_id":         8.0,
			"name":             "b",
			"project_id":       4.0,
			"curve_public_key": "X",
			"token_hash":       hex.EncodeToString([]byte("b")),
			"revoked":          true,
		},
	}, entries)
	require.NoError(t, d.UpgradeAgentEntries(t.Context()))
	require.Empty(t, b.outbox())

	revoked, err := d.RevokeAgent(t.Context(), made.ID)
	require.NoError(t, err)
	require.Equal(t, hash[:], revoked.TokenHash)
	require.Equal(t, hex.EncodeToString(hash[:]), b.outbox()[0].Data["token_hash"], "republished entries have it, too")
}

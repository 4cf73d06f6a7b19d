package postgres_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"lockstep.internal/services/state/directory"
)

// A restored stream DIRECTORY contains memberships that were deleted later. Republishing also publishes the
// deletions.
func TestEndedMembershipStaysEndedAfterARestore(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	d := b.directory()
	const subject = "lockstep.local.directory.membership.9-project-4"
	again := func() []message {
		t.Helper()
		b.outbox()
		require.NoError(t, b.tx(func(tx pgx.Tx) error { return d.RepublishAll(t.Context(), tx) }))
		var messages []message
		for _, m := range b.outbox() {
			if m.Subject == subject {
				messages = append(messages, m)
			}
		}
		return messages
	}
	m := directory.Membership{
		UserID: 9,
		Scope:  directory.Scope{Kind: directory.ScopeProject, ID: 4},
		Role:   directory.RoleReader,
	}
	require.Empty(t, again())
	for range 2 { // create and delete the membership twice
		require.NoError(t, d.PutMembership(t.Context(), m))
		messages := again()
		require.Len(t, messages, 1)
		require.NotContains(t, messages[0].Data, "deleted")
		require.NoError(t, d.DeleteMembership(t.Context(), m.UserID, m.Scope))
		messages = again()
		require.Len(t, messages, 1)
		require.Equal(t, true, messages[0].Data["deleted"])
	}
}

package postgres_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"lockstep.internal/services/state/directory"
)

// A stream DIRECTORY that was restored from an older copy has memberships that were taken away since:
// it is told that they are no more.
func TestEndedMembershipStaysEndedAfterARestore(t *testing.T) {
	t.Parallel()
	b := setup(t)
	d := b.directory()
	const subject = "lockstep.local.directory.membership.9-project-4"
	again := func() []message {
		t.Helper()
		b.outbox()
		require.NoError(t, b.tx(func(tx pgx.Tx) error { return d.RepublishAll(t.Context(), tx) }))
		var told []message
		for _, m := range b.outbox() {
			if m.Subject == subject {
				told = append(told, m)
			}
		}
		return told
	}
	m := directory.Membership{
		UserID: 9,
		Scope:  directory.Scope{Kind: directory.ScopeProject, ID: 4},
		Role:   directory.RoleReader,
	}
	require.Empty(t, again())
	for range 2 { // given, taken, and given and taken once more
		require.NoError(t, d.PutMembership(t.Context(), m))
		told := again()
		require.Len(t, told, 1)
		require.NotContains(t, told[0].Data, "deleted")
		require.NoError(t, d.DeleteMembership(t.Context(), m.UserID, m.Scope))
		told = again()
		require.Len(t, told, 1)
		require.Equal(t, true, told[0].Data["deleted"])
	}
}

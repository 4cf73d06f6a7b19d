package access_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

func TestScopeIncludesLowerScopes(t *testing.T) {
	t.Parallel()
	all := []access.Scope{"", access.ScopeRead, access.ScopeWrite, access.ScopeAdmin, "other"}
	for _, held := range all {
		for _, needed := range all {
			want := map[[2]access.Scope]bool{
				{access.ScopeRead, access.ScopeRead}: true, {access.ScopeWrite, access.ScopeRead}: true,
				{access.ScopeWrite, access.ScopeWrite}: true, {access.ScopeAdmin, access.ScopeRead}: true,
				{access.ScopeAdmin, access.ScopeWrite}: true, {access.ScopeAdmin, access.ScopeAdmin}: true,
			}[[2]access.Scope{held, needed}]
			require.Equal(t, want, held.Includes(needed), "%q includes %q", held, needed)
		}
	}
}

func TestProcedureWithoutScopeNeedsAdmin(t *testing.T) {
	t.Parallel()
	scopes := access.Scopes{"/s/List": access.ScopeRead}
	require.NoError(t, scopes.Check(access.ScopeRead, "/s/List"))
	err := scopes.Check(access.ScopeWrite, "/s/New")
	require.Equal(t, errcode.PermissionDenied, fault.CodeOf(err))
	require.ErrorContains(t, err, "your token has the scope write, and New needs admin")
	require.NoError(t, scopes.Check(access.ScopeAdmin, "/s/New"))
}

package workspace_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/workspace"
)

func TestSharesAreAddedAndRemoved(t *testing.T) {
	t.Parallel()
	w := workspace.Workspace{Name: "w", UserID: 1, DesiredState: workspace.DesiredRunning}
	all, web := workspace.Share{UserID: 2}, workspace.Share{UserID: 2, Port: 80}
	db := workspace.Share{UserID: 3, Port: 5432}
	for _, s := range []workspace.Share{all, web, db} {
		next, changed, err := w.ShareWith(s)
		require.NoError(t, err)
		require.True(t, changed)
		require.NotEqual(t, w.Shares, next.Shares)
		w = next
	}
	_, changed, err := w.ShareWith(web)
	require.NoError(t, err)
	require.False(t, changed, "it is shared already")

	next, changed := w.Unshare(web)
	require.True(t, changed)
	require.Equal(t, []workspace.Share{all, db}, next.Shares)
	require.Len(t, w.Shares, 3, "the argument is not changed")
	next, changed = w.Unshare(all)
	require.True(t, changed)
	require.Equal(t, []workspace.Share{db}, next.Shares, "port 0 ends all shares of the person")
	_, changed = next.Unshare(all)
	require.False(t, changed)
	next, _ = next.Unshare(db)
	require.Nil(t, next.Shares)
}

func TestImpossibleShareIsRefused(t *testing.T) {
	t.Parallel()
	w := workspace.Workspace{Name: "w", UserID: 1, DesiredState: workspace.DesiredRunning}
	full, gone := w, w
	gone.DesiredState = workspace.DesiredTerminated
	for i := range 50 {
		full.Shares = append(full.Shares, workspace.Share{UserID: int64(10 + i)})
	}
	for name, c := range map[string]struct {
		w    workspace.Workspace
		s    workspace.Share
		code fault.Code
	}{
		"the owner":    {w, workspace.Share{UserID: 1}, errcode.InvalidArgument},
		"port -1":      {w, workspace.Share{UserID: 2, Port: -1}, errcode.InvalidArgument},
		"port 65536":   {w, workspace.Share{UserID: 2, Port: 65536}, errcode.InvalidArgument},
		"terminated":   {gone, workspace.Share{UserID: 2}, errcode.FailedPrecondition},
		"one too many": {full, workspace.Share{UserID: 2}, errcode.ResourceExhausted},
	} {
		_, changed, err := c.w.ShareWith(c.s)
		require.Equal(t, c.code, fault.CodeOf(err), name)
		require.False(t, changed, name)
	}
}

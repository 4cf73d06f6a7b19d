package directory_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/directory"
	"lockstep.internal/schemas/gen/events"
)

func TestPlace(t *testing.T) {
	t.Parallel()
	f := fold(t, tree()...)
	for scope, want := range map[directory.Scope]directory.Place{
		{Kind: directory.Project, ID: 4}:      {Groups: []int64{3, 2}, Organization: 1},
		{Kind: directory.Project, ID: 5}:      {Groups: []int64{6}, Organization: 1},
		{Kind: directory.Group, ID: 3}:        {Groups: []int64{2}, Organization: 1},
		{Kind: directory.Group, ID: 2}:        {Organization: 1},
		{Kind: directory.Organization, ID: 1}: {Organization: 1},
	} {
		place, found := f.Place(scope)
		require.True(t, found, scope)
		require.Equal(t, want, place, scope)
	}
	for _, scope := range []directory.Scope{
		{}, {Kind: directory.Project, ID: 99}, {Kind: directory.Group, ID: 4}, {Kind: directory.Organization, ID: 2},
	} {
		place, found := f.Place(scope)
		require.False(t, found, scope)
		require.Zero(t, place)
	}
}

func TestPlaceFollowsMovesAndDeletions(t *testing.T) {
	t.Parallel()
	project := directory.Scope{Kind: directory.Project, ID: 4}
	moved := events.DirectoryGroup{GroupID: 3, OrganizationID: 1, ParentGroupID: 6}
	f := fold(t, append(tree(), entry{"group", "3", moved})...)
	place, found := f.Place(project)
	require.True(t, found)
	require.Equal(t, directory.Place{Groups: []int64{3, 6}, Organization: 1}, place)
	deleted := events.DirectoryGroup{GroupID: 2, OrganizationID: 1, Deleted: true}
	f = fold(t, append(tree(), entry{"group", "2", deleted})...)
	_, found = f.Place(project)
	require.False(t, found, "a group above does not exist")
}

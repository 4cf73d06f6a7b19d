package registry_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/relay/registry"
)

const lease = 15 * time.Second

// bucketOf is one that was made at a second, and seen some time after.
func bucketOf(second int64, age time.Duration) registry.Bucket {
	created := time.Unix(second, 0)
	return registry.Bucket{Created: created, Seen: created.Add(age)}
}

// claimed is a relay that holds connections 1 and 2 of agent 7, whose entries have the revisions 11 and 12.
func claimed(t *testing.T) *registry.OwnEntries {
	t.Helper()
	c := registry.NewOwnEntries()
	c.Reset(bucketOf(1, time.Hour), lease)
	for _, id := range []int64{1, 2} {
		c.Add(connection(7, id, "a"))
	}
	write(t, c, 11)
	require.Empty(t, again(c))
	return c
}

// write makes all changes, from this revision on, and returns what they were.
func write(t *testing.T, c *registry.OwnEntries, revision uint64) (revisions []uint64) {
	t.Helper()
	for _, change := range c.Pending() {
		revisions = append(revisions, change.Revision)
		c.Written(change, revision)
		revision++
	}
	require.Empty(t, c.Pending())
	return revisions
}

// again are those that are to be told again, by their ids and how often they were revived; they are told.
func again(c *registry.OwnEntries) map[int64]int {
	told := map[int64]int{}
	c.Republish(func(x registry.Connection) bool {
		told[x.ID] = x.Revived
		return true
	})
	return told
}

func TestWhatIsToldAgain(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		happens func(t *testing.T, c *registry.OwnEntries)
		writes  []uint64 // what their entries have to have before
		told    map[int64]int
	}{
		"nothing":                      {func(*testing.T, *registry.OwnEntries) {}, nil, map[int64]int{}},
		"the connection to NATS again": {func(_ *testing.T, c *registry.OwnEntries) { c.Reset(bucketOf(1, 2*time.Hour), lease) }, []uint64{11, 12}, map[int64]int{}},
		"the bucket was lost, and everybody is back at once": {func(_ *testing.T, c *registry.OwnEntries) { c.Reset(bucketOf(2, lease-1), lease) }, []uint64{0, 0}, map[int64]int{}},
		"the bucket was lost, and the others were there":     {func(_ *testing.T, c *registry.OwnEntries) { c.Reset(bucketOf(2, lease), lease) }, []uint64{0, 0}, map[int64]int{1: 1, 2: 1}},
		"one came while NATS was away": {func(_ *testing.T, c *registry.OwnEntries) {
			c.Add(connection(7, 3, "a"))
			c.Reset(bucketOf(2, lease), lease)
		}, []uint64{0, 0, 0}, map[int64]int{1: 1, 2: 1}},
		"one was removed": {func(_ *testing.T, c *registry.OwnEntries) { c.EntryRemoved("connection.7.2", 13) }, []uint64{12}, map[int64]int{}},
		"one was removed, and was another's work": {func(t *testing.T, c *registry.OwnEntries) {
			require.True(t, c.EntryRemoved("connection.7.2", 13))
			c.Conflict(c.Pending()[0])
		}, []uint64{0}, map[int64]int{2: 1}},
		"it was removed twice": {func(t *testing.T, c *registry.OwnEntries) {
			for _, revision := range []uint64{13, 15} {
				c.EntryRemoved("connection.7.2", revision)
				c.Conflict(c.Pending()[0])
				write(t, c, revision+1)
			}
			require.True(t, c.EntryRemoved("connection.7.2", 13), "old news")
		}, nil, map[int64]int{2: 2}},
		"it was removed and is gone": {func(t *testing.T, c *registry.OwnEntries) {
			c.EntryRemoved("connection.7.2", 13)
			change := c.Pending()[0]
			was, held := c.Remove("connection.7.2")
			require.True(t, held)
			require.Equal(t, connection(7, 2, "a"), was)
			c.Conflict(change)
		}, []uint64{0}, map[int64]int{}},
		"it goes while it is written": {func(_ *testing.T, c *registry.OwnEntries) {
			c.EntryRemoved("connection.7.2", 13)
			change := c.Pending()[0]
			c.Remove("connection.7.2")
			c.Written(change, 14)
		}, []uint64{0}, map[int64]int{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := claimed(t)
			tc.happens(t, c)
			require.Equal(t, tc.writes, write(t, c, 21))
			require.Equal(t, tc.told, again(c))
			require.Empty(t, again(c), "once")
		})
	}
}

func TestWhatCannotBeToldIsToldLater(t *testing.T) {
	t.Parallel()
	c := claimed(t)
	c.Reset(bucketOf(2, time.Hour), lease)
	require.Empty(t, again(c), "its entry comes first")
	write(t, c, 1)
	c.Republish(func(x registry.Connection) bool { return x.ID == 1 })
	require.Equal(t, map[int64]int{2: 1}, again(c))
	was, _ := c.Remove("connection.7.2")
	require.Equal(t, 1, was.Revived, "and so it is told that it is gone")
	_, held := c.Remove("connection.7.2")
	require.False(t, held)
	require.False(t, c.EntryRemoved("connection.7.2", 30))
	require.Equal(t, []string{"connection.7.1"}, c.Keys())
}

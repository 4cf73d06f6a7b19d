package registry_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/relay/registry"
)

const lease = 15 * time.Second

// bucketCreatedAt returns a bucket with this creation time, seen after age.
func bucketCreatedAt(second int64, age time.Duration) registry.Bucket {
	created := time.Unix(second, 0)
	return registry.Bucket{Created: created, Seen: created.Add(age)}
}

// twoEntries returns the entries of connections 1 and 2 of agent 7. They are written with the revisions 11 and 12.
func twoEntries(t *testing.T) *registry.OwnEntries {
	t.Helper()
	o := registry.NewOwnEntries()
	o.Reset(bucketCreatedAt(1, time.Hour), lease)
	for _, id := range []int64{1, 2} {
		o.Add(connection(7, id, "a"))
	}
	writePending(t, o, 11)
	require.Empty(t, republish(o))
	return o
}

// writePending writes all pending changes with increasing revisions, and returns the expected revisions.
func writePending(t *testing.T, o *registry.OwnEntries, revision uint64) (revisions []uint64) {
	t.Helper()
	for _, change := range o.Pending() {
		revisions = append(revisions, change.Revision)
		o.Written(change, revision)
		revision++
	}
	require.Empty(t, o.Pending())
	return revisions
}

// republish publishes the connections that are to be published again, and returns their Republished counts by id.
func republish(o *registry.OwnEntries) map[int64]int {
	published := map[int64]int{}
	o.Republish(func(c registry.Connection) bool {
		published[c.ID] = c.Republished
		return true
	})
	return published
}

func TestRepublish(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(t *testing.T, o *registry.OwnEntries)
		// wantRevisions are the expected last revisions of the entries that are then written.
		wantRevisions   []uint64
		wantRepublished map[int64]int // Republished counts by id
	}{
		"no change": {func(*testing.T, *registry.OwnEntries) {}, nil, map[int64]int{}},
		"NATS reconnect": {
			func(_ *testing.T, o *registry.OwnEntries) { o.Reset(bucketCreatedAt(1, 2*time.Hour), lease) },
			[]uint64{11, 12},
			map[int64]int{},
		},
		"bucket recreated, this relay in time": {
			func(_ *testing.T, o *registry.OwnEntries) { o.Reset(bucketCreatedAt(2, lease-1), lease) },
			[]uint64{0, 0},
			map[int64]int{},
		},
		"bucket recreated, this relay late": {
			func(_ *testing.T, o *registry.OwnEntries) { o.Reset(bucketCreatedAt(2, lease), lease) },
			[]uint64{0, 0},
			map[int64]int{1: 1, 2: 1},
		},
		"connection added during NATS outage": {func(_ *testing.T, o *registry.OwnEntries) {
			o.Add(connection(7, 3, "a"))
			o.Reset(bucketCreatedAt(2, lease), lease)
		}, []uint64{0, 0, 0}, map[int64]int{1: 1, 2: 1}},
		"own removal event": {
			func(_ *testing.T, o *registry.OwnEntries) { o.EntryRemoved("connection.7.2", 13) },
			[]uint64{12},
			map[int64]int{},
		},
		"entry removed by another relay": {func(t *testing.T, o *registry.OwnEntries) {
			require.True(t, o.EntryRemoved("connection.7.2", 13))
			o.Conflict(o.Pending()[0])
		}, []uint64{0}, map[int64]int{2: 1}},
		"entry removed twice": {func(t *testing.T, o *registry.OwnEntries) {
			for _, revision := range []uint64{13, 15} {
				o.EntryRemoved("connection.7.2", revision)
				o.Conflict(o.Pending()[0])
				writePending(t, o, revision+1)
			}
			require.True(t, o.EntryRemoved("connection.7.2", 13), "outdated event")
		}, nil, map[int64]int{2: 2}},
		"entry removed and connection closed": {func(t *testing.T, o *registry.OwnEntries) {
			o.EntryRemoved("connection.7.2", 13)
			change := o.Pending()[0]
			was, held := o.Remove("connection.7.2")
			require.True(t, held)
			require.Equal(t, connection(7, 2, "a"), was)
			o.Conflict(change)
		}, []uint64{0}, map[int64]int{}},
		"connection closed during the write": {func(_ *testing.T, o *registry.OwnEntries) {
			o.EntryRemoved("connection.7.2", 13)
			change := o.Pending()[0]
			o.Remove("connection.7.2")
			o.Written(change, 14)
		}, []uint64{0}, map[int64]int{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := twoEntries(t)
			tc.change(t, o)
			require.Equal(t, tc.wantRevisions, writePending(t, o, 21))
			require.Equal(t, tc.wantRepublished, republish(o))
			require.Empty(t, republish(o), "republished only once")
		})
	}
}

func TestFailedRepublishIsRetried(t *testing.T) {
	t.Parallel()
	o := twoEntries(t)
	o.Reset(bucketCreatedAt(2, time.Hour), lease)
	require.Empty(t, republish(o), "the entry is written first")
	writePending(t, o, 1)
	o.Republish(func(x registry.Connection) bool { return x.ID == 1 })
	require.Equal(t, map[int64]int{2: 1}, republish(o))
	was, _ := o.Remove("connection.7.2")
	require.Equal(t, 1, was.Republished, "the disconnected event has the same count")
	_, held := o.Remove("connection.7.2")
	require.False(t, held)
	require.False(t, o.EntryRemoved("connection.7.2", 30))
	require.Equal(t, []string{"connection.7.1"}, o.Keys())
}

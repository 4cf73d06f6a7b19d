package watcher_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
)

// messagesOf counts the members in each message of several, by its id.
func (f *fixture) messagesOf(members []recorded) map[string]int {
	count := map[string]int{}
	for _, m := range members {
		if m.Subject == cellName.ObservedMembers(f.agent) {
			count[m.ID]++
		}
	}
	return count
}

func TestMembersOfWorkspacesShareMessages(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.workspace(t)
	const objects = 120
	for i := range objects {
		w.create(t, fmt.Sprintf("w%03d", i), 0)
	}
	start(t, f.config(t))
	recorder := f.record(t)
	begin, members := recorder.resynced(t)
	require.GreaterOrEqual(t, begin.Count, objects)
	require.Len(t, members, begin.Count)
	shared := f.messagesOf(members)
	require.Len(t, shared, (begin.Count+49)/50)
	for id, count := range shared {
		require.LessOrEqual(t, count, 50, id)
	}
	for i := range objects {
		require.Len(t, of(members, events.TypeObservedWorkload, fmt.Sprintf("w%03d", i)), 1)
	}

	f.request(t, "again")
	begin, members = recorder.resynced(t)
	require.Len(t, members, begin.Count)
	require.Len(t, f.messagesOf(members), (begin.Count+49)/50, "also of objects that are published before")
}

func TestMembersOfARefusedMessageArePublishedAlone(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.workspace(t)
	for i := range 10 {
		w.create(t, fmt.Sprintf("w%d", i), 0)
	}
	stream, err := f.js.Stream(t.Context(), topology.StreamObserved)
	require.NoError(t, err)
	limited := stream.CachedInfo().Config
	limited.MaxMsgSize = 3000
	_, err = f.js.UpdateStream(t.Context(), limited)
	require.NoError(t, err)
	start(t, f.config(t))
	begin, members := f.record(t).resynced(t)
	require.Len(t, members, begin.Count)
	require.Empty(t, f.messagesOf(members))
	for i := range 10 {
		require.Len(t, of(members, events.TypeObservedWorkload, fmt.Sprintf("w%d", i)), 1)
	}
}

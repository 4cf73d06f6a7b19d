package rollout_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
)

// After the newest ReplicaSet was deleted by hand, a Deployment that is rolled back uses a ReplicaSet that keeps its
// number.
func TestRolloutWithEarlierNumber(t *testing.T) {
	t.Parallel()
	t.Run("starts with the edit, and has an id of its own", func(t *testing.T) {
		t.Parallel()
		d := settled(t, 2)
		first := d.last(started).Rollout.ID
		d.edit("web:2")
		d.run()
		d.now = d.now.Add(time.Hour)
		d.deleteSet()
		d.undo(1)
		edited := d.now
		mark := d.mark()
		d.run()
		require.Equal(t, []string{"started 1", "rolled_back 1", "completed 1"}, d.since(mark))
		again := d.last(started)
		require.Equal(t, edited.Truncate(time.Second), again.OccurredAt, "not the creation of the ReplicaSet")
		require.False(t, again.ObservedAt.Before(edited))
		require.Equal(t, first+"/e1", again.Rollout.ID)
		d.edit("web:3")
		d.run()
		d.edit("web:4")
		d.run()
		require.NotContains(t, d.last(started).Rollout.ID, "/e", "no rollout had this number before")
	})
	t.Run("a ReplicaSet that had the higher number before is observed late", func(t *testing.T) {
		t.Parallel()
		d := settled(t, 2)
		d.edit("web:2")
		d.run()
		d.deleteSet()
		recreated := &replicaSet{name: "web-" + d.tpl.hash(), uid: d.uid("rs"), tpl: d.tpl, created: d.second(), revision: 2}
		late := d.setObservation(recreated, events.VerbUpserted)
		deleted := d.setObservation(recreated, events.VerbDeleted)
		mark := d.mark()
		d.undo(1)
		d.run()
		d.send(late)
		d.send(deleted)
		d.edit("web:3")
		d.run()
		want := []string{"started 1", "rolled_back 1", "completed 1", "started 2", "completed 2"}
		require.Equal(t, want, d.since(mark))
	})
}

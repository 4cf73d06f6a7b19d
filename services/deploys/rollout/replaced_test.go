package rollout_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
)

// A new leader publishes the new object before its first full resync ends. Only the end of the resync reports the
// absence of the previous object.
func TestEndIsUnknownWhenReplacedWithoutObservedDeletion(t *testing.T) {
	t.Parallel()
	t.Run("Deployment", func(t *testing.T) {
		t.Parallel()
		d := newDeployment(t, 1)
		d.create(3, "web:1")
		d.run()
		d.edit("web:2")
		d.step()
		mark := d.mark()
		d.stop()
		d.run()
		d.delete()
		d.down = false
		d.create(3, "web:1")
		d.run()
		require.Equal(t, []string{"gap [2]", "unknown 2", "removed", "started 1", "completed 1"}, d.since(mark))
		require.Equal(t, events.CauseWatcherDown, d.last(events.FactGap).Gap.Cause)
	})
	t.Run("StatefulSet", func(t *testing.T) {
		t.Parallel()
		s := newStatefulSet(t, 1)
		s.create(3, "web:1")
		s.run()
		s.edit("web:2")
		s.step()
		mark := s.mark()
		s.stop()
		s.run()
		s.delete()
		s.down = false
		s.create(3, "web:1")
		s.run()
		require.Equal(t, []string{"gap [2]", "unknown 2", "removed", "started 1", "completed 1"}, s.since(mark))
	})
}

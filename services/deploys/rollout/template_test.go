package rollout_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/deploys/rollout"
)

// The revision number of a ReplicaSet that was deleted by hand is reused. The template identifies each ReplicaSet.
func TestReplicaSetIsIdentifiedByItsTemplate(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		run  func(d *deployment)
		want []string
	}{
		"a view after an outage shows another ReplicaSet than the one that got its number later": {func(d *deployment) {
			d.stop()
			d.slow = true
			d.edit("web:2")
			d.step()
			d.deleteSet()
			d.start()
			d.edit("web:3")
			d.slow = false
			d.run()
			d.wait(time.Minute)
		}, []string{"gap [2]", "started 2", "completed 2"}},
		"a ReplicaSet that was observed before an outage ended the rollout before it": {func(d *deployment) {
			d.slow = true
			d.edit("web:2")
			d.step()
			d.pause()
			d.run()
			d.undo(1)
			d.sync()
			d.stop()
			d.undo(2)
			d.run()
			d.start()
		}, []string{
			"started 2", "paused 2", "cancelled 2", "started 3", "rolled_back 3", "gap [3]", "unknown 3", "started 4",
			"rolled_back 4", "paused 4",
		}},
		"a waiting view that shows its pods is not replaced by one without": {func(d *deployment) {
			d.deleteSet()
			d.held = true
			d.slow = true
			d.edit("web:2")
			d.step()
			d.step()
			d.deleteSet()
			d.edit("web:3")
			d.slow = false
			d.run()
			d.deliverHeld(isWorkload)
			d.wait(time.Minute)
		}, []string{"started 1", "superseded 1", "started 1", "completed 1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := settled(t, 2)
			mark := d.mark()
			tc.run(d)
			require.Equal(t, tc.want, d.since(mark))
			require.Empty(t, d.state.Waiting)
		})
	}
}

// A template that is written again after its ReplicaSet got the number is not the one that started the rollout.
func TestRolloutStartsBeforeItsReplicaSetIsObserved(t *testing.T) {
	t.Parallel()
	d := settled(t, 2)
	d.edit("web:2")
	d.run()
	d.held = true
	d.undo(1)
	d.sync()
	seen := d.now
	d.now = d.now.Add(time.Minute)
	d.edit("web:3")
	d.now = d.now.Add(time.Minute)
	d.undo(3)
	d.run()
	d.deliverHeld(func(in rollout.Input) bool { return !isWorkload(in) })
	require.False(t, d.last(started).OccurredAt.After(seen))
}

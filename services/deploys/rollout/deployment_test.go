package rollout_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
)

// settled returns a Deployment whose first rollout has completed.
func settled(t *testing.T, replicas int) *deployment {
	d := newDeployment(t, 1)
	d.create(replicas, "web:1")
	d.run()
	require.Equal(t, []string{"started 1", "completed 1"}, d.factNames())
	return d
}

func TestDeploymentIsCreated(t *testing.T) {
	t.Parallel()
	d := settled(t, 3)
	started, completed := d.last(events.FactStarted), d.last(events.FactCompleted)
	require.Equal(t, events.ChangeCreated, started.Rollout.Change)
	require.Equal(t, events.ProvenanceObserved, started.Provenance)
	require.Equal(t, events.TimeSourceCreationTimestamp, started.TimeSource)
	require.Equal(t, "cluster/d1/1/"+d.tpl.hash(), started.Rollout.ID)
	require.Equal(t, "web:1", started.Rollout.Images[0].Image)
	require.Equal(t, "web:1", started.Workload.Annotations["lockstep.dev/commit"])
	require.Equal(t, 3, completed.Counts.Available)
	require.Equal(t, "NewReplicaSetAvailable", completed.Reason)
	require.Equal(t, events.TimeSourceCondition, completed.TimeSource)
	require.Positive(t, *completed.DurationMs)
	require.Equal(t, started.Rollout.ID, d.last(events.FactDrained).Rollout.ID)
}

func TestDeploymentScenarios(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		run  func(d *deployment)
		want []string
	}{
		"updated": {func(d *deployment) {
			d.edit("web:2")
			d.run()
		}, []string{"started 2", "completed 2"}},
		"informer and full resync, idle": {func(d *deployment) {
			d.resync(false)
			d.resync(true)
			d.wait(time.Minute)
		}, []string{}},
		"informer and full resync, in flight": {func(d *deployment) {
			d.edit("web:2")
			d.step()
			d.resync(false)
			d.resync(true)
			d.step()
			d.resync(true)
			d.run()
		}, []string{"started 2", "completed 2"}},
		"superseded": {func(d *deployment) {
			d.edit("web:2")
			d.step()
			d.edit("web:3")
			d.run()
		}, []string{"started 2", "superseded 2", "started 3", "completed 3"}},
		"superseded twice quickly": {func(d *deployment) {
			d.edit("web:2")
			d.step()
			d.edit("web:3")
			d.sync()
			d.edit("web:4")
			d.run()
		}, []string{"started 2", "superseded 2", "started 3", "superseded 3", "started 4", "completed 4"}},
		"edits that the controller did not observe": {func(d *deployment) {
			d.edit("web:2")
			d.edit("web:3")
			d.run()
		}, []string{"started 2", "completed 2"}},
		"rolled back when complete": {func(d *deployment) {
			d.edit("web:2")
			d.run()
			d.undo(1)
			d.run()
		}, []string{"started 2", "completed 2", "started 3", "rolled_back 3", "completed 3"}},
		"rolled back in flight: the first rollout is cancelled": {func(d *deployment) {
			d.slow = true
			d.edit("web:2")
			d.step()
			d.slow = false
			d.undo(1)
			d.run()
		}, []string{"started 2", "cancelled 2", "started 3", "rolled_back 3", "completed 3"}},
		"rolled back and forward while paused": {
			func(d *deployment) {
				d.edit("web:2")
				d.run()
				d.pause()
				d.undo(1)
				d.run()
				d.undo(2)
				d.run()
				d.resume()
				d.run()
			}, []string{
				"started 2", "completed 2", "started 3", "rolled_back 3", "paused 3", "cancelled 3", "started 4", "rolled_back 4",
				"paused 4", "completed 4",
			},
		},
		"rolled back at 0 replicas": {
			func(d *deployment) {
				d.scale(0)
				d.run()
				d.edit("web:2")
				d.run()
				d.undo(1)
				d.run()
			}, []string{
				"scale_started 3→0", "scale_completed 3→0", "started 2", "completed 2", "started 3",
				"rolled_back 3", "completed 3",
			},
		},
		"rolled back to an image whose ReplicaSet was deleted": {func(d *deployment) {
			d.keep = 0
			d.edit("web:2")
			d.run()
			d.edit("web:1")
			d.run()
		}, []string{"started 2", "completed 2", "started 3", "rolled_back 3", "completed 3"}},
		"restarted": {func(d *deployment) {
			d.restart()
			d.run()
		}, []string{"started 2", "restarted 2", "completed 2"}},
		"a changed environment variable is not a restart": {func(d *deployment) {
			d.setEnv("debug")
			d.run()
		}, []string{"started 2", "completed 2"}},
		"ReplicaSet deleted by hand": {func(d *deployment) {
			d.deleteSet()
			d.run()
		}, []string{}},
		"ReplicaSet deleted by hand in flight": {func(d *deployment) {
			d.edit("web:2")
			d.step()
			d.deleteSet()
			d.run()
		}, []string{"started 2", "completed 2"}},
		"ReplicaSet deleted by hand, and revisions restart": {func(d *deployment) {
			d.keep = 0
			d.edit("web:2")
			d.run()
			d.edit("web:3")
			d.run()
			d.deleteSet()
			d.run()
			require.Equal(d.t, 1, d.revision)
			require.Empty(d.t, d.factNames()[6:])
			d.edit("web:4")
			d.run()
		}, []string{"started 2", "completed 2", "started 3", "completed 3", "started 2", "completed 2"}},
		"paused, edited, resumed": {func(d *deployment) {
			d.pause()
			d.run()
			d.edit("web:2")
			d.run()
			d.resume()
			d.run()
		}, []string{"started 2", "completed 2"}},
		"paused and resumed in flight": {func(d *deployment) {
			d.edit("web:2")
			d.step()
			d.pause()
			d.step()
			d.resume()
			d.run()
		}, []string{"started 2", "paused 2", "resumed 2", "completed 2"}},
		"paused in flight, edited, resumed": {func(d *deployment) {
			d.edit("web:2")
			d.step()
			d.pause()
			d.run()
			d.edit("web:3")
			d.run()
			d.resume()
			d.run()
		}, []string{"started 2", "paused 2", "resumed 2", "superseded 2", "started 3", "completed 3"}},
		"scaled": {func(d *deployment) {
			d.scale(5)
			d.run()
			d.scale(2)
			d.run()
		}, []string{"scale_started 3→5", "scale_completed 3→5", "scale_started 5→2", "scale_completed 5→2"}},
		"scaled again before the first scaling completed": {func(d *deployment) {
			d.scale(5)
			d.step()
			d.scale(8)
			d.run()
		}, []string{"scale_started 3→5", "scale_completed 3→8"}},
		"scaled in flight": {func(d *deployment) {
			d.edit("web:2")
			d.step()
			d.scale(5)
			d.run()
		}, []string{"started 2", "scale_started 3→5", "scale_completed 3→5", "completed 2"}},
		"scaled and edited at once is not a scaling": {func(d *deployment) {
			d.spec(func() { d.replicas = 5; d.tpl.image = "web:2" })
			d.run()
		}, []string{"started 2", "completed 2"}},
		"Recreate": {func(d *deployment) {
			d.strategy = "Recreate"
			d.edit("web:2")
			d.run()
		}, []string{"started 2", "completed 2"}},
		"deadline passed, then recovered": {func(d *deployment) {
			d.slow = true
			d.edit("web:2")
			d.run()
			d.late = true
			d.run()
			d.resync(true)
			d.slow, d.late = false, false
			d.run()
		}, []string{"started 2", "stalled 2", "recovered 2", "completed 2"}},
		"deadline passed, then rolled back: the new rollout is not stalled": {func(d *deployment) {
			d.slow = true
			d.edit("web:2")
			d.run()
			d.late = true
			d.run()
			d.slow = false
			d.undo(1)
			d.run()
		}, []string{"started 2", "stalled 2", "cancelled 2", "started 3", "rolled_back 3", "completed 3"}},
		"no deadline: stalled by the default deadline": {func(d *deployment) {
			d.deadline = nil
			d.slow = true
			d.edit("web:2")
			d.run()
			d.wait(9 * time.Minute)
			require.Equal(d.t, []string{"started 2"}, d.factNames()[2:])
			d.wait(2 * time.Minute)
			require.Equal(d.t, []string{"started 2", "stalled 2"}, d.factNames()[2:])
			d.wait(20 * time.Minute)
			d.slow = false
			d.run()
		}, []string{"started 2", "stalled 2", "recovered 2", "completed 2"}},
		"quota": {func(d *deployment) {
			d.quota = true
			d.edit("web:2")
			d.run()
			d.quota = false
			d.run()
		}, []string{"started 2", "blocked 2", "unblocked 2", "completed 2"}},
		"deleted when idle": {func(d *deployment) {
			d.delete()
			d.wait(time.Minute)
		}, []string{"removed"}},
		"deleted in flight": {func(d *deployment) {
			d.edit("web:2")
			d.step()
			d.delete()
			d.wait(time.Minute)
		}, []string{"started 2", "cancelled 2"}},
		"deleted and recreated with the same name": {func(d *deployment) {
			d.delete()
			d.create(2, "web:9")
			d.run()
		}, []string{"removed", "started 1", "completed 1"}},
		"absent in a complete resync": {func(d *deployment) {
			d.stop()
			d.delete()
			d.start()
		}, []string{"gap []", "removed"}},
		"recreated while the watcher was down": {func(d *deployment) {
			d.stop()
			d.delete()
			d.create(2, "web:9")
			d.run()
			d.start()
		}, []string{"gap []", "removed", "started 1", "completed 1"}},
		"updated while the watcher was down": {func(d *deployment) {
			d.stop()
			d.edit("web:2")
			d.run()
			d.start()
		}, []string{"started 2", "completed 2"}},
		"completed while the watcher was down": {func(d *deployment) {
			d.edit("web:2")
			d.step()
			d.stop()
			d.run()
			d.start()
		}, []string{"started 2", "completed 2"}},
		"in flight and updated while the watcher was down": {func(d *deployment) {
			d.edit("web:2")
			d.step()
			d.stop()
			d.run()
			d.edit("web:3")
			d.run()
			d.start()
		}, []string{"started 2", "gap [2]", "unknown 2", "started 3", "completed 3"}},
		"a revision lost while the watcher was down": {func(d *deployment) {
			d.stop()
			d.edit("web:2")
			d.run()
			d.undo(1)
			d.run()
			d.undo(2)
			d.run()
			d.start()
		}, []string{"gap [2 3]", "started 3", "rolled_back 3", "unknown 3", "started 4", "rolled_back 4", "completed 4"}},
		"a ReplicaSet lost while the watcher was down": {func(d *deployment) {
			d.stop()
			d.keep = 0
			d.edit("web:2")
			d.run()
			d.edit("web:3")
			d.run()
			d.start()
			require.Empty(d.t, d.factNames()[2:], "the missing revision may still be observed")
			d.wait(time.Minute)
		}, []string{"gap [2]", "started 3", "completed 3"}},
		"deleted in flight while the watcher was down": {func(d *deployment) {
			d.edit("web:2")
			d.step()
			d.stop()
			d.delete()
			d.start()
		}, []string{"started 2", "gap [2]", "unknown 2", "removed"}},
		"scaled while the watcher was down": {func(d *deployment) {
			d.stop()
			d.scale(5)
			d.run()
			d.start()
		}, []string{}},
		"a client wrote the revision annotation": {func(d *deployment) {
			d.revision = 9
			d.write()
			d.run()
			d.edit("web:2")
			d.run()
		}, []string{"started 2", "completed 2"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := settled(t, 3)
			mark := d.mark()
			tc.run(d)
			require.Equal(t, tc.want, d.since(mark))
			require.Empty(t, d.state.Waiting)
		})
	}
}

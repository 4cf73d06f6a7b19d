package rollout_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
)

func TestStatefulSetScenarios(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		run  func(s *statefulSet)
		want []string
	}{
		"updated": {func(s *statefulSet) {
			s.edit("web:2")
			s.run()
		}, []string{"started 2", "completed 2"}},
		"resyncs, idle and in flight": {func(s *statefulSet) {
			s.resync(true)
			s.edit("web:2")
			s.step()
			s.resync(false)
			s.resync(true)
			s.run()
			s.resync(true)
		}, []string{"started 2", "completed 2"}},
		"rolled back: the ControllerRevision is reused with a new number": {func(s *statefulSet) {
			s.edit("web:2")
			s.run()
			s.edit("web:1")
			s.run()
			require.Equal(s.t, 1, s.last(events.FactRolledBack).Rollout.OfRevision)
			require.Equal(s.t, "cluster/s1/"+s.update+"/3", s.last(events.FactRolledBack).Rollout.ID)
			require.Equal(s.t, events.TimeSourceManagedFields, s.last(events.FactRolledBack).TimeSource)
		}, []string{"started 2", "completed 2", "started 3", "rolled_back 3", "completed 3"}},
		"rolled back in flight": {func(s *statefulSet) {
			s.slow = true
			s.edit("web:2")
			s.step()
			s.slow = false
			s.edit("web:1")
			s.run()
		}, []string{"started 2", "cancelled 2", "started 3", "rolled_back 3", "completed 3"}},
		"restarted": {func(s *statefulSet) {
			s.restart()
			s.run()
		}, []string{"started 2", "restarted 2", "completed 2"}},
		"superseded": {func(s *statefulSet) {
			s.edit("web:2")
			s.step()
			s.edit("web:3")
			s.run()
		}, []string{"started 2", "superseded 2", "started 3", "completed 3"}},
		"partition by steps": {func(s *statefulSet) {
			s.setPartition(2)
			s.run()
			s.edit("web:2")
			s.run()
			require.Equal(s.t, 2, *s.last(events.FactPartitionReached).Partition)
			s.wait(time.Hour)
			s.setPartition(1)
			s.run()
			s.setPartition(0)
			s.run()
		}, []string{"started 2", "partition_reached 2", "partition_reached 2", "completed 2"}},
		"OnDelete: complete by counts, without a deadline": {func(s *statefulSet) {
			s.strategy = "OnDelete"
			s.edit("web:2")
			s.run()
			s.wait(time.Hour)
			for i := range 3 {
				s.deletePod(i)
				s.run()
			}
			require.NotEqual(s.t, s.current, s.update, "the controller does not set the current revision")
		}, []string{"started 2", "completed 2"}},
		"scaled": {func(s *statefulSet) {
			s.scale(5)
			s.run()
		}, []string{"scale_started 3→5", "scale_completed 3→5"}},
		"stalled by the default deadline, and recovered": {func(s *statefulSet) {
			s.slow = true
			s.edit("web:2")
			s.run()
			s.wait(11 * time.Minute)
			s.slow = false
			s.run()
		}, []string{"started 2", "stalled 2", "recovered 2", "completed 2"}},
		"deleted in flight": {func(s *statefulSet) {
			s.edit("web:2")
			s.step()
			s.delete()
		}, []string{"started 2", "cancelled 2"}},
		"updated while the watcher was down": {func(s *statefulSet) {
			s.stop()
			s.edit("web:2")
			s.run()
			s.edit("web:3")
			s.run()
			s.start()
		}, []string{"gap [2]", "started 2", "unknown 2", "started 3", "completed 3"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStatefulSet(t, 1)
			s.create(3, "web:1")
			s.run()
			require.Equal(t, []string{"started 1", "completed 1"}, s.factNames())
			mark := s.mark()
			tc.run(s)
			require.Equal(t, tc.want, s.since(mark))
		})
	}
}

func TestDaemonSetScenarios(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		run  func(d *daemonSet)
		want []string
	}{
		"updated": {func(d *daemonSet) {
			d.edit("web:2")
			d.run()
			require.Equal(d.t, "cluster/ds1/2", d.last(events.FactCompleted).Rollout.ID)
		}, []string{"started 2", "completed 2"}},
		"resyncs": {func(d *daemonSet) {
			d.resync(true)
			d.edit("web:2")
			d.step()
			d.resync(true)
			d.run()
			d.resync(false)
		}, []string{"started 2", "completed 2"}},
		"rolled back": {func(d *daemonSet) {
			d.edit("web:2")
			d.run()
			d.edit("web:1")
			d.run()
			require.Equal(d.t, 1, d.last(events.FactRolledBack).Rollout.OfRevision)
		}, []string{"started 2", "completed 2", "started 3", "rolled_back 3", "completed 3"}},
		"restarted": {func(d *daemonSet) {
			d.restart()
			d.run()
		}, []string{"started 2", "restarted 2", "completed 2"}},
		"a node is added and removed": {func(d *daemonSet) {
			d.addNode()
			d.run()
			d.loseNode()
			d.run()
		}, []string{}},
		"a node is added in flight": {func(d *daemonSet) {
			d.edit("web:2")
			d.step()
			d.addNode()
			d.run()
			require.True(d.t, d.last(events.FactCompleted).Rollout.ScaledDuring)
		}, []string{"started 2", "completed 2"}},
		"cancelled by a rollback": {func(d *daemonSet) {
			d.edit("web:2")
			d.step()
			d.edit("web:1")
			d.run()
		}, []string{"started 2", "cancelled 2", "started 3", "rolled_back 3", "completed 3"}},
		"stalled by the default deadline": {func(d *daemonSet) {
			d.slow = true
			d.edit("web:2")
			d.run()
			d.wait(11 * time.Minute)
		}, []string{"started 2", "stalled 2"}},
		"generations lost while the watcher was down": {func(d *daemonSet) {
			d.stop()
			d.edit("web:2")
			d.run()
			d.edit("web:3")
			d.run()
			d.start()
		}, []string{"gap [2]", "started 3", "completed 3"}},
		"deleted when idle": {func(d *daemonSet) {
			d.delete()
		}, []string{"removed"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDaemonSet(t, 1)
			d.create(3, "web:1")
			d.run()
			require.Equal(t, []string{"started 1", "completed 1"}, d.factNames())
			require.Equal(t, 3, d.last(events.FactCompleted).Rollout.ReplicasAtStart)
			require.False(t, d.last(events.FactCompleted).Rollout.ScaledDuring)
			mark := d.mark()
			tc.run(d)
			require.Equal(t, tc.want, d.since(mark))
		})
	}
}

// If a rollout completes and the workload is edited again in an outage, no observation shows the completion.
func TestCompletionInOutageEndsUnknown(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		run  func(s *statefulSet)
		want []string
	}{
		"edited again, not yet observed by the controller": {func(s *statefulSet) {
			s.run()
			s.edit("web:3")
			s.start()
			s.run()
		}, []string{"started 2", "gap [2]", "unknown 2", "started 3", "completed 3"}},
		"scaled": {
			func(s *statefulSet) {
				s.run()
				s.slow = true
				s.scale(5)
				s.run()
				s.start()
				s.edit("web:3")
				s.slow = false
				s.run()
			}, []string{
				"started 2", "scale_started 3→5", "gap [2]", "unknown 2", "started 3", "completed 3", "scale_completed 3→5",
			},
		},
		"edited again, and deleted": {func(s *statefulSet) {
			s.run()
			s.edit("web:3")
			s.start()
			s.delete()
		}, []string{"started 2", "gap [2]", "unknown 2", "removed"}},
		"not complete": {func(s *statefulSet) {
			s.step()
			s.start()
			s.edit("web:3")
			s.run()
		}, []string{"started 2", "superseded 2", "started 3", "completed 3"}},
		"complete at the end": {func(s *statefulSet) {
			s.run()
			s.scale(5)
			s.start()
			s.run()
		}, []string{"started 2", "scale_started 3→5", "completed 2", "scale_completed 3→5"}},
		"rolled back to the previous revision, which has a new number": {
			func(s *statefulSet) {
				s.run()
				s.edit("web:1")
				s.run()
				s.edit("web:2")
				s.run()
				s.start()
			}, []string{
				"started 2", "gap [2 3]", "unknown 2", "started 3", "rolled_back 3", "unknown 3", "started 4", "rolled_back 4",
				"completed 4",
			},
		},
	} {
		for seed := range uint64(6) { // the StatefulSet and its revisions arrive in any order
			t.Run(fmt.Sprintf("%s/%d", name, seed), func(t *testing.T) {
				t.Parallel()
				s := newStatefulSet(t, seed)
				s.create(3, "web:1")
				s.run()
				mark := s.mark()
				s.edit("web:2")
				s.step()
				s.stop()
				s.now = s.now.Add(time.Minute)
				tc.run(s)
				s.wait(time.Minute)
				require.Equal(t, tc.want, s.since(mark))
			})
		}
	}
}

// A slow controller writes the status of a deleted object into the new object with the same name.
func TestStatusOfPreviousObjectIsIgnored(t *testing.T) {
	t.Parallel()
	for name, observed := range map[string]int{"of a later generation": 10, "of the same generation": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStatefulSet(t, 1)
			s.create(3, "web:1")
			s.run()
			s.delete()
			mark := s.mark()
			s.create(3, "web:2")
			late := s.observation(events.VerbUpserted)
			late.Workload.HasStatus, late.Workload.ObservedGeneration = true, observed
			late.Workload.CurrentRevision, late.Workload.UpdateRevision = "web-gone", "web-gone"
			late.Workload.Replicas, late.Workload.UpdatedReplicas, late.Workload.ReadyReplicas,
				late.Workload.AvailableReplicas = 3, 3, 3, 3
			s.send(late)
			s.run()
			s.wait(time.Minute)
			require.Equal(t, []string{"started 1", "completed 1"}, s.since(mark))
		})
	}
	d := newDaemonSet(t, 1)
	d.create(3, "web:1")
	d.run()
	d.delete()
	mark := d.mark()
	d.create(3, "web:2")
	late := d.observation(events.VerbUpserted)
	late.Workload.HasStatus, late.Workload.ObservedGeneration, late.Workload.SpecReplicas = true, 10, new(3)
	late.Workload.Replicas, late.Workload.UpdatedReplicas, late.Workload.ReadyReplicas,
		late.Workload.AvailableReplicas = 3, 3, 3, 3
	d.send(late)
	require.Equal(t, []string{"started 1"}, d.since(mark), "not complete yet")
	d.run()
	require.Equal(t, []string{"started 1", "completed 1"}, d.since(mark))
}

// The text must not change: it is published, and a rebuild compares facts byte for byte.
func TestStalledFactHasTimeOfLastProgress(t *testing.T) {
	t.Parallel()
	s := newStatefulSet(t, 1)
	s.create(2, "web:1")
	s.run()
	s.slow = true
	s.edit("web:2")
	s.run()
	s.wait(11 * time.Minute)
	require.Contains(t, s.factNames(), "stalled 2")
	for _, f := range s.facts {
		if f.Fact == stalled {
			require.Regexp(t, `^no pod has come nearer to completion since 20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ$`, f.Message)
			require.Equal(t, "ProgressDeadlineExceeded", f.Reason)
		}
	}
}

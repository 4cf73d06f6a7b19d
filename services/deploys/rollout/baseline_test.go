package rollout_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/rollout"
)

// startFirstWatcher starts a watcher for the first time: it lists all objects.
func (l *fixture) startFirstWatcher() {
	l.down = false
	for _, in := range l.workload.relist() {
		if in.Workload != nil {
			in.Workload.Object.FirstSeen, in.Workload.Object.UpdateType = true, events.UpdateTypeFull
		} else {
			in.Revision.Object.FirstSeen, in.Revision.Object.UpdateType = true, events.UpdateTypeFull
		}
		l.send(in)
	}
}

func TestExistingWorkloadIsBaselineWithoutFacts(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		before, after func(d *deployment)
		want          []string
	}{
		"complete": {func(*deployment) {}, func(d *deployment) {
			d.edit("web:3")
			d.run()
		}, []string{"started 3", "completed 3"}},
		"rolled back to a baseline": {func(*deployment) {}, func(d *deployment) {
			d.edit("web:3")
			d.run()
			d.undo(2)
			d.run()
		}, []string{"started 3", "completed 3", "started 4", "rolled_back 4", "completed 4"}},
		"rolled back in flight to a baseline": {func(*deployment) {}, func(d *deployment) {
			d.edit("web:3")
			d.step()
			d.undo(2)
			d.run()
		}, []string{"started 3", "cancelled 3", "started 4", "rolled_back 4", "completed 4"}},
		"in flight": {func(d *deployment) {
			d.edit("web:3")
			d.step()
		}, func(d *deployment) {
			require.Equal(d.t, events.ProvenanceReconstructed, d.last(events.FactStarted).Provenance)
			require.Equal(d.t, "web:3", d.last(events.FactStarted).Rollout.Images[0].Image)
			d.run()
			require.Equal(d.t, events.ProvenanceObserved, d.last(events.FactCompleted).Provenance)
		}, []string{"started 3", "completed 3"}},
		"about to start": {func(d *deployment) {
			d.edit("web:3")
		}, func(d *deployment) {
			require.Empty(d.t, d.factNames())
			d.run()
		}, []string{"started 3", "completed 3"}},
		"one pod is missing": {func(d *deployment) {
			d.sets[1].ready--
			d.slow = true
			d.run()
		}, func(d *deployment) {
			d.slow = false
			d.run()
		}, []string{}},
		"being scaled": {func(d *deployment) {
			d.scale(6)
			d.sync()
		}, func(d *deployment) {
			d.run()
		}, []string{}},
		"at 0 replicas": {func(d *deployment) {
			d.scale(0)
			d.run()
		}, func(d *deployment) {
			d.undo(1)
			d.run()
		}, []string{"started 3", "rolled_back 3", "completed 3"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDeployment(t, 1)
			d.stop()
			d.create(3, "web:1")
			d.run()
			d.edit("web:2")
			d.run()
			tc.before(d)
			d.startFirstWatcher()
			tc.after(d)
			require.Equal(t, tc.want, d.factNames())
		})
	}
}

func TestBaselineOfStatefulSetAndDaemonSet(t *testing.T) {
	t.Parallel()
	s := newStatefulSet(t, 1)
	s.stop()
	s.create(3, "web:1")
	s.run()
	s.startFirstWatcher()
	require.Empty(t, s.factNames())
	s.edit("web:2")
	s.run()
	require.Equal(t, []string{"started 2", "completed 2"}, s.factNames())

	s = newStatefulSet(t, 1)
	s.stop()
	s.create(3, "web:1")
	s.run()
	s.edit("web:2")
	s.step()
	s.startFirstWatcher()
	s.run()
	require.Equal(t, []string{"started 2", "completed 2"}, s.factNames())

	d := newDaemonSet(t, 1)
	d.stop()
	d.create(3, "web:1")
	d.run()
	d.startFirstWatcher()
	require.Empty(t, d.factNames())
	d.edit("web:2")
	d.run()
	require.Equal(t, []string{"started 2", "completed 2"}, d.factNames())

	d = newDaemonSet(t, 1)
	d.stop()
	d.create(3, "web:1")
	d.run()
	d.edit("web:2")
	d.startFirstWatcher() // before its controller observed the edit
	d.run()
	require.Equal(t, []string{"started 2", "completed 2"}, d.factNames())
}

// unselect removes the label by which the watcher selects the workload. reselect sets it again.
func (d *deployment) unselect() {
	in := d.observation(events.VerbDeleted)
	in.Workload.Unselected = true
	d.send(in)
	d.down = true
}

func (d *deployment) reselect() {
	d.down = false
	for _, in := range d.relist() {
		d.send(in)
	}
}

func TestUnselectedWorkloadHasNoFacts(t *testing.T) {
	t.Parallel()
	d := settled(t, 3)
	d.unselect()
	d.edit("web:2")
	d.run()
	d.spec(func() {})
	d.reselect()
	require.Equal(t, []string{"started 1", "completed 1"}, d.factNames(),
		"neither unselecting nor reselecting is a rollout")
	d.edit("web:3")
	d.step()
	d.unselect()
	require.Equal(t, []string{"started 3", "gap [3]", "unknown 3"}, d.since(2))
	require.Equal(t, events.CauseUnselected, d.last(events.FactUnknown).Gap.Cause)
	d.spec(func() {})
	d.reselect()
	d.run()
	require.Equal(t, []string{"started 3", "gap [3]", "unknown 3"}, d.since(2), "the rollout has ended already")
	d.edit("web:4")
	d.run()
	require.Equal(t, []string{"started 4", "completed 4"}, d.since(5))
}

// releaseCluster releases the cluster to another project, whose watcher then lists all objects.
func (d *deployment) releaseCluster() {
	d.deliver(rollout.Input{ObservedAt: d.now, Released: true})
	d.agent = 8
	for _, in := range d.relist() {
		if in.Workload != nil {
			in.Workload.Object.FirstSeen, in.Workload.Object.UpdateType = true, events.UpdateTypeFull
		} else {
			in.Revision.Object.FirstSeen, in.Revision.Object.UpdateType = true, events.UpdateTypeFull
		}
		d.send(in)
	}
}

func TestReleasedClusterIsBaselineForNextProject(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		before, after func(d *deployment)
		want          []string
	}{
		"complete": {func(*deployment) {}, func(*deployment) {}, nil},
		"complete, old pods still terminating": {func(d *deployment) {
			d.lingering = true
			d.edit("web:2")
			d.run()
		}, func(d *deployment) {
			d.lingering = false
			d.run()
		}, []string{"started 2", "completed 2"}},
		"in flight": {func(d *deployment) {
			d.edit("web:2")
			d.step()
		}, func(d *deployment) {
			require.Equal(d.t, events.CauseClusterReleased, d.last(events.FactUnknown).Gap.Cause)
			require.Equal(d.t, "Released", d.last(events.FactUnknown).Reason)
			ended := d.last(events.FactUnknown)
			require.Equal(d.t, 7, ended.Workload.AgentID, "the rollout belongs to the project in which it started")
			d.run()
		}, []string{"started 2", "gap [2]", "unknown 2"}},
		"about to start": {func(d *deployment) {
			d.edit("web:2")
		}, func(d *deployment) {
			d.run()
			require.Equal(d.t, 8, d.last(events.FactCompleted).Workload.AgentID)
		}, []string{"started 2", "completed 2"}},
		"deleted": {func(d *deployment) { d.delete() }, func(*deployment) {}, []string{"removed"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := settled(t, 3)
			mark := d.mark()
			tc.before(d)
			d.releaseCluster()
			tc.after(d)
			require.Equal(t, tc.want, append([]string(nil), d.since(mark)...))
			if !d.exists() {
				return
			}
			mark = d.mark()
			d.edit("web:9")
			d.run()
			next := d.sets[len(d.sets)-1].revision
			require.Equal(t, []string{fmt.Sprintf("started %d", next), fmt.Sprintf("completed %d", next)}, d.since(mark))
			require.Equal(t, events.ChangeUpdated, d.last(events.FactCompleted).Rollout.Change)
		})
	}
}

// The counts of a slow controller belong to the previous template, so its view is not applied yet.
func TestReselectedDaemonSetWithSlowController(t *testing.T) {
	t.Parallel()
	d := newDaemonSet(t, 1)
	d.create(3, "web:1")
	d.run()
	d.edit("web:2")
	d.step()
	require.Equal(t, []string{"started 1", "completed 1", "started 2"}, d.factNames())
	d.deliver(rollout.Input{ObservedAt: d.now, Released: true})
	before := d.mark()
	d.spec(func() {}) // no change of the template
	d.run()
	require.Empty(t, d.since(before), "the rollout has ended already")
}

func TestRestoredCluster(t *testing.T) {
	t.Parallel()
	d := settled(t, 3)
	d.edit("web:2")
	d.run()
	d.edit("web:3")
	d.step()
	mark := d.mark()
	restored := func(in rollout.Input) rollout.Input {
		in.Epoch = 1
		return in
	}
	// The cluster is restored to the time when revision 2 was complete.
	d.generation--
	d.observed, d.revision = d.generation, 2
	d.tpl = d.sets[1].tpl
	d.sets = d.sets[:2]
	d.status.Total, d.status.Updated, d.status.Ready, d.status.Available = 3, 3, 3, 3
	d.rv = 50
	members := d.relist()
	for i := range members {
		d.rv++
		if members[i].Workload != nil {
			members[i].Workload.Object.FirstSeen = true
			members[i].Workload.Object.ResourceVersion = "51"
		} else {
			members[i].Revision.Object.FirstSeen = true
			members[i].Revision.Object.ResourceVersion = "52"
		}
		d.send(restored(members[i]))
	}
	require.Equal(t, []string{"gap [3]", "unknown 3"}, d.since(mark))
	require.Equal(t, events.CauseClusterRestored, d.last(events.FactGap).Gap.Cause)
	next := d.observation(events.VerbUpserted)
	d.deliver(next)
	require.Len(t, d.since(mark), 2, "observations of the previous epoch have no effect")
}

func TestTimesComeFromTheCluster(t *testing.T) {
	t.Parallel()
	d := settled(t, 2)
	d.now = d.now.Add(time.Hour)
	d.edit("web:2")
	d.run()
	started, completed := d.last(events.FactStarted), d.last(events.FactCompleted)
	require.Equal(t, d.sets[1].created, started.OccurredAt)
	require.Equal(t, events.TimeSourceCreationTimestamp, started.TimeSource)
	require.Equal(t, *d.progress.LastUpdateTime, completed.OccurredAt)
	require.Equal(t, completed.ObservedAt.Sub(*completed.Rollout.StartedObservedAt).Milliseconds(),
		int64(*completed.DurationMs))
	require.Equal(t, "web:1", started.Rollout.PreviousImages[0].Image)

	d.now = d.now.Add(time.Hour)
	d.undo(1)
	wrote := d.written
	d.run()
	require.Equal(t, wrote, d.last(events.FactStarted).OccurredAt, "not the creation of the reused ReplicaSet")
	require.Equal(t, events.TimeSourceManagedFields, d.last(events.FactStarted).TimeSource)
	require.Equal(t, 1, d.last(events.FactCompleted).Rollout.OfRevision)

	d.now = d.now.Add(time.Hour)
	d.strategy = "Recreate"
	d.edit("web:3")
	wrote, seen := d.written, d.now
	d.run()
	require.Greater(t, d.sets[2].created, wrote)
	require.Equal(t, wrote, d.last(events.FactStarted).OccurredAt, "not the later creation of the ReplicaSet")
	require.Equal(t, seen, d.last(events.FactStarted).ObservedAt)

	d.now = d.now.Add(time.Hour)
	d.delete()
	require.Equal(t, d.now, d.last(events.FactRemoved).OccurredAt)
}

func TestProgressIsThrottledAndCompletedHasLastCounts(t *testing.T) {
	t.Parallel()
	d := settled(t, 60)
	mark := len(d.facts)
	d.edit("web:2")
	d.run()
	var at time.Time
	count := 0
	for _, f := range d.facts[mark:] {
		if f.Fact == events.FactProgressed {
			count++
			require.Equal(t, count, f.Ordinal)
			require.GreaterOrEqual(t, f.ObservedAt.Sub(at), 2*time.Second)
			at = f.ObservedAt
		}
	}
	require.Positive(t, count)
	require.Equal(t, 60, d.last(events.FactCompleted).Counts.Updated)

	d.slow = true
	d.edit("web:3")
	d.step()
	d.step()
	require.NotEqual(t, events.FactProgressed, d.facts[len(d.facts)-1].Fact)
	require.False(t, d.state.Wake().IsZero())
	d.wait(15 * time.Second)
	require.Equal(t, events.FactProgressed, d.facts[len(d.facts)-1].Fact, "a tick publishes the due counts")
}

func TestDrainedNeedsTerminatingCount(t *testing.T) {
	t.Parallel()
	d := settled(t, 2)
	require.Equal(t, 1, d.last(events.FactDrained).Rollout.Revision)
	d.lingering = true
	d.edit("web:2")
	d.run()
	require.Equal(t, 2, d.last(events.FactCompleted).Rollout.Revision)
	require.Equal(t, 1, d.last(events.FactDrained).Rollout.Revision, "old pods still terminate")
	d.lingering = false
	d.run()
	require.Equal(t, 2, d.last(events.FactDrained).Rollout.Revision)
	require.Greater(t, d.last(events.FactDrained).OccurredAt, d.last(events.FactCompleted).OccurredAt)

	old := newDeployment(t, 1)
	old.create(1, "web:1")
	var facts []events.DeployFact
	state := rollout.New(old.state.Key)
	old.run()
	for _, in := range old.log {
		if in.Workload != nil {
			in.Workload.TerminatingReplicas = nil
		}
		var more []events.DeployFact
		state, more = rollout.Advance(state, in)
		facts = append(facts, more...)
	}
	require.Equal(t, events.FactCompleted, facts[len(facts)-1].Fact)
}

func TestRefusedReplicaSetBlocksBeforeRollout(t *testing.T) {
	t.Parallel()
	d := settled(t, 2)
	d.edit("web:2")
	refused := d.observation(events.VerbUpserted)
	at := d.second()
	refused.Workload.Conditions = []events.Condition{{
		Type: "Progressing", Status: "False", Reason: "ReplicaSetCreateError", Message: "quota", LastUpdateTime: &at,
	}}
	d.send(refused)
	require.Equal(t, []string{"blocked"}, d.since(2))
	require.Equal(t, "the cluster refuses to create its ReplicaSet: quota", d.last(events.FactBlocked).Message)
	status := d.state.Status()
	require.Equal(t, rollout.Failed, status.State, "it fails its environment")
	require.Equal(t, "the cluster refuses to create its ReplicaSet: quota", status.Message)
	d.run()
	require.Equal(t, []string{"blocked", "unblocked", "started 2", "completed 2"}, d.since(2))
}

func TestFactsOfTwoAgentsInOneClusterArePublishedOnce(t *testing.T) {
	t.Parallel()
	d := settled(t, 2)
	d.edit("web:2")
	d.run()
	names := d.factNames()
	for _, in := range d.log {
		in.AgentID = 8
		d.log = nil
		d.deliver(in)
	}
	require.Equal(t, names, d.factNames())
	d.deliver(rollout.Input{AgentID: 8, ObservedAt: d.now, Absence: &rollout.Absence{ListVersion: "99999"}})
	require.Equal(t, names, d.factNames(), "an agent that never reported the workload cannot report its absence")
	d.deliver(rollout.Input{AgentID: 7, ObservedAt: d.now, Absence: &rollout.Absence{ListVersion: "50"}})
	require.Equal(t, names, d.factNames(), "the list is older than the known version")
}

func TestSkippedVersionsAreReportedInGap(t *testing.T) {
	t.Parallel()
	d := settled(t, 3)
	d.edit("web:2")
	d.step()
	d.down = true
	d.run()
	d.edit("web:3")
	d.step()
	d.down = false
	d.writeSet(d.sets[2])
	in := d.observation(events.VerbUpserted)
	in.Workload.SkippedVersions = 300
	d.send(in)
	d.run()
	require.Equal(t, []string{"started 2", "gap [2]", "unknown 2", "started 3", "completed 3"}, d.since(2))
	require.Equal(t, events.CauseVersionsSkipped, d.last(events.FactGap).Gap.Cause)
	require.Equal(t, events.ProvenanceReconstructed, d.last(events.FactStarted).Provenance)
}

func TestLaterSelectedWorkloadIsBaseline(t *testing.T) {
	t.Parallel()
	d := newDeployment(t, 1)
	d.stop()
	d.create(3, "web:1")
	d.run()
	d.down = false
	in := d.observation(events.VerbUpserted) // the label was set while the watcher was running
	d.send(in)
	d.writeSet(d.sets[0])
	require.Empty(t, d.factNames())

	later := newDeployment(t, 1)
	later.stop()
	later.create(3, "web:1")
	later.run()
	later.down = false
	for _, in := range later.relist() { // the label was set while the watcher was down
		if in.Workload != nil {
			in.Workload.Object.FirstSeen = true
		}
		in.HasBaseline, in.BaselineAt = true, later.created.Add(time.Minute)
		later.send(in)
	}
	require.Empty(t, later.factNames())
	later.edit("web:2")
	later.run()
	require.Equal(t, []string{"started 2", "completed 2"}, later.factNames())
}

func TestUnobservedDeletion(t *testing.T) {
	t.Parallel()
	d := settled(t, 3)
	d.edit("web:2")
	d.step()
	in := d.observation(events.VerbDeleted)
	in.Workload.Object.ResourceVersion = d.version // a synthesized deletion has the last known version
	d.now = d.now.Add(time.Second)
	d.send(in)
	require.Equal(t, []string{"started 2", "gap [2]", "unknown 2", "removed"}, d.since(2),
		"it may have completed before")
	require.Equal(t, events.CauseVersionsSkipped, d.last(events.FactGap).Gap.Cause)
}

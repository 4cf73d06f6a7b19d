package rollout_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/rollout"
)

// deliverHeld delivers the backlog: first what first selects, then the rest.
func (l *fixture) deliverHeld(first func(in rollout.Input) bool) {
	var rest []rollout.Input
	for _, in := range l.backlog {
		if first(in) {
			l.deliver(in)
		} else {
			rest = append(rest, in)
		}
	}
	for _, in := range rest {
		l.deliver(in)
	}
	l.backlog, l.held = nil, false
}

func isWorkload(in rollout.Input) bool { return in.Workload != nil }

// newRevision returns the observation of a ReplicaSet that the controller creates for the template, before it writes
// its number to the Deployment.
func (d *deployment) newRevision(revision int) rollout.Input {
	return d.setObservation(&replicaSet{
		name: "web-" + d.tpl.hash(), uid: d.uid("rs"), tpl: d.tpl, created: d.second(), revision: revision,
	}, events.VerbUpserted)
}

// The observations of a workload may arrive before those of its revisions. A revision has its facts however late it is.
func TestRevisionObservedLateHasItsFacts(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		run  func(d *deployment)
		want []string
	}{
		"after the deletion": {func(d *deployment) {
			d.edit("web:2")
			late := d.newRevision(2)
			d.delete()
			d.deliver(late)
			d.wait(time.Minute)
		}, []string{"started 2", "cancelled 2"}},
		"never: its controller created none before the deletion": {func(d *deployment) {
			d.edit("web:2")
			d.delete()
			d.wait(time.Minute)
		}, []string{"removed"}},
		"edited back: the view names an earlier number": {func(d *deployment) {
			d.held = true
			d.edit("web:2")
			d.sync()
			d.edit("web:1")
			d.run()
			d.delete()
			d.deliverHeld(isWorkload)
			d.wait(time.Minute)
		}, []string{"started 2", "cancelled 2", "started 3", "rolled_back 3", "completed 3", "removed"}},
		"the number was that of a ReplicaSet that was deleted by hand": {func(d *deployment) {
			d.edit("web:2")
			d.run()
			d.held = true
			d.slow = true
			d.undo(1)
			d.sync()
			d.sync()
			d.deleteSet()
			d.slow = false
			d.edit("web:3")
			d.run()
			newest := d.newestSet().name
			d.deliverHeld(func(in rollout.Input) bool { return isWorkload(in) || in.Revision.Object.Name == newest })
		}, []string{
			"started 2", "completed 2", "started 3", "rolled_back 3", "superseded 3", "started 3", "completed 3",
		}},
		"its ReplicaSet was deleted by hand before the Deployment had its number": {func(d *deployment) {
			d.edit("web:2")
			d.run()
			d.edit("web:3")
			d.run()
			d.pause()
			d.run()
			d.undo(1)
			d.sync()
			d.deleteSet()
			d.held = true
			d.undo(2)
			d.run()
			d.deliverHeld(isWorkload)
		}, []string{
			"started 2", "completed 2", "started 3", "completed 3", "started 4", "rolled_back 4", "superseded 4", "started 4",
			"rolled_back 4", "paused 4",
		}},
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

// A name in a status is that of a revision of the previous object only if no later number of it can exist.
func TestRevisionNamedAgainIsNotForeign(t *testing.T) {
	t.Parallel()
	s := newStatefulSet(t, 1)
	s.create(2, "web:1")
	s.run()
	mark := s.mark()
	s.held = true
	s.edit("web:2")
	s.sync()
	again, versions := s.update, 0
	s.edit("web:3")
	s.run()
	s.edit("web:2")
	s.run()
	s.deliverHeld(func(in rollout.Input) bool {
		if isWorkload(in) {
			return true
		}
		if in.Revision.Object.Name == again {
			versions++
		}
		return in.Revision.Object.Name == again && versions == 1
	})
	require.Equal(t, []string{
		"started 2", "superseded 2", "started 3", "completed 3", "started 4", "rolled_back 4", "completed 4",
	}, s.since(mark))
}

// Nobody knows how a rollout ended that began and was replaced while no watcher ran. The versions after it may have its
// number, but the template or the counts of a later one.
func TestEndWithinOutageIsUnknown(t *testing.T) {
	t.Parallel()
	t.Run("the Deployment was edited again", func(t *testing.T) {
		t.Parallel()
		d := settled(t, 2)
		mark := d.mark()
		d.stop()
		d.edit("web:2")
		d.run()
		d.edit("web:3")
		d.start()
		require.Equal(t, []string{"started 2"}, d.since(mark))
		require.Empty(t, d.last(started).Rollout.Images, "the template may be a newer one")
		d.run()
		require.Equal(t, []string{"started 2", "gap [2]", "unknown 2", "started 3", "completed 3"}, d.since(mark))
	})
	t.Run("the StatefulSet was edited and edited back", func(t *testing.T) {
		t.Parallel()
		s := newStatefulSet(t, 1)
		s.create(2, "web:1")
		s.run()
		mark := s.mark()
		s.stop()
		s.edit("web:2")
		s.run()
		s.edit("web:1")
		s.run()
		s.restart()
		s.start()
		require.Equal(t, []string{"gap [2]", "started 2", "unknown 2", "started 3", "rolled_back 3"}, s.since(mark))
		s.run()
		require.Equal(t, []string{"gap [3]", "unknown 3", "started 4", "completed 4"}, s.since(mark+5))
	})
}

// What the stream shows of a revision is reported, also if nobody saw what became of it.
func TestRevisionWithoutViewIsInGap(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		run  func(d *deployment)
		want []string
	}{
		"deleted in an outage": {func(d *deployment) {
			d.edit("web:2")
			d.send(d.newRevision(2))
			d.stop()
			d.delete()
			d.start()
		}, []string{"gap [2]", "removed"}},
		"deleted in an outage, nothing was observed before": {func(d *deployment) {
			d.stop()
			d.edit("web:2")
			d.run()
			d.delete()
			d.start()
		}, []string{"gap []", "removed"}},
		"unselected": {func(d *deployment) {
			d.edit("web:2")
			d.send(d.newRevision(2))
			d.unselect()
		}, []string{"gap [2]"}},
		"only its deletion was observed": {func(d *deployment) {
			d.delete()
			d.stop()
			d.create(1, "web:1")
			d.down = false
			d.send(d.newRevision(1))
			d.delete()
			d.wait(time.Minute)
		}, []string{"removed", "gap [1]", "removed"}},
		"the cluster was restored": {func(d *deployment) {
			d.edit("web:2")
			d.send(d.newRevision(2))
			d.tpl, d.generation, d.version, d.sets[0].version = d.sets[0].tpl, 1, "51", "52"
			for _, in := range d.relist() {
				in.Epoch = 1
				d.send(in)
			}
		}, []string{"gap [2]"}},
		"only its revisions were observed": {func(d *deployment) {
			d.delete()
			d.stop()
			d.create(1, "web:1")
			d.down = false
			d.send(d.newRevision(1))
			d.down = true
			d.delete()
			d.start()
		}, []string{"removed", "gap [1]", "removed"}},
		"only revisions of its successor were observed": {func(d *deployment) {
			d.stop()
			d.delete()
			d.create(1, "web:1")
			d.down = false
			d.send(d.newRevision(1))
			d.down = true
			d.delete()
			d.start()
		}, []string{"gap []", "removed", "gap [1]", "removed"}},
		"the number may have been reused": {func(d *deployment) {
			d.edit("web:2")
			d.run()
			d.pause()
			d.run()
			d.deleteSet()
			d.stop()
			d.edit("web:3")
			d.resume()
			d.run()
			d.edit("web:4")
			d.run()
			newest := d.newestSet()
			d.sets = []*replicaSet{newest} // the other one is deleted, too
			d.start()
			d.wait(time.Minute)
		}, []string{"started 2", "completed 2", "gap [2]", "started 3", "completed 3"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := settled(t, 2)
			mark := d.mark()
			tc.run(d)
			require.Equal(t, tc.want, d.since(mark))
		})
	}
}

// A paused Deployment reuses an earlier ReplicaSet and then the newest one again. Its versions have the number of that
// one all the time, and it has no pods, so only the ReplicaSets show what happened.
func TestVersionWithoutPodsWaitsForNumbersOfReusedReplicaSets(t *testing.T) {
	t.Parallel()
	d := newDeployment(t, 1)
	d.quota = true
	d.create(1, "web:1")
	d.run()
	d.edit("web:2")
	d.run()
	d.pause()
	d.run()
	mark := d.mark()
	d.held = true
	d.undo(1)
	d.sync()
	d.scale(0)
	d.undo(2)
	d.sync()
	require.Equal(t, []int{3, 4, 2}, []int{d.sets[0].revision, d.sets[1].revision, d.revision})
	newest := d.sets[1].uid
	d.deliverHeld(func(in rollout.Input) bool { return in.Revision == nil || in.Revision.Object.UID != newest })
	d.run()
	require.Equal(t, []string{
		"unblocked 2", "scale_started 1→0", "blocked 2", "scale_completed 1→0", "superseded 2", "started 3",
		"rolled_back 3", "superseded 3", "started 4", "rolled_back 4", "paused 4", "blocked 4", "completed 4",
	}, d.since(mark))
}

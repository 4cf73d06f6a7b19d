package rollout_test

import (
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
)

// scenarios returns scenarios by fact, for each kind of workload. Some of them check that the fact is not published.
func scenarios() map[string][]scenario {
	return map[string][]scenario{
		"started": {
			onDeployment("a template above the last known one", func(d *deployment) {
				d.edit("web:2")
				d.sync()
			}, started),
			onDeployment("Recreate: the new ReplicaSet is created late", func(d *deployment) {
				d.strategy = "Recreate"
				d.edit("web:2")
				d.run()
			}, started, completed, drained),
			onDeployment("not by an edit of a paused Deployment", func(d *deployment) {
				d.pause()
				d.edit("web:2")
				d.run()
			}),
			onDeployment("not by a recreated ReplicaSet", func(d *deployment) {
				d.deleteSet()
				d.run()
			}),
			onDeployment("a ReplicaSet with the revision of one that was deleted by hand", func(d *deployment) {
				d.edit("web:2")
				d.run()
				d.pause()
				d.deleteSet()
				d.edit("web:3")
				d.resume()
				d.run()
			}, started, completed, drained, started, completed, drained),
			onDeployment("the same at 0 replicas", func(d *deployment) {
				d.spec(func() { d.replicas = 0; d.tpl.image = "web:2" })
				d.run()
				d.deleteSet()
				d.edit("web:3")
				d.run()
			}, started, completed, drained, started, completed, drained),
			onStatefulSet("an update revision above the last known one", func(s *statefulSet) {
				s.edit("web:2")
				s.sync()
			}, started),
			onDaemonSet("a template generation above the last known one", func(d *daemonSet) {
				d.edit("web:2")
			}, started),
		},
		"progressed": {
			onDeployment("", func(d *deployment) {
				d.slow = true
				d.edit("web:2")
				d.sync()
				d.now = d.now.Add(3 * time.Second)
				d.run()
			}, started, progressed),
			onStatefulSet("", func(s *statefulSet) {
				s.edit("web:2")
				for range 9 {
					s.now = s.now.Add(time.Second)
					s.step()
				}
			}, started, progressed, completed),
			onDaemonSet("", func(d *daemonSet) {
				d.slow = true
				d.edit("web:2")
				d.now = d.now.Add(3 * time.Second)
				d.run()
			}, started, progressed),
			onDeployment("throttled", func(d *deployment) {
				d.slow = true
				d.edit("web:2")
				d.run()
			}, started),
		},
		"completed": {
			onDeployment("all pods are new and available", func(d *deployment) {
				d.edit("web:2")
				d.run()
			}, started, completed, drained),
			onDeployment("not while one is unavailable", func(d *deployment) {
				d.slow = true
				d.edit("web:2")
				d.run()
			}, started),
			onDeployment("not by the condition of the previous ReplicaSet", func(d *deployment) {
				d.edit("web:2")
				d.run()
				d.slow = true
				d.undo(1)
				require.Equal(d.t, "NewReplicaSetAvailable", d.progress.Reason)
				d.run()
			}, started, completed, drained, started, rolledBack),
			onStatefulSet("the update revision is the current one", func(s *statefulSet) {
				s.edit("web:2")
				s.run()
			}, started, completed),
			onStatefulSet("OnDelete by counts", func(s *statefulSet) {
				s.strategy = "OnDelete"
				s.edit("web:2")
				for i := range 3 {
					s.run()
					s.deletePod(i)
				}
				s.run()
			}, started, completed),
			onDaemonSet("all desired nodes have an updated pod", func(d *daemonSet) {
				d.edit("web:2")
				d.run()
			}, started, completed),
			onDaemonSet("OnDelete by counts", func(d *daemonSet) {
				d.strategy = "OnDelete"
				d.edit("web:2")
				for i := range 3 {
					d.run()
					d.nodes[i].gone = true
				}
				d.run()
			}, started, completed),
		},
		"drained": {
			onDeployment("after completed, when the old pods have terminated", func(d *deployment) {
				d.lingering = true
				d.edit("web:2")
				d.run()
				require.NotEqual(d.t, drained, d.facts[len(d.facts)-1].Fact)
				d.lingering = false
				d.run()
			}, started, completed, drained),
			onStatefulSet("never: the status does not count terminating pods", func(s *statefulSet) {
				s.restart()
				s.run()
				s.wait(time.Hour)
			}, started, restarted, completed),
			onDaemonSet("never: the status does not count terminating pods", func(d *daemonSet) {
				d.restart()
				d.run()
				d.wait(time.Hour)
			}, started, restarted, completed),
		},
		"stalled and recovered": {
			onDeployment("by the controller's deadline", func(d *deployment) {
				d.slow = true
				d.edit("web:2")
				d.run()
				d.late = true
				d.run()
				d.slow, d.late = false, false
				d.run()
			}, started, stalled, recovered, completed, drained),
			onDeployment("not by the condition of the rollout that was rolled back", func(d *deployment) {
				d.slow = true
				d.edit("web:2")
				d.run()
				d.late = true
				d.run()
				d.undo(1)
				d.sync()
				d.sync()
			}, started, stalled, cancelled, started, rolledBack),
			onDeployment("by the default deadline if the Deployment has none", func(d *deployment) {
				d.deadline, d.slow = nil, true
				d.edit("web:2")
				d.run()
				d.wait(11 * time.Minute)
				d.slow = false
				d.run()
			}, started, stalled, recovered, completed, drained),
			onStatefulSet("by the default deadline", func(s *statefulSet) {
				s.slow = true
				s.edit("web:2")
				s.run()
				s.wait(11 * time.Minute)
				s.slow = false
				s.run()
			}, started, stalled, recovered, completed),
			onDaemonSet("by the default deadline", func(d *daemonSet) {
				d.slow = true
				d.edit("web:2")
				d.run()
				d.wait(11 * time.Minute)
				d.slow = false
				d.run()
			}, started, stalled, recovered, completed),
		},
		"blocked": {
			onDeployment("pods cannot be created", func(d *deployment) {
				d.quota = true
				d.edit("web:2")
				d.run()
				d.quota = false
				d.run()
			}, started, blocked, unblocked, completed, drained),
			onDeployment("the ReplicaSet cannot be created", func(d *deployment) {
				d.edit("web:2")
				refused := d.observation(events.VerbUpserted)
				refused.Workload.Conditions = []events.Condition{{
					Type: "Progressing", Status: "False", Reason: "ReplicaSetCreateError",
					Message: `Failed to create new replica set "web-x": quota`,
				}}
				d.send(refused)
				d.run()
			}, blocked, unblocked, started, completed, drained),
		},
		"paused and resumed": {
			onDeployment("in flight", func(d *deployment) {
				d.slow = true
				d.edit("web:2")
				d.step()
				d.pause()
				d.run()
				d.resume()
				d.slow = false
				d.run()
			}, started, paused, resumed, completed, drained),
			onDeployment("not when idle", func(d *deployment) {
				d.pause()
				d.run()
				d.resume()
				d.run()
			}),
		},
		"superseded": {
			onDeployment("", func(d *deployment) {
				d.edit("web:2")
				d.step()
				d.edit("web:3")
				d.run()
			}, started, superseded, started, completed, drained),
			onStatefulSet("", func(s *statefulSet) {
				s.edit("web:2")
				s.step()
				s.edit("web:3")
				s.run()
			}, started, superseded, started, completed),
			onDaemonSet("", func(d *daemonSet) {
				d.edit("web:2")
				d.step()
				d.edit("web:3")
				d.run()
			}, started, superseded, started, completed),
		},
		"cancelled": {
			onDeployment("deleted in flight", func(d *deployment) {
				d.edit("web:2")
				d.step()
				d.delete()
			}, started, cancelled),
			onDeployment("rolled back", func(d *deployment) {
				d.edit("web:2")
				d.step()
				d.edit("web:1")
				d.run()
			}, started, cancelled, started, rolledBack, completed, drained),
			onStatefulSet("deleted in flight", func(s *statefulSet) {
				s.edit("web:2")
				s.step()
				s.delete()
			}, started, cancelled),
			onStatefulSet("rolled back", func(s *statefulSet) {
				s.edit("web:2")
				s.step()
				s.edit("web:1")
				s.run()
			}, started, cancelled, started, rolledBack, completed),
			onDaemonSet("deleted in flight", func(d *daemonSet) {
				d.edit("web:2")
				d.step()
				d.delete()
			}, started, cancelled),
			onDaemonSet("rolled back", func(d *daemonSet) {
				d.edit("web:2")
				d.step()
				d.edit("web:1")
				d.run()
			}, started, cancelled, started, rolledBack, completed),
		},
		"rolled back": {
			onDeployment("to a ReplicaSet with a history", func(d *deployment) {
				d.edit("web:2")
				d.run()
				d.undo(1)
				d.sync()
				d.sync()
				require.Equal(d.t, 1, d.last(rolledBack).Rollout.OfRevision)
			}, started, completed, drained, started, rolledBack),
			onDeployment("to the images of a deleted ReplicaSet", func(d *deployment) {
				d.keep = 0
				d.edit("web:2")
				d.run()
				d.setEnv("other")
				d.run()
				d.edit("web:1")
				d.sync()
				require.Equal(d.t, 1, d.last(rolledBack).Rollout.OfRevision)
			}, started, completed, drained, started, completed, drained, started, rolledBack),
			onStatefulSet("to a ControllerRevision that gets a new number", func(s *statefulSet) {
				s.edit("web:2")
				s.run()
				s.edit("web:1")
				s.sync()
				require.Equal(s.t, 1, s.last(rolledBack).Rollout.OfRevision)
			}, started, completed, started, rolledBack),
			onDaemonSet("to an earlier template", func(d *daemonSet) {
				d.edit("web:2")
				d.run()
				d.edit("web:1")
				require.Equal(d.t, 1, d.last(rolledBack).Rollout.OfRevision)
			}, started, completed, started, rolledBack),
		},
		"restarted": {
			onDeployment("", func(d *deployment) {
				d.restart()
				d.sync()
			}, started, restarted),
			onDeployment("not by a changed environment variable", func(d *deployment) {
				d.setEnv("other")
				d.sync()
			}, started),
			onStatefulSet("", func(s *statefulSet) {
				s.restart()
				s.sync()
			}, started, restarted),
			onDaemonSet("", func(d *daemonSet) {
				d.restart()
			}, started, restarted),
		},
		"removed": {
			onDeployment("deleted", func(d *deployment) { d.delete() }, removed),
			onDeployment("absent from a list", func(d *deployment) {
				d.stop()
				d.delete()
				d.start()
			}, gap, removed),
			onStatefulSet("deleted", func(s *statefulSet) { s.delete() }, removed),
			onStatefulSet("absent from a list", func(s *statefulSet) {
				s.stop()
				s.delete()
				s.start()
			}, gap, removed),
			onStatefulSet("replaced by a new object with the same name", func(s *statefulSet) {
				s.stop()
				s.delete()
				s.create(1, "web:1")
				s.run()
				s.start()
			}, gap, removed, started, completed),
			onDaemonSet("deleted", func(d *daemonSet) { d.delete() }, removed),
			onDaemonSet("absent from a list", func(d *daemonSet) {
				d.stop()
				d.delete()
				d.start()
			}, gap, removed),
			onDaemonSet("replaced by a new object with the same name", func(d *daemonSet) {
				d.stop()
				d.delete()
				d.create(1, "web:1")
				d.run()
				d.start()
			}, gap, removed, started, completed),
		},
		"unknown": {
			onDeployment("deleted in an outage", func(d *deployment) {
				d.edit("web:2")
				d.step()
				d.stop()
				d.delete()
				d.start()
			}, started, gap, unknown, removed),
			onStatefulSet("deleted in an outage", func(s *statefulSet) {
				s.edit("web:2")
				s.step()
				s.stop()
				s.delete()
				s.start()
			}, started, gap, unknown, removed),
			onDaemonSet("deleted in an outage", func(d *daemonSet) {
				d.edit("web:2")
				d.step()
				d.stop()
				d.delete()
				d.start()
			}, started, gap, unknown, removed),
		},
		"gap": {
			onDeployment("a revision replaced within an outage", func(d *deployment) {
				d.stop()
				d.keep = 0
				d.edit("web:2")
				d.run()
				d.edit("web:3")
				d.run()
				d.start()
				d.wait(time.Minute)
			}, gap, started, completed, drained),
			onStatefulSet("a revision replaced within an outage", func(s *statefulSet) {
				s.stop()
				s.edit("web:2")
				s.run()
				s.edit("web:3")
				s.run()
				s.start()
			}, gap, started, unknown, started, completed),
			onDaemonSet("a template replaced within an outage", func(d *daemonSet) {
				d.stop()
				d.edit("web:2")
				d.run()
				d.edit("web:3")
				d.run()
				d.start()
			}, gap, started, completed),
		},
		"scaled": {
			onDeployment("idle", func(d *deployment) {
				d.scale(5)
				d.run()
				require.NotNil(d.t, d.last(scaleCompleted).DurationMs)
			}, scaleStarted, scaleCompleted),
			onDeployment("in flight", func(d *deployment) {
				d.edit("web:2")
				d.step()
				d.scale(4)
				d.run()
				require.True(d.t, d.last(completed).Rollout.ScaledDuring)
				require.Equal(d.t, 3, d.last(completed).Rollout.ReplicasAtStart)
			}, started, scaleStarted, scaleCompleted, completed, drained),
			onStatefulSet("idle", func(s *statefulSet) {
				s.scale(5)
				s.run()
			}, scaleStarted, scaleCompleted),
			onStatefulSet("in flight", func(s *statefulSet) {
				s.edit("web:2")
				s.step()
				s.scale(4)
				s.run()
				require.True(s.t, s.last(completed).Rollout.ScaledDuring)
			}, started, scaleStarted, completed, scaleCompleted),
			onDaemonSet("never: nodes are added and removed", func(d *daemonSet) {
				d.addNode()
				d.run()
				d.loseNode()
				d.run()
			}),
		},
		"partition reached": {
			onStatefulSet("step by step, in one rollout", func(s *statefulSet) {
				s.setPartition(2)
				s.edit("web:2")
				s.run()
				id := s.last(partitionReached).Rollout.ID
				s.setPartition(1)
				s.run()
				s.setPartition(0)
				s.run()
				require.Equal(s.t, id, s.last(completed).Rollout.ID)
			}, started, partitionReached, partitionReached, completed),
		},
	}
}

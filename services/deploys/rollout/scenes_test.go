package rollout_test

import (
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
)

// facts returns scenes of each fact and kind of workload, including scenes without the fact.
func facts() map[string][]scene {
	return map[string][]scene{
		"started": {
			deploymentScene("a template above the last known one", func(d *deployment) {
				d.edit("web:2")
				d.sync()
			}, started),
			deploymentScene("Recreate, whose new ReplicaSet comes late", func(d *deployment) {
				d.strategy = "Recreate"
				d.edit("web:2")
				d.run()
			}, started, completed, drained),
			deploymentScene("not by an edit while it is paused", func(d *deployment) {
				d.pause()
				d.edit("web:2")
				d.run()
			}),
			deploymentScene("not by a ReplicaSet that is made anew", func(d *deployment) {
				d.deleteSet()
				d.run()
			}),
			deploymentScene("a ReplicaSet that took the number of one that was deleted by hand", func(d *deployment) {
				d.edit("web:2")
				d.run()
				d.pause()
				d.deleteSet()
				d.edit("web:3")
				d.resume()
				d.run()
			}, started, completed, drained, started, completed, drained),
			deploymentScene("the same at 0 replicas", func(d *deployment) {
				d.spec(func() { d.replicas = 0; d.tpl.image = "web:2" })
				d.run()
				d.deleteSet()
				d.edit("web:3")
				d.run()
			}, started, completed, drained, started, completed, drained),
			statefulSetScene("an update revision above the last known one", func(s *statefulSet) {
				s.edit("web:2")
				s.sync()
			}, started),
			daemonSetScene("a template generation above the last known one", func(d *daemonSet) {
				d.edit("web:2")
			}, started),
		},
		"progressed": {
			deploymentScene("", func(d *deployment) {
				d.slow = true
				d.edit("web:2")
				d.sync()
				d.now = d.now.Add(3 * time.Second)
				d.run()
			}, started, progressed),
			statefulSetScene("", func(s *statefulSet) {
				s.edit("web:2")
				for range 9 {
					s.now = s.now.Add(time.Second)
					s.step()
				}
			}, started, progressed, completed),
			daemonSetScene("", func(d *daemonSet) {
				d.slow = true
				d.edit("web:2")
				d.now = d.now.Add(3 * time.Second)
				d.run()
			}, started, progressed),
			deploymentScene("throttled", func(d *deployment) {
				d.slow = true
				d.edit("web:2")
				d.run()
			}, started),
		},
		"completed": {
			deploymentScene("all pods are new and available", func(d *deployment) {
				d.edit("web:2")
				d.run()
			}, started, completed, drained),
			deploymentScene("not while one is unavailable", func(d *deployment) {
				d.slow = true
				d.edit("web:2")
				d.run()
			}, started),
			deploymentScene("not by the verdict on the ReplicaSet before", func(d *deployment) {
				d.edit("web:2")
				d.run()
				d.slow = true
				d.undo(1)
				require.Equal(d.t, "NewReplicaSetAvailable", d.progress.Reason)
				d.run()
			}, started, completed, drained, started, rolledBack),
			statefulSetScene("the update revision is the current one", func(s *statefulSet) {
				s.edit("web:2")
				s.run()
			}, started, completed),
			statefulSetScene("OnDelete by counts", func(s *statefulSet) {
				s.strategy = "OnDelete"
				s.edit("web:2")
				for i := range 3 {
					s.run()
					s.killPod(i)
				}
				s.run()
			}, started, completed),
			daemonSetScene("as many nodes as are desired have it", func(d *daemonSet) {
				d.edit("web:2")
				d.run()
			}, started, completed),
			daemonSetScene("OnDelete by counts", func(d *daemonSet) {
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
			deploymentScene("later than completed, when the old pods are gone", func(d *deployment) {
				d.lingering = true
				d.edit("web:2")
				d.run()
				require.NotEqual(d.t, drained, d.facts[len(d.facts)-1].Fact)
				d.lingering = false
				d.run()
			}, started, completed, drained),
			statefulSetScene("never: its status does not count pods that terminate", func(s *statefulSet) {
				s.restart()
				s.run()
				s.wait(time.Hour)
			}, started, restarted, completed),
			daemonSetScene("never: its status does not count pods that terminate", func(d *daemonSet) {
				d.restart()
				d.run()
				d.wait(time.Hour)
			}, started, restarted, completed),
		},
		"stalled and recovered": {
			deploymentScene("by the controller's deadline", func(d *deployment) {
				d.slow = true
				d.edit("web:2")
				d.run()
				d.late = true
				d.run()
				d.slow, d.late = false, false
				d.run()
			}, started, stalled, recovered, completed, drained),
			deploymentScene("not by the verdict on the one that was undone", func(d *deployment) {
				d.slow = true
				d.edit("web:2")
				d.run()
				d.late = true
				d.run()
				d.undo(1)
				d.sync()
				d.sync()
			}, started, stalled, cancelled, started, rolledBack),
			deploymentScene("by own timer, where it has no deadline", func(d *deployment) {
				d.deadline, d.slow = nil, true
				d.edit("web:2")
				d.run()
				d.wait(11 * time.Minute)
				d.slow = false
				d.run()
			}, started, stalled, recovered, completed, drained),
			statefulSetScene("by own timer", func(s *statefulSet) {
				s.slow = true
				s.edit("web:2")
				s.run()
				s.wait(11 * time.Minute)
				s.slow = false
				s.run()
			}, started, stalled, recovered, completed),
			daemonSetScene("by own timer", func(d *daemonSet) {
				d.slow = true
				d.edit("web:2")
				d.run()
				d.wait(11 * time.Minute)
				d.slow = false
				d.run()
			}, started, stalled, recovered, completed),
		},
		"blocked": {
			deploymentScene("pods are refused", func(d *deployment) {
				d.quota = true
				d.edit("web:2")
				d.run()
				d.quota = false
				d.run()
			}, started, blocked, unblocked, completed, drained),
			deploymentScene("the ReplicaSet is refused", func(d *deployment) {
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
			deploymentScene("in flight", func(d *deployment) {
				d.slow = true
				d.edit("web:2")
				d.step()
				d.pause()
				d.run()
				d.resume()
				d.slow = false
				d.run()
			}, started, paused, resumed, completed, drained),
			deploymentScene("not when idle", func(d *deployment) {
				d.pause()
				d.run()
				d.resume()
				d.run()
			}),
		},
		"superseded": {
			deploymentScene("", func(d *deployment) {
				d.edit("web:2")
				d.step()
				d.edit("web:3")
				d.run()
			}, started, superseded, started, completed, drained),
			statefulSetScene("", func(s *statefulSet) {
				s.edit("web:2")
				s.step()
				s.edit("web:3")
				s.run()
			}, started, superseded, started, completed),
			daemonSetScene("", func(d *daemonSet) {
				d.edit("web:2")
				d.step()
				d.edit("web:3")
				d.run()
			}, started, superseded, started, completed),
		},
		"cancelled": {
			deploymentScene("deleted in flight", func(d *deployment) {
				d.edit("web:2")
				d.step()
				d.delete()
			}, started, cancelled),
			deploymentScene("taken back", func(d *deployment) {
				d.edit("web:2")
				d.step()
				d.edit("web:1")
				d.run()
			}, started, cancelled, started, rolledBack, completed, drained),
			statefulSetScene("deleted in flight", func(s *statefulSet) {
				s.edit("web:2")
				s.step()
				s.delete()
			}, started, cancelled),
			statefulSetScene("taken back", func(s *statefulSet) {
				s.edit("web:2")
				s.step()
				s.edit("web:1")
				s.run()
			}, started, cancelled, started, rolledBack, completed),
			daemonSetScene("deleted in flight", func(d *daemonSet) {
				d.edit("web:2")
				d.step()
				d.delete()
			}, started, cancelled),
			daemonSetScene("taken back", func(d *daemonSet) {
				d.edit("web:2")
				d.step()
				d.edit("web:1")
				d.run()
			}, started, cancelled, started, rolledBack, completed),
		},
		"rolled back": {
			deploymentScene("to a ReplicaSet with a history", func(d *deployment) {
				d.edit("web:2")
				d.run()
				d.undo(1)
				d.sync()
				d.sync()
				require.Equal(d.t, 1, d.last(rolledBack).Rollout.OfRevision)
			}, started, completed, drained, started, rolledBack),
			deploymentScene("to the images of a ReplicaSet that is gone", func(d *deployment) {
				d.keep = 0
				d.edit("web:2")
				d.run()
				d.setEnv("other")
				d.run()
				d.edit("web:1")
				d.sync()
				require.Equal(d.t, 1, d.last(rolledBack).Rollout.OfRevision)
			}, started, completed, drained, started, completed, drained, started, rolledBack),
			statefulSetScene("to a ControllerRevision whose number grows", func(s *statefulSet) {
				s.edit("web:2")
				s.run()
				s.edit("web:1")
				s.sync()
				require.Equal(s.t, 1, s.last(rolledBack).Rollout.OfRevision)
			}, started, completed, started, rolledBack),
			daemonSetScene("to an earlier template", func(d *daemonSet) {
				d.edit("web:2")
				d.run()
				d.edit("web:1")
				require.Equal(d.t, 1, d.last(rolledBack).Rollout.OfRevision)
			}, started, completed, started, rolledBack),
		},
		"restarted": {
			deploymentScene("", func(d *deployment) {
				d.restart()
				d.sync()
			}, started, restarted),
			deploymentScene("not by another variable", func(d *deployment) {
				d.setEnv("other")
				d.sync()
			}, started),
			statefulSetScene("", func(s *statefulSet) {
				s.restart()
				s.sync()
			}, started, restarted),
			daemonSetScene("", func(d *daemonSet) {
				d.restart()
			}, started, restarted),
		},
		"removed": {
			deploymentScene("deleted", func(d *deployment) { d.delete() }, removed),
			deploymentScene("absent from a listing", func(d *deployment) {
				d.stop()
				d.delete()
				d.start()
			}, removed),
			statefulSetScene("deleted", func(s *statefulSet) { s.delete() }, removed),
			statefulSetScene("absent from a listing", func(s *statefulSet) {
				s.stop()
				s.delete()
				s.start()
			}, removed),
			statefulSetScene("replaced by another of the name", func(s *statefulSet) {
				s.stop()
				s.delete()
				s.create(1, "web:1")
				s.run()
				s.start()
			}, removed, started, completed),
			daemonSetScene("deleted", func(d *daemonSet) { d.delete() }, removed),
			daemonSetScene("absent from a listing", func(d *daemonSet) {
				d.stop()
				d.delete()
				d.start()
			}, removed),
			daemonSetScene("replaced by another of the name", func(d *daemonSet) {
				d.stop()
				d.delete()
				d.create(1, "web:1")
				d.run()
				d.start()
			}, removed, started, completed),
		},
		"unknown": {
			deploymentScene("gone in an outage", func(d *deployment) {
				d.edit("web:2")
				d.step()
				d.stop()
				d.delete()
				d.start()
			}, started, gap, unknown, removed),
			statefulSetScene("gone in an outage", func(s *statefulSet) {
				s.edit("web:2")
				s.step()
				s.stop()
				s.delete()
				s.start()
			}, started, gap, unknown, removed),
			daemonSetScene("gone in an outage", func(d *daemonSet) {
				d.edit("web:2")
				d.step()
				d.stop()
				d.delete()
				d.start()
			}, started, gap, unknown, removed),
		},
		"gap": {
			deploymentScene("a revision that came and went in an outage", func(d *deployment) {
				d.stop()
				d.keep = 0
				d.edit("web:2")
				d.run()
				d.edit("web:3")
				d.run()
				d.start()
				d.wait(time.Minute)
			}, gap, started, completed, drained),
			statefulSetScene("a revision that came and went in an outage", func(s *statefulSet) {
				s.stop()
				s.edit("web:2")
				s.run()
				s.edit("web:3")
				s.run()
				s.start()
			}, gap, started, unknown, started, completed),
			daemonSetScene("a template that came and went in an outage", func(d *daemonSet) {
				d.stop()
				d.edit("web:2")
				d.run()
				d.edit("web:3")
				d.run()
				d.start()
			}, gap, started, completed),
		},
		"scaled": {
			deploymentScene("idle", func(d *deployment) {
				d.scale(5)
				d.run()
				require.NotNil(d.t, d.last(scaleEnded).DurationMs)
			}, scaleBegan, scaleEnded),
			deploymentScene("in flight", func(d *deployment) {
				d.edit("web:2")
				d.step()
				d.scale(4)
				d.run()
				require.True(d.t, d.last(completed).Rollout.ScaledDuring)
				require.Equal(d.t, 3, d.last(completed).Rollout.ReplicasAtStart)
			}, started, scaleBegan, scaleEnded, completed, drained),
			statefulSetScene("idle", func(s *statefulSet) {
				s.scale(5)
				s.run()
			}, scaleBegan, scaleEnded),
			statefulSetScene("in flight", func(s *statefulSet) {
				s.edit("web:2")
				s.step()
				s.scale(4)
				s.run()
				require.True(s.t, s.last(completed).Rollout.ScaledDuring)
			}, started, scaleBegan, completed, scaleEnded),
			daemonSetScene("never: nodes come and go", func(d *daemonSet) {
				d.addNode()
				d.run()
				d.loseNode()
				d.run()
			}),
		},
		"partition reached": {
			statefulSetScene("step by step, with one id", func(s *statefulSet) {
				s.partition(2)
				s.edit("web:2")
				s.run()
				id := s.last(partitioned).Rollout.ID
				s.partition(1)
				s.run()
				s.partition(0)
				s.run()
				require.Equal(s.t, id, s.last(completed).Rollout.ID)
			}, started, partitioned, partitioned, completed),
		},
	}
}

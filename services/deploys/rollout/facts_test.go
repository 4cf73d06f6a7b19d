package rollout_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/rollout"
)

// scene is what happens to a workload of three pods, its first rollout complete, and every fact that is told of it, in order; of progressed the first, and only
// where that is what it is about.
type scene struct {
	kind string
	of   string // what it is a scene of, where a fact has several
	does func(w any)
	says []events.Fact
}

func deploymentScene(of string, does func(d *deployment), says ...events.Fact) scene {
	return scene{kind: rollout.Deployment, of: of, says: says, does: func(w any) { does(w.(*deployment)) }}
}

func statefulSetScene(of string, does func(s *statefulSet), says ...events.Fact) scene {
	return scene{kind: rollout.StatefulSet, of: of, says: says, does: func(w any) { does(w.(*statefulSet)) }}
}

func daemonSetScene(of string, does func(d *daemonSet), says ...events.Fact) scene {
	return scene{kind: rollout.DaemonSet, of: of, says: says, does: func(w any) { does(w.(*daemonSet)) }}
}

const (
	started     = events.FactStarted
	progressed  = events.FactProgressed
	completed   = events.FactCompleted
	drained     = events.FactDrained
	stalled     = events.FactStalled
	recovered   = events.FactRecovered
	blocked     = events.FactBlocked
	unblocked   = events.FactUnblocked
	paused      = events.FactPaused
	resumed     = events.FactResumed
	superseded  = events.FactSuperseded
	cancelled   = events.FactCancelled
	unknown     = events.FactUnknown
	rolledBack  = events.FactRolledBack
	restarted   = events.FactRestarted
	removed     = events.FactRemoved
	scaleBegan  = events.FactScaleStarted
	scaleEnded  = events.FactScaleCompleted
	partitioned = events.FactPartitionReached
	gap         = events.FactGap
)

// facts are the scenes of each fact, of each kind of workload that can have it, and of those that might seem to have it and do not.
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
					Type: "Progressing", Status: "False", Reason: "ReplicaSetCreateError", Message: `Failed to create new replica set "web-x": quota`,
				}}
				d.tell(refused)
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

// settledOf is a workload of a kind, of three pods, its first rollout complete.
func settledOf(t *testing.T, kind string) (*lab, any) {
	switch kind {
	case rollout.StatefulSet:
		s := newStatefulSet(t, 1)
		s.create(3, "web:1")
		s.run()
		return s.lab, s
	case rollout.DaemonSet:
		d := newDaemonSet(t, 1)
		d.create(3, "web:1")
		d.run()
		return d.lab, d
	default:
		d := settled(t, 3)
		return d.lab, d
	}
}

func TestEachFactOfEachKind(t *testing.T) {
	t.Parallel()
	seen := map[events.Fact]bool{}
	for fact, scenes := range facts() {
		for _, scene := range scenes {
			for _, f := range scene.says {
				seen[f] = true
			}
			t.Run(strings.Join([]string{fact, scene.kind, scene.of}, "/"), func(t *testing.T) {
				t.Parallel()
				l, w := settledOf(t, scene.kind)
				mark := len(l.facts)
				scene.does(w)
				says := []events.Fact{}
				for _, f := range l.facts[mark:] {
					if f.Fact != progressed || fact == "progressed" && !slices.Contains(says, progressed) {
						says = append(says, f.Fact)
					}
				}
				require.Equal(t, append([]events.Fact{}, scene.says...), says)
				l.whole(mark)
			})
		}
	}
	for _, f := range []events.Fact{
		started, progressed, completed, drained, stalled, recovered, blocked, unblocked, paused, resumed, superseded, cancelled, unknown, rolledBack, restarted,
		removed, scaleBegan, scaleEnded, partitioned, gap,
	} {
		require.True(t, seen[f], "no scene tells %s", f)
	}
}

// whole says that each fact since the mark tells of the workload, when it was and how that is known; that what may repeat is numbered, and the rest is not; and that an end
// says how long it took, unless nobody knows.
func (l *lab) whole(mark int) {
	ordinals := map[string]int{}
	for _, f := range l.facts[mark:] {
		require.Equal(l.t, "web", f.Workload.Name)
		require.Equal(l.t, l.kind, f.Workload.Kind)
		require.NotEmpty(l.t, f.Workload.UID)
		require.False(l.t, f.OccurredAt.IsZero())
		require.False(l.t, f.ObservedAt.Before(f.OccurredAt.Truncate(time.Second)), "%s occurred after it was seen", f.Fact)
		require.NotEmpty(l.t, f.TimeSource)
		require.NotEmpty(l.t, f.Provenance)
		switch f.Fact {
		case progressed, stalled, recovered, paused, resumed, blocked, unblocked, scaleBegan, scaleEnded, partitioned:
			id := string(f.Fact)
			if f.Rollout != nil {
				id += f.Rollout.ID
			}
			require.Greater(l.t, f.Ordinal, ordinals[id], f.Fact)
			ordinals[id] = f.Ordinal
		case completed, superseded, cancelled:
			require.NotNil(l.t, f.DurationMs)
			require.Zero(l.t, f.Ordinal)
		default:
			require.Zero(l.t, f.Ordinal, f.Fact)
		}
		require.Equal(l.t, f.Fact == gap || f.Fact == unknown, f.Gap != nil)
	}
}

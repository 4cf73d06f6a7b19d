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

// scene is a scenario of a workload with three pods and a completed first rollout, and its facts in order. Only scenes
// about progressed list it, once.
type scene struct {
	kind string
	of   string // distinguishes several scenes of one fact
	does func(w any)
	want []events.Fact
}

func deploymentScene(of string, does func(d *deployment), want ...events.Fact) scene {
	return scene{kind: rollout.Deployment, of: of, want: want, does: func(w any) { does(w.(*deployment)) }}
}

func statefulSetScene(of string, does func(s *statefulSet), want ...events.Fact) scene {
	return scene{kind: rollout.StatefulSet, of: of, want: want, does: func(w any) { does(w.(*statefulSet)) }}
}

func daemonSetScene(of string, does func(d *daemonSet), want ...events.Fact) scene {
	return scene{kind: rollout.DaemonSet, of: of, want: want, does: func(w any) { does(w.(*daemonSet)) }}
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

// settledOf returns a workload of a kind with three pods and a completed first rollout.
func settledOf(t *testing.T, kind string) (*fixture, any) {
	switch kind {
	case rollout.StatefulSet:
		s := newStatefulSet(t, 1)
		s.create(3, "web:1")
		s.run()
		return s.fixture, s
	case rollout.DaemonSet:
		d := newDaemonSet(t, 1)
		d.create(3, "web:1")
		d.run()
		return d.fixture, d
	default:
		d := settled(t, 3)
		return d.fixture, d
	}
}

func TestEachFactOfEachKind(t *testing.T) {
	t.Parallel()
	seen := map[events.Fact]bool{}
	for fact, scenes := range facts() {
		for _, scene := range scenes {
			for _, f := range scene.want {
				seen[f] = true
			}
			t.Run(strings.Join([]string{fact, scene.kind, scene.of}, "/"), func(t *testing.T) {
				t.Parallel()
				l, w := settledOf(t, scene.kind)
				mark := len(l.facts)
				scene.does(w)
				want := []events.Fact{}
				for _, f := range l.facts[mark:] {
					if f.Fact != progressed || fact == "progressed" && !slices.Contains(want, progressed) {
						want = append(want, f.Fact)
					}
				}
				require.Equal(t, want, append([]events.Fact{}, scene.want...))
				l.whole(mark)
			})
		}
	}
	for _, f := range []events.Fact{
		started, progressed, completed, drained, stalled, recovered, blocked, unblocked, paused, resumed, superseded,
		cancelled, unknown, rolledBack, restarted,
		removed, scaleBegan, scaleEnded, partitioned, gap,
	} {
		require.True(t, seen[f], "no scene has %s", f)
	}
}

// whole checks that each fact since the mark names its workload, times and provenance, that only repeatable facts are
// numbered, and that ends have a duration unless unknown.
func (l *fixture) whole(mark int) {
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

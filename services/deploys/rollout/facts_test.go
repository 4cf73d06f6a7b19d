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

// scenario is a sequence of actions on a workload with three pods and a completed first rollout, and the expected facts
// in order. Only scenarios of the fact progressed list it, once.
type scenario struct {
	kind string
	name string // distinguishes several scenarios of one fact
	run  func(w any)
	want []events.Fact
}

func onDeployment(name string, run func(d *deployment), want ...events.Fact) scenario {
	return scenario{kind: rollout.Deployment, name: name, want: want, run: func(w any) { run(w.(*deployment)) }}
}

func onStatefulSet(name string, run func(s *statefulSet), want ...events.Fact) scenario {
	return scenario{kind: rollout.StatefulSet, name: name, want: want, run: func(w any) { run(w.(*statefulSet)) }}
}

func onDaemonSet(name string, run func(d *daemonSet), want ...events.Fact) scenario {
	return scenario{kind: rollout.DaemonSet, name: name, want: want, run: func(w any) { run(w.(*daemonSet)) }}
}

const (
	started          = events.FactStarted
	progressed       = events.FactProgressed
	completed        = events.FactCompleted
	drained          = events.FactDrained
	stalled          = events.FactStalled
	recovered        = events.FactRecovered
	blocked          = events.FactBlocked
	unblocked        = events.FactUnblocked
	paused           = events.FactPaused
	resumed          = events.FactResumed
	superseded       = events.FactSuperseded
	cancelled        = events.FactCancelled
	unknown          = events.FactUnknown
	rolledBack       = events.FactRolledBack
	restarted        = events.FactRestarted
	removed          = events.FactRemoved
	scaleStarted     = events.FactScaleStarted
	scaleCompleted   = events.FactScaleCompleted
	partitionReached = events.FactPartitionReached
	gap              = events.FactGap
)

// settledOf returns a workload of a kind with three pods whose first rollout has completed.
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
	for fact, cases := range scenarios() {
		for _, scenario := range cases {
			for _, f := range scenario.want {
				seen[f] = true
			}
			t.Run(strings.Join([]string{fact, scenario.kind, scenario.name}, "/"), func(t *testing.T) {
				t.Parallel()
				l, w := settledOf(t, scenario.kind)
				mark := len(l.facts)
				scenario.run(w)
				want := []events.Fact{}
				for _, f := range l.facts[mark:] {
					if f.Fact != progressed || fact == "progressed" && !slices.Contains(want, progressed) {
						want = append(want, f.Fact)
					}
				}
				require.Equal(t, want, append([]events.Fact{}, scenario.want...))
				l.checkFields(mark)
			})
		}
	}
	for _, f := range []events.Fact{
		started, progressed, completed, drained, stalled, recovered, blocked, unblocked, paused, resumed, superseded,
		cancelled, unknown, rolledBack, restarted,
		removed, scaleStarted, scaleCompleted, partitionReached, gap,
	} {
		require.True(t, seen[f], "no scenario has %s", f)
	}
}

// checkFields checks the facts since the mark: each has its workload, times and provenance. Only repeatable facts have
// an ordinal. A terminal fact other than unknown has a duration.
func (l *fixture) checkFields(mark int) {
	ordinals := map[string]int{}
	for _, f := range l.facts[mark:] {
		require.Equal(l.t, "web", f.Workload.Name)
		require.Equal(l.t, l.kind, f.Workload.Kind)
		require.NotEmpty(l.t, f.Workload.UID)
		require.False(l.t, f.OccurredAt.IsZero())
		occurredAt := f.OccurredAt.Truncate(time.Second)
		require.False(l.t, f.ObservedAt.Before(occurredAt), "%s occurred after it was observed", f.Fact)
		require.NotEmpty(l.t, f.TimeSource)
		require.NotEmpty(l.t, f.Provenance)
		switch f.Fact {
		case progressed, stalled, recovered, paused, resumed, blocked, unblocked, scaleStarted, scaleCompleted,
			partitionReached:
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

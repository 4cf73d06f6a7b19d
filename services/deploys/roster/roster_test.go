package roster_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/observed"
	"lockstep.internal/services/deploys/rollout"
	"lockstep.internal/services/deploys/roster"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func start() time.Time { return time.Date(2026, 3, 4, 5, 6, 0, 0, time.UTC) }

// begun is the begin of a full resync that listed everything at a version.
func begun(cluster, id, selection string, version, count int, at time.Time) *observed.Observed {
	return &observed.Observed{AgentID: 1, ClusterUID: cluster, At: at, Begun: &events.ObservedResyncBegun{
		ResyncID: id, Count: count, Selection: selection,
		ListVersions: []events.ListVersion{{Kind: rollout.Deployment, ResourceVersion: strconv.Itoa(version)}},
	}}
}

func ended(id string, count int) *observed.Observed {
	return &observed.Observed{AgentID: 1, ClusterUID: "a", Ended: &events.ObservedResyncEnded{ResyncID: id, Count: count}}
}

func workload(agent int64, cluster, resync string) *observed.Observed {
	return &observed.Observed{AgentID: agent, ClusterUID: cluster, Workload: &events.ObservedWorkload{Object: events.ObjectMeta{UID: "u", ResyncID: resync}}}
}

func TestAnAgentChangesItsClusterWithAFullResyncOnly(t *testing.T) {
	t.Parallel()
	r := roster.New(nil)
	_, ours := r.Hear(workload(1, "a", ""))
	require.True(t, ours, "it is where it says first")
	_, ours = r.Hear(workload(1, "b", ""))
	require.False(t, ours)
	require.Equal(t, "a", r.Begin(begun("b", "r1", "all", 10, 0, start())).Before)
	_, ours = r.Hear(workload(1, "a", ""))
	require.False(t, ours)
	_, ours = r.Hear(workload(1, "b", ""))
	require.True(t, ours)
}

func TestOnlyAWholeResyncCounts(t *testing.T) {
	t.Parallel()
	r := roster.New(nil)
	r.Begin(begun("a", "r1", "all", 10, 2, start()))
	a, _ := r.Hear(workload(1, "a", "r1"))
	require.True(t, a.Member(workload(1, "a", "r1")))
	require.False(t, a.Member(workload(1, "a", "r0")))
	_, open := r.End(ended("r0", 2))
	require.False(t, open)
	a, open = r.End(ended("r1", 2))
	require.True(t, open)
	require.False(t, a.Whole(ended("r1", 2), 1))
	require.False(t, a.Whole(ended("r1", 1), 2))
	require.True(t, a.Whole(ended("r1", 2), 2))
	_, open = r.End(ended("r1", 2))
	require.False(t, open, "it ends once")
	require.False(t, a.Member(workload(1, "a", "r1")))
	require.False(t, r.Input(a, start()).KnownBefore)
	r.Complete(a)
	input := r.Input(a, start().Add(time.Hour))
	require.True(t, input.KnownBefore)
	require.Equal(t, start(), input.KnownAt)
}

func TestWhatIsAbsentAfterAnotherSelectionMayStillBeThere(t *testing.T) {
	t.Parallel()
	r := roster.New(nil)
	a := r.Begin(begun("a", "r1", "all", 10, 0, start())).Agent
	require.Equal(t, &rollout.Absence{ListVersion: "10"}, a.Absence(rollout.Deployment))
	require.Nil(t, a.Absence(rollout.DaemonSet), "which was not listed")
	r.Complete(a)
	a = r.Begin(begun("a", "r2", "shop", 20, 0, start().Add(time.Second))).Agent
	require.True(t, a.Absence(rollout.Deployment).Unselected)
	require.False(t, r.Input(a, start()).KnownBefore, "what is new to the selection is not new")
	r.Complete(a)
	require.False(t, a.Absence(rollout.Deployment).Unselected)
}

func TestVersionsThatBeginAnew(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		version  int
		after    time.Duration
		restored bool
	}{
		"higher":               {20, time.Hour, false},
		"lower at once":        {5, time.Second, false},
		"lower long after":     {5, time.Hour, true},
		"the same, long after": {10, time.Hour, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := roster.New(nil)
			require.False(t, r.Begin(begun("a", "r1", "all", 10, 0, start())).Restored)
			other, _ := r.Hear(workload(2, "a", ""))
			next := r.Begin(begun("a", "r2", "all", c.version, 0, start().Add(c.after)))
			require.Equal(t, c.restored, next.Restored)
			// It holds for all agents of the cluster.
			require.Equal(t, r.Input(next.Agent, start()).Epoch, r.Input(other, start()).Epoch)
			require.Equal(t, c.restored, r.Input(other, start()).Epoch == 1)
		})
	}
}

func TestAnAgentSpeaksForThoseThatHaveFallenSilent(t *testing.T) {
	t.Parallel()
	r := roster.New(nil)
	tick := func(id int64, cluster string, at time.Time) (roster.Word, bool) {
		a, _ := r.Hear(&observed.Observed{AgentID: id, ClusterUID: cluster, At: at, Tick: true})
		return r.Tick(a, at)
	}
	tick(2, "a", start())
	tick(3, "b", start())
	word, goes := tick(1, "a", start().Add(40*time.Second))
	require.True(t, goes)
	require.Equal(t, []int64{1}, word.Agents)
	word, _ = tick(1, "a", start().Add(50*time.Second))
	require.Equal(t, []int64{1, 2}, word.Agents, "not that of another cluster")
	require.True(t, word.Concerns("a", 2))
	require.False(t, word.Concerns("b", 2))
	require.True(t, word.Wakes("a", 2, start()))
	require.False(t, word.Wakes("a", 2, word.At.Add(time.Nanosecond)))
	require.False(t, word.Wakes("a", 2, time.Time{}), "never")
	_, goes = tick(1, "a", start().Add(50*time.Second))
	require.False(t, goes, "time does not stand still")
}

func TestWhatIsStoredChangesWhenItIsKept(t *testing.T) {
	t.Parallel()
	stored := map[int64]roster.Agent{1: {ID: 1, ClusterUID: "a"}, 2: {ID: 2, ClusterUID: "a"}}
	r := roster.New(stored)
	r.Begin(begun("a", "r1", "all", 10, 3, start()))
	require.Empty(t, stored[1].ResyncID)
	require.Len(t, r.Changed(), 1)
	r.Keep()
	require.Equal(t, "r1", stored[1].ResyncID)
	require.EqualValues(t, 3, stored[1].Expected)
}

func TestTeller(t *testing.T) {
	t.Parallel()
	require.EqualValues(t, 2, roster.Teller(2, 1))
	require.EqualValues(t, 1, roster.Teller(0, 1))
}

package agents_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/agents"
	"lockstep.internal/services/deploys/observation"
	"lockstep.internal/services/deploys/rollout"
	"lockstep.internal/tools/testkit/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func start() time.Time { return time.Date(2026, 3, 4, 5, 6, 0, 0, time.UTC) }

// resyncBegun returns the begin of a full resync that listed Deployments at one version.
func resyncBegun(cluster, id, selection string, version, count int, at time.Time) *observation.Observation {
	begun := &events.ObservedResyncBegun{
		ResyncID: id, Count: count, Selection: selection,
		ListVersions: []events.ListVersion{{Kind: rollout.Deployment, ResourceVersion: strconv.Itoa(version)}},
	}
	return &observation.Observation{AgentID: 1, ClusterUID: cluster, ObservedAt: at, ResyncBegun: begun}
}

func resyncEnded(id string, count int) *observation.Observation {
	return &observation.Observation{
		AgentID:     1,
		ClusterUID:  "a",
		ResyncEnded: &events.ObservedResyncEnded{ResyncID: id, Count: count},
	}
}

func workload(agent int64, cluster, resync string) *observation.Observation {
	return &observation.Observation{AgentID: agent, ClusterUID: cluster, Workload: &events.ObservedWorkload{
		Object: events.ObjectMeta{UID: "u", ResyncID: resync},
	}}
}

func TestAgentChangesClusterOnlyWithFullResync(t *testing.T) {
	t.Parallel()
	r := agents.New(nil)
	_, inCluster := r.Sender(workload(1, "a", ""))
	require.True(t, inCluster, "the first observation sets the cluster of the agent")
	_, inCluster = r.Sender(workload(1, "b", ""))
	require.False(t, inCluster)
	require.Equal(t, "a", r.BeginResync(resyncBegun("b", "r1", "all", 10, 0, start())).PreviousCluster)
	_, inCluster = r.Sender(workload(1, "a", ""))
	require.False(t, inCluster)
	_, inCluster = r.Sender(workload(1, "b", ""))
	require.True(t, inCluster)
}

func TestResyncIsCompleteWithAllMembers(t *testing.T) {
	t.Parallel()
	r := agents.New(nil)
	r.BeginResync(resyncBegun("a", "r1", "all", 10, 2, start()))
	a, _ := r.Sender(workload(1, "a", "r1"))
	require.True(t, a.IsMember(workload(1, "a", "r1")))
	require.False(t, a.IsMember(workload(1, "a", "r0")))
	_, open := r.EndResync(resyncEnded("r0", 2))
	require.False(t, open)
	a, open = r.EndResync(resyncEnded("r1", 2))
	require.True(t, open)
	require.False(t, a.IsComplete(resyncEnded("r1", 2), 1))
	require.False(t, a.IsComplete(resyncEnded("r1", 1), 2))
	require.True(t, a.IsComplete(resyncEnded("r1", 2), 2))
	_, open = r.EndResync(resyncEnded("r1", 2))
	require.False(t, open, "a resync ends once")
	require.False(t, a.IsMember(workload(1, "a", "r1")))
	require.False(t, r.Input(a, start()).HasBaseline)
	r.CompleteResync(a)
	input := r.Input(a, start().Add(time.Hour))
	require.True(t, input.HasBaseline)
	require.Equal(t, start(), input.BaselineAt)
}

func TestWorkloadAbsentAfterSelectionChangeMayStillExist(t *testing.T) {
	t.Parallel()
	r := agents.New(nil)
	a := r.BeginResync(resyncBegun("a", "r1", "all", 10, 0, start())).Agent
	require.Equal(t, &rollout.Absence{ListVersion: "10"}, a.Absence(rollout.Deployment))
	require.Nil(t, a.Absence(rollout.DaemonSet), "the resync did not list daemonsets")
	r.CompleteResync(a)
	a = r.BeginResync(resyncBegun("a", "r2", "shop", 20, 0, start().Add(time.Second))).Agent
	require.True(t, a.Absence(rollout.Deployment).Unselected)
	require.False(t, r.Input(a, start()).HasBaseline, "a workload new to the selection is not a new workload")
	r.CompleteResync(a)
	require.False(t, a.Absence(rollout.Deployment).Unselected)
}

func TestLowerVersionsAfterMinListIntervalStartNewEpoch(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		version  int
		after    time.Duration
		restored bool
	}{
		"higher":                     {20, time.Hour, false},
		"lower, before the interval": {5, time.Second, false},
		"lower, after the interval":  {5, time.Hour, true},
		"equal, after the interval":  {10, time.Hour, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := agents.New(nil)
			require.False(t, r.BeginResync(resyncBegun("a", "r1", "all", 10, 0, start())).Restored)
			other, _ := r.Sender(workload(2, "a", ""))
			next := r.BeginResync(resyncBegun("a", "r2", "all", c.version, 0, start().Add(c.after)))
			require.Equal(t, c.restored, next.Restored)
			// The epoch holds for all agents of the cluster.
			require.Equal(t, r.Input(next.Agent, start()).Epoch, r.Input(other, start()).Epoch)
			require.Equal(t, c.restored, r.Input(other, start()).Epoch == 1)
		})
	}
}

func TestAuthorityExtendsToStaleAgentsOfCluster(t *testing.T) {
	t.Parallel()
	r := agents.New(nil)
	tick := func(id int64, cluster string, at time.Time) (agents.Authority, bool) {
		a, _ := r.Sender(&observation.Observation{AgentID: id, ClusterUID: cluster, ObservedAt: at, Tick: true})
		return r.Tick(a, at)
	}
	tick(2, "a", start())
	tick(3, "b", start())
	authority, advanced := tick(1, "a", start().Add(40*time.Second))
	require.True(t, advanced)
	require.Equal(t, []int64{1}, authority.AgentIDs)
	authority, _ = tick(1, "a", start().Add(50*time.Second))
	require.Equal(t, []int64{1, 2}, authority.AgentIDs, "not the agent of another cluster")
	require.True(t, authority.Covers("a", 2))
	require.False(t, authority.Covers("b", 2))
	require.True(t, authority.Due("a", 2, start()))
	require.False(t, authority.Due("a", 2, authority.At.Add(time.Nanosecond)))
	require.False(t, authority.Due("a", 2, time.Time{}), "no wake-up time")
	_, advanced = tick(1, "a", start().Add(50*time.Second))
	require.False(t, advanced, "the clock did not advance")
}

func TestCommitChangesStoredAgents(t *testing.T) {
	t.Parallel()
	stored := map[int64]agents.Agent{1: {ID: 1, ClusterUID: "a"}, 2: {ID: 2, ClusterUID: "a"}}
	r := agents.New(stored)
	r.BeginResync(resyncBegun("a", "r1", "all", 10, 3, start()))
	require.Empty(t, stored[1].ResyncID)
	require.Len(t, r.Changed(), 1)
	r.Commit()
	require.Equal(t, "r1", stored[1].ResyncID)
	require.EqualValues(t, 3, stored[1].ResyncExpected)
}

func TestReporterFallsBackToInputAgent(t *testing.T) {
	t.Parallel()
	require.EqualValues(t, 2, agents.Reporter(2, 1))
	require.EqualValues(t, 1, agents.Reporter(0, 1))
}

func TestReleaseMakesNextResyncBaseline(t *testing.T) {
	t.Parallel()
	r := agents.New(map[int64]agents.Agent{3: {ID: 3, ClusterUID: "b", SelectionComplete: new("all")}})
	a := r.BeginResync(resyncBegun("a", "r1", "all", 10, 0, start())).Agent
	r.CompleteResync(a)
	r.BeginResync(resyncBegun("a", "r2", "all", 10, 0, start()))
	r.ReleaseCluster("a")
	require.False(t, r.Input(r.Agent(1), start()).HasBaseline)
	_, open := r.EndResync(resyncEnded("r2", 0))
	require.False(t, open, "the previous project began the resync")
	require.NotNil(t, r.Agent(3).SelectionComplete, "another cluster")
	_, inCluster := r.Sender(workload(1, "a", ""))
	require.True(t, inCluster)
	require.Equal(t, &rollout.Absence{ListVersion: "10"}, r.Agent(1).Absence(rollout.Deployment))
}

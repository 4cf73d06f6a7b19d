package ownership_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/observation"
	"lockstep.internal/services/deploys/ownership"
)

func newClaims(mode ownership.Mode, stored ...ownership.Claim) *ownership.Claims {
	byCluster := map[string][]ownership.Claim{}
	for _, c := range stored {
		byCluster[c.ClusterUID] = append(byCluster[c.ClusterUID], c)
	}
	return ownership.NewClaims(mode, map[int64]ownership.Reporter{}, byCluster)
}

func addedClaims(c *ownership.Claims) []ownership.Claim {
	_, claims := c.New()
	return claims
}

func tick(agent int64, cluster string) *observation.Observation {
	return &observation.Observation{AgentID: agent, ClusterUID: cluster, Tick: true}
}

func workload(agent int64, cluster string) *observation.Observation {
	return &observation.Observation{AgentID: agent, ClusterUID: cluster, Workload: &events.ObservedWorkload{}}
}

func release(cluster string, project, since, to int) *observation.Observation {
	return &observation.Observation{ClusterUID: cluster, ClusterReleased: &events.ObservedClusterReleased{
		ClusterUID: cluster, ProjectID: project, Since: since, ToProjectID: to, UserID: 9, Reason: "moved",
	}}
}

func TestFirstReporterClaimsCluster(t *testing.T) {
	t.Parallel()
	c := newClaims(ownership.FirstRead)
	require.NoError(t, c.Admit(tick(1, "a"), 4, 10, ""), "a tick claims nothing")
	require.Empty(t, addedClaims(c))
	require.NoError(t, c.Admit(workload(1, "a"), 5, 10, "b"), "an agent in another cluster claims nothing")
	require.Empty(t, addedClaims(c))
	require.NoError(t, c.Admit(workload(1, "a"), 6, 10, "a"))
	require.NoError(t, c.Admit(workload(2, "a"), 7, 10, "a"), "another agent of the project")
	require.Equal(t, []ownership.Claim{{ClusterUID: "a", Since: 6, ProjectID: 10, AgentID: 1}}, addedClaims(c))
	c.Commit()
	require.Empty(t, addedClaims(c))

	resync := &observation.Observation{AgentID: 1, ClusterUID: "c", ResyncBegun: &events.ObservedResyncBegun{}}
	require.NoError(t, c.Admit(resync, 10, 11, "a"), "a full resync moves its agent")
	require.Equal(t, "c", addedClaims(c)[0].ClusterUID)
}

func TestAgentOfOtherProjectIsRejected(t *testing.T) {
	t.Parallel()
	c := newClaims(ownership.FirstRead, ownership.Claim{ClusterUID: "a", Since: 6, ProjectID: 10, AgentID: 1})
	err := c.Admit(workload(3, "a"), 8, 11, "a")
	foreign, isForeign := errors.AsType[*ownership.ForeignError](err)
	require.True(t, isForeign)
	require.False(t, foreign.Tick)
	require.EqualError(t, err, `cluster "a": belongs to project 10, whose agent reported it first; `+
		`agent 3 belongs to project 11. `+
		`To move the cluster, an administrator runs: lockstep deploys clusters release a --to 11`)
	foreign, isForeign = errors.AsType[*ownership.ForeignError](c.Admit(tick(3, "a"), 9, 11, "a"))
	require.True(t, isForeign)
	require.True(t, foreign.Tick)
}

func TestReleaseChangesOwnerOnce(t *testing.T) {
	t.Parallel()
	first := ownership.Claim{ClusterUID: "a", Since: 6, ProjectID: 10, AgentID: 1}
	c := newClaims(ownership.FirstRead, first)
	require.False(t, c.Release(release("a", 10, 5, 0), 20), "names another claim")
	require.False(t, c.Release(release("a", 11, 6, 0), 20), "names another project")
	require.False(t, c.Release(release("b", 0, 0, 11), 20), "names a cluster without claims")
	require.True(t, c.Release(release("a", 10, 6, 0), 20))
	require.False(t, c.Release(release("a", 10, 6, 12), 21), "the claim is released already")
	require.NoError(t, c.Admit(workload(3, "a"), 22, 11, "a"), "the cluster is unowned")
	require.Error(t, c.Admit(workload(1, "a"), 23, 10, "a"))
	c.Commit()
	require.True(t, c.Release(release("a", 11, 22, 12), 30))
	err := c.Admit(workload(3, "a"), 31, 11, "a")
	require.ErrorContains(t, err, `cluster "a": belongs to project 12, to which an administrator assigned it; `+
		`agent 3 belongs to project 11`)
	require.NoError(t, c.Admit(workload(4, "a"), 32, 12, "a"))
	claims := addedClaims(c)
	require.Equal(t, []ownership.Claim{{ClusterUID: "a", Since: 30, ProjectID: 12, UserID: 9, Reason: "moved"}}, claims)
	require.True(t, claims[0].ByAdministrator())
}

func TestReplayAppliesStoredDecisions(t *testing.T) {
	t.Parallel()
	stored := []ownership.Claim{
		{ClusterUID: "a", Since: 6, ProjectID: 10, AgentID: 1},
		{ClusterUID: "a", Since: 20},
		{ClusterUID: "a", Since: 22, ProjectID: 11, AgentID: 3},
	}
	c := newClaims(ownership.Replay, stored...)
	require.NoError(t, c.Admit(workload(1, "a"), 6, 10, "a"))
	require.Error(t, c.Admit(workload(3, "a"), 19, 11, "a"))
	require.False(t, c.Release(release("a", 10, 6, 0), 19), "had no effect at this position")
	require.True(t, c.Release(release("a", 10, 6, 0), 20))
	require.NoError(t, c.Admit(workload(1, "a"), 21, 10, "a"))
	require.False(t, c.Release(release("a", 10, 6, 0), 22), "the stored claim is the report of an agent")
	require.Error(t, c.Admit(workload(1, "a"), 23, 10, "a"))
	require.NoError(t, c.Admit(workload(1, "new"), 24, 10, "new"))
	require.Empty(t, addedClaims(c))

	c = newClaims(ownership.ReplayRestored, stored...)
	require.Error(t, c.Admit(workload(1, "a"), 6, 10, "a"), "positions have changed: the newest claim applies")
	require.NoError(t, c.Admit(workload(3, "a"), 6, 11, "a"))
	require.False(t, c.Release(release("a", 11, 22, 0), 20))
}

func TestProjectOfAgentIsStoredAtItsFirstReport(t *testing.T) {
	t.Parallel()
	stored := map[int64]ownership.Reporter{1: {AgentID: 1, ProjectID: 10, Since: 5}}
	c := ownership.NewClaims(ownership.Replay, stored, nil)
	_, known := c.Project(1, 4)
	require.False(t, known, "the message was rejected")
	project, known := c.Project(1, 5)
	require.True(t, known)
	require.EqualValues(t, 10, project)
	c = ownership.NewClaims(ownership.FirstRead, stored, map[string][]ownership.Claim{})
	_, known = c.Project(1, 4)
	require.True(t, known)
	c.AddReporter(2, 11, 7)
	project, known = c.Project(2, 8)
	require.True(t, known)
	require.EqualValues(t, 11, project)
	require.Len(t, stored, 1)
	c.Commit()
	require.Equal(t, ownership.Reporter{AgentID: 2, ProjectID: 11, Since: 7}, stored[2])
}

// Agents choose the names of clusters, so a name may contain shell syntax.
func TestCommandInErrorIsSafeToCopy(t *testing.T) {
	t.Parallel()
	for cluster, quoted := range map[string]string{
		"6f1d9c34-0b5e": "6f1d9c34-0b5e", "a; rm -rf /": "'a; rm -rf /'", "it's": `'it'\''s'`,
		"--to": "'--to'", "$(x)": "'$(x)'", "a\nb": "'a\nb'",
	} {
		c := newClaims(ownership.FirstRead, ownership.Claim{ClusterUID: cluster, ProjectID: 1, AgentID: 1})
		require.ErrorContains(t, c.Admit(workload(2, cluster), 5, 2, ""), "release "+quoted+" --to 2")
	}
}

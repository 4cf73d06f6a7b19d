package roster_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/observed"
	"lockstep.internal/services/deploys/rollout"
	"lockstep.internal/services/deploys/roster"
)

func claims(reading roster.Reading, made ...roster.Claim) *roster.Claims {
	stored := map[string][]roster.Claim{}
	for _, c := range made {
		stored[c.ClusterUID] = append(stored[c.ClusterUID], c)
	}
	return roster.NewClaims(reading, map[int64]roster.Reporter{}, stored)
}

func tick(agent int64, cluster string) *observed.Observed {
	return &observed.Observed{AgentID: agent, ClusterUID: cluster, Tick: true}
}

func released(cluster string, project, since, to int) *observed.Observed {
	return &observed.Observed{ClusterUID: cluster, Released: &events.ObservedClusterReleased{ClusterUID: cluster, ProjectID: project, Since: since, ToProjectID: to, UserID: 9, Reason: "moved"}}
}

func TestAClusterIsTheProjectsThatToldOfItFirst(t *testing.T) {
	t.Parallel()
	c := claims(roster.Onwards)
	require.NoError(t, c.Admit(tick(1, "a"), 4, 10, ""), "clocks claim nothing")
	_, made := c.Added()
	require.Empty(t, made)
	require.NoError(t, c.Admit(workload(1, "a", ""), 5, 10, "b"), "who is in another cluster claims nothing here")
	_, made = c.Added()
	require.Empty(t, made)
	require.NoError(t, c.Admit(workload(1, "a", ""), 6, 10, "a"))
	require.NoError(t, c.Admit(workload(2, "a", ""), 7, 10, "a"), "a colleague")
	_, made = c.Added()
	require.Equal(t, []roster.Claim{{ClusterUID: "a", Since: 6, ProjectID: 10, AgentID: 1}}, made)
	c.Keep()
	_, made = c.Added()
	require.Empty(t, made)

	err := c.Admit(workload(3, "a", ""), 8, 11, "a")
	foreign, is := errors.AsType[*roster.Foreign](err)
	require.True(t, is)
	require.False(t, foreign.Clock)
	require.EqualError(t, err, `cluster "a": is of project 10, whose agent reported it first; agent 3 is of project 11. `+
		`If the cluster has moved there, an administrator runs: lockstep deploys clusters release a --to 11`)
	foreign, is = errors.AsType[*roster.Foreign](c.Admit(tick(3, "a"), 9, 11, "a"))
	require.True(t, is)
	require.True(t, foreign.Clock)
	require.NoError(t, c.Admit(begun("c", "r", "all", 1, 0, start()), 10, 11, "a"), "a full resync goes where it begins")
	_, made = c.Added()
	require.Equal(t, "c", made[0].ClusterUID)
}

func TestReleases(t *testing.T) {
	t.Parallel()
	first := roster.Claim{ClusterUID: "a", Since: 6, ProjectID: 10, AgentID: 1}
	c := claims(roster.Onwards, first)
	require.False(t, c.Release(released("a", 10, 5, 0), 20), "of another claim")
	require.False(t, c.Release(released("a", 11, 6, 0), 20), "of another project's")
	require.False(t, c.Release(released("b", 0, 0, 11), 20), "of what nobody has reported")
	require.True(t, c.Release(released("a", 10, 6, 0), 20))
	require.False(t, c.Release(released("a", 10, 6, 12), 21), "it is done")
	require.NoError(t, c.Admit(workload(3, "a", ""), 22, 11, "a"), "nobody's")
	require.Error(t, c.Admit(workload(1, "a", ""), 23, 10, "a"))
	c.Keep()
	require.True(t, c.Release(released("a", 11, 22, 12), 30))
	err := c.Admit(workload(3, "a", ""), 31, 11, "a")
	require.ErrorContains(t, err, `cluster "a": is of project 12, which an administrator gave it to; agent 3 is of project 11`)
	require.NoError(t, c.Admit(workload(4, "a", ""), 32, 12, "a"))
	_, made := c.Added()
	require.Equal(t, []roster.Claim{{ClusterUID: "a", Since: 30, ProjectID: 12, UserID: 9, Reason: "moved"}}, made)
	require.True(t, made[0].Decided())
}

// Whoever reads again finds at each position what was found there first.
func TestReadingAgain(t *testing.T) {
	t.Parallel()
	made := []roster.Claim{
		{ClusterUID: "a", Since: 6, ProjectID: 10, AgentID: 1}, {ClusterUID: "a", Since: 20}, {ClusterUID: "a", Since: 22, ProjectID: 11, AgentID: 3},
	}
	c := claims(roster.Again, made...)
	require.NoError(t, c.Admit(workload(1, "a", ""), 6, 10, "a"))
	require.Error(t, c.Admit(workload(3, "a", ""), 19, 11, "a"))
	require.False(t, c.Release(released("a", 10, 6, 0), 19), "it took no effect there")
	require.True(t, c.Release(released("a", 10, 6, 0), 20))
	require.NoError(t, c.Admit(workload(1, "a", ""), 21, 10, "a"))
	require.False(t, c.Release(released("a", 10, 6, 0), 22), "a report is no release")
	require.Error(t, c.Admit(workload(1, "a", ""), 23, 10, "a"))
	require.NoError(t, c.Admit(workload(1, "new", ""), 24, 10, "new"))
	_, claimed := c.Added()
	require.Empty(t, claimed)

	c = claims(roster.Restored, made...)
	require.Error(t, c.Admit(workload(1, "a", ""), 6, 10, "a"), "positions say nothing: the last word counts")
	require.NoError(t, c.Admit(workload(3, "a", ""), 6, 11, "a"))
	require.False(t, c.Release(released("a", 11, 22, 0), 20))
}

func TestWhoseAgentsAre(t *testing.T) {
	t.Parallel()
	stored := map[int64]roster.Reporter{1: {AgentID: 1, ProjectID: 10, Since: 5}}
	c := roster.NewClaims(roster.Again, stored, nil)
	_, known := c.Project(1, 4)
	require.False(t, known, "it was refused then")
	project, known := c.Project(1, 5)
	require.True(t, known)
	require.EqualValues(t, 10, project)
	c = roster.NewClaims(roster.Onwards, stored, map[string][]roster.Claim{})
	_, known = c.Project(1, 4)
	require.True(t, known)
	c.Report(2, 11, 7)
	project, known = c.Project(2, 8)
	require.True(t, known)
	require.EqualValues(t, 11, project)
	require.Len(t, stored, 1)
	c.Keep()
	require.Equal(t, roster.Reporter{AgentID: 2, ProjectID: 11, Since: 7}, stored[2])
}

// What agents call a cluster is no part of a command.
func TestTheCommandIsSafeToCopy(t *testing.T) {
	t.Parallel()
	for cluster, word := range map[string]string{
		"6f1d9c34-0b5e": "6f1d9c34-0b5e", "a; rm -rf /": "'a; rm -rf /'", "it's": `'it'\''s'`, "--to": "'--to'", "$(x)": "'$(x)'", "a\nb": "'a\nb'",
	} {
		err := claims(roster.Onwards, roster.Claim{ClusterUID: cluster, ProjectID: 1, AgentID: 1}).Admit(workload(2, cluster, ""), 5, 2, "")
		require.ErrorContains(t, err, "release "+word+" --to 2")
	}
}

func TestAClusterThatIsReleasedIsListedAnew(t *testing.T) {
	t.Parallel()
	r := roster.New(map[int64]roster.Agent{3: {ID: 3, ClusterUID: "b", Complete: new("all")}})
	a := r.Begin(begun("a", "r1", "all", 10, 0, start())).Agent
	r.Complete(a)
	r.Begin(begun("a", "r2", "all", 10, 0, start()))
	r.Release("a")
	require.False(t, r.Input(r.Agent(1), start()).KnownBefore, "the next one is a baseline")
	_, open := r.End(ended("r2", 0))
	require.False(t, open, "half of it was told to others")
	require.NotNil(t, r.Agent(3).Complete, "of another cluster")
	_, ours := r.Hear(workload(1, "a", ""))
	require.True(t, ours)
	require.Equal(t, &rollout.Absence{ListVersion: "10"}, r.Agent(1).Absence(rollout.Deployment))
}

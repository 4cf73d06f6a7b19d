package ingest_test

import (
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/ingest"
)

func TestNewObjectsAboveTheLimitAreRefused(t *testing.T) {
	t.Parallel()
	label := uuid.NewString()
	others := observed("other", "u", "8", label)
	others.AgentID, others.ClusterUID, others.Object.AgentID = 8, "cluster-8", 8
	batch := []*ingest.Observed{
		observed("a", "u", "8", label), others, observed("b", "u", "8", label), observed("c", "u", "8", label),
		observed("a", "u", "9", label), observed("c", "u", "9", label), deleted(observed("d", "u", "8", label)),
	}
	for name, size := range map[string]int{"at once": len(batch), "in pairs": 2, "one by one": 1} {
		s, i := newMemoryStore(), newIngest()
		i.MaxObjects = 2
		for rest := batch; len(rest) > 0; rest = rest[min(size, len(rest)):] {
			require.NoError(t, i.HandleObserved(t.Context(), s, rest[:min(size, len(rest))]))
		}
		stored := map[string]string{}
		for key, o := range s.objects {
			stored[fmt.Sprint(key.AgentID, " ", key.Name)] = o.ResourceVersion
		}
		require.Equal(t, map[string]string{"7 a": "9", "7 b": "8", "8 other": "8"}, stored, name)
	}
}

func TestEachWorkspaceAddsAnObjectToTheLimit(t *testing.T) {
	t.Parallel()
	ide, _ := newWorkspace(t, "ide")
	ide.CreatedAt = start().Add(-1)
	s, i := newMemoryStore(ide), newIngest()
	i.MaxObjects = 1
	require.NoError(t, i.HandleObserved(t.Context(), s, []*ingest.Observed{
		observed("a", "u", "8", ""), observed("ide", "u", "8", ide.ID.String()), observed("c", "u", "8", ""),
	}))
	require.Len(t, s.objects, 2)
}

// objectCounts returns the counted and the stored objects of agent 7.
func (w *fixture) objectCounts() (counted, stored int) {
	w.t.Helper()
	require.NoError(w.t, w.pool.QueryRow(w.t.Context(), `
		select objects, (select count(*) from observed_objects where agent_id = 7) from agents where id = 7`).
		Scan(&counted, &stored))
	return counted, stored
}

func TestObjectsOfAnAgentAreBoundedAlsoInARebuild(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	w.maxObjects = 3
	a, ide := w.agent(7), w.workspace("ide")
	report := func(name string, version int, resync string) {
		a.observeDeployment(events.ObservedWorkload{
			Object: a.meta("ns", name, version, false, resync, ""), Kind: events.WorkloadKindDeployment,
		})
	}
	for version := range 5 {
		report(fmt.Sprintf("d%d", version), 10+version, "")
		a.pod(ide, fmt.Sprintf("pod-%d", version), 10+version, func(*events.ObservedPod) {})
	}
	w.ingestAll()
	counted, stored := w.objectCounts()
	require.Equal(t, 4, stored, "one more for the workspace")
	require.Equal(t, stored, counted)
	require.NotEmpty(t, w.logs.matching("refused new objects of an agent"))
	require.Empty(t, w.deadLetterReasons())

	// A resync removes deleted pods, so that there is room again.
	a.begins("r1", "", 1, 30)
	report("d0", 10, "r1")
	a.ends("r1", 1)
	a.begins("r2", "", 1, 31)
	report("d0", 10, "r2")
	a.ends("r2", 1)
	report("new", 40, "")
	w.ingestAll()
	counted, stored = w.objectCounts()
	require.Equal(t, stored, counted)
	out := w.rebuild(true, 3)
	require.Empty(t, out.Differences)
	w.exec(`delete from observed_objects where agent_id = 7`)
	w.rebuild(false, 3)
	rebuilt, storedAgain := w.objectCounts()
	require.Equal(t, stored, storedAgain)
	require.Equal(t, storedAgain, rebuilt)
}

func TestMembersOfAFullResyncAreBounded(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	w.ingestStores.MaxMembers = 5
	a, ide := w.agent(7), w.workspace("ide")
	defer w.startConsumers(1)()
	a.begins("r1", "", 1, 30)
	for range 7 {
		a.reportsDeployment(member(running(ide, 8), "r1"))
	}
	w.haveRead()
	var rows int
	require.NoError(t, w.pool.QueryRow(t.Context(), `select count(*) from resync_members`).Scan(&rows))
	require.Equal(t, 5, rows)
}

func TestFullResyncsOfAnAgentAreBounded(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	w.exec(`insert into resyncs (agent_id, resync_id, cluster_uid, epoch, cause, list_versions, expected, begun_at, outcome)
		select agent_id, 'old-' || n, 'cluster-1', 1, 'start', '{}', 0,
			'2020-01-01'::timestamptz + n * interval '1 s', 'complete'
		from generate_series(1, 1500) n, (values (7), (8)) as agents (agent_id)`)
	a := w.agent(7)
	a.begins("r1", "", 0, 30)
	w.ingestAll()
	count := func(condition string) (n int) {
		require.NoError(t, w.pool.QueryRow(t.Context(), `select count(*) from resyncs where `+condition).Scan(&n))
		return n
	}
	require.Equal(t, 1000, count(`agent_id = 7`))
	require.Equal(t, 1, count(`agent_id = 7 and resync_id = 'r1'`))
	require.Zero(t, count(`agent_id = 7 and resync_id = 'old-501'`), "the oldest")
	require.Equal(t, 1, count(`agent_id = 7 and resync_id = 'old-502'`))
	require.Equal(t, 1500, count(`agent_id = 8`))
}

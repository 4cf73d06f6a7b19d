package nats_test

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"lockstep.internal/services/deploys/agents"
	"lockstep.internal/services/deploys/metrics"
)

// count returns the number of rows of a query.
func (w *fixture) count(query string) int {
	w.t.Helper()
	var n int
	require.NoError(w.t, w.pool.QueryRow(w.t.Context(), `select count(*) from `+query).Scan(&n))
	return n
}

// refused returns the number of refused rows.
func refused(t *testing.T, registry *prometheus.Registry) int {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		if family.GetName() == "lockstep_deploys_rows_refused_total" {
			return int(family.GetMetric()[0].GetCounter().GetValue())
		}
	}
	require.Fail(t, "no such metric")
	return 0
}

func TestRowsOfAnAgentAreBoundedAlsoInARebuild(t *testing.T) {
	t.Parallel()
	for _, batch := range []int{0, 1, 4} {
		t.Run(fmt.Sprint(batch), func(t *testing.T) {
			t.Parallel()
			w := newFixture(t)
			w.limits = agents.Rows{Workloads: 2, Environments: 1, Members: 100, Clusters: 1}
			registry := prometheus.NewRegistry()
			var err error
			w.metrics, err = metrics.New(registry)
			require.NoError(t, err)
			a, other := w.agent(7), w.agent(8)
			apps := a.apps("a", "b", "c")
			for n, p := range apps {
				p.labels[label] = fmt.Sprint("pr-", n)
			}
			a.list("s", apps...)
			a.rollOut(apps...)
			apps[1].delete()
			a.list("s", apps[0], apps[2])
			a.rollOut(apps[2], apps[0])
			web := other.app("web")
			other.list("s", web)
			other.rollOut(web)
			w.process(batch)
			facts := w.checkOnce()
			require.Equal(t, 2, w.count(`workloads where agent_id = 7`), "a deleted workload stays")
			require.Equal(t, 1, w.count(`environments where agent_id = 7`))
			require.Equal(t, 1, w.count(`workloads where agent_id = 8`))
			require.Contains(t, names(facts, "a"), "started")
			require.Contains(t, names(facts, "web"), "started")
			require.Empty(t, names(facts, "c"))
			require.Positive(t, refused(t, registry))
			require.Empty(t, w.deadLetters())

			for n := range 3 {
				a.cluster = fmt.Sprint("moved-", n)
				a.list("s")
			}
			w.process(batch)
			require.Equal(t, 1, w.count(`agents where agent_id = 7 and cluster_uid = 'moved-0'`))
			require.Equal(t, 2, w.count(`claims where agent_id = 7`))
			stored := rows(t, w.pool)
			for _, other := range []int{0, 1, 3} {
				require.Empty(t, w.rebuild(true, other).Differences)
			}
			w.exec(`truncate workloads, environments, agents`)
			w.rebuild(false, 3)
			require.Equal(t, stored, rows(t, w.pool))
		})
	}
}

func TestAgentClaimsNoMoreClustersThanItMayMoveTo(t *testing.T) {
	t.Parallel()
	for _, batch := range []int{0, 1, 5} {
		w := newFixture(t)
		w.limits = agents.Rows{Workloads: 2, Environments: 1, Members: 100, Clusters: 2}
		a := w.agent(7)
		for n := range 5 {
			a.cluster = fmt.Sprint("cluster-", n)
			a.list("s")
		}
		w.process(batch)
		require.Equal(t, 3, w.count(`claims where agent_id = 7`), "batches of %d", batch)
		require.Empty(t, w.rebuild(true, 3).Differences)
	}
}

func TestMembersOfAFullResyncAreBounded(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	w.limits = agents.Rows{Workloads: 100, Environments: 1, Members: 4, Clusters: 1}
	a := w.agent(7)
	apps := a.apps("a", "b", "c")
	a.list("s", apps[:2]...)
	w.process(1)
	require.Equal(t, 2, w.count(`workloads where present`))
	a.begin(6, "s")
	for _, p := range []*app{apps[0], apps[2]} {
		p.send()
		p.sendSet(p.sets[0])
		p.sendSet(p.sets[0])
	}
	w.process(1)
	require.Equal(t, 3, w.count(`resync_members`), "a repeated member counts again")
	a.end(6)
	w.process(1)
	require.Equal(t, 3, w.count(`workloads where present`), "an incomplete full resync removes nothing")
	require.Zero(t, w.count(`resync_members`))
	require.Empty(t, w.rebuild(true, 0).Differences)
}

func TestFullResyncsOfAnAgentAreBounded(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	w.exec(`insert into resyncs (agent_id, resync_id, begun_at)
		select agent_id, 'old-' || n, '2026-03-01'::timestamptz + n * interval '1 s'
		from generate_series(1, 1500) n, (values (7), (8)) as agents (agent_id)`)
	w.agent(7).list("s")
	w.process()
	require.Equal(t, 1000, w.count(`resyncs where agent_id = 7`))
	require.Zero(t, w.count(`resyncs where agent_id = 7 and resync_id = 'old-501'`), "the oldest")
	require.Equal(t, 1, w.count(`resyncs where agent_id = 7 and resync_id = 'old-502'`))
	require.Equal(t, 1500, w.count(`resyncs where agent_id = 8`))
}

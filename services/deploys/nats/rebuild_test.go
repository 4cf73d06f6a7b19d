package nats_test

import (
	"strings"
	"testing"

	"lockstep.internal/libs/readmodel"

	"lockstep.internal/services/deploys/rebuild"

	"github.com/stretchr/testify/require"
)

func (w *fixture) rebuild(check bool, batch int) readmodel.Outcome {
	w.t.Helper()
	r := rebuild.New(w.reader(batch), func(readmodel.Progress) error { return nil })
	out, err := r.Run(w.t.Context(), check)
	require.NoError(w.t, err)
	require.Equal(w.t, !check, out.Replaced)
	return out
}

// newUsedFixture returns a fixture with completed, running and deleted workloads.
func newUsedFixture(t *testing.T) (*fixture, *agent, []*app) {
	t.Helper()
	w := newFixture(t)
	a := w.agent(7)
	apps := a.apps("a", "b", "c", "d")
	a.list("s", apps...)
	a.rollOut(apps...)
	a.rollOut(apps...)
	apps[3].delete()
	a.list("s", apps[:3]...)
	w.process(7)
	return w, a, apps
}

func TestRebuildGivesSameTablesAndPublishesNothing(t *testing.T) {
	t.Parallel()
	w, a, apps := newUsedFixture(t)
	before, then := w.checkOnce(), rows(t, w.pool)
	for _, batch := range []int{0, 1, 5} {
		out := w.rebuild(true, batch)
		require.Empty(t, out.Differences)
		require.Equal(t, then, rows(t, w.pool), "a check changes nothing")
	}
	require.Empty(t, w.rebuild(false, 3).Differences)
	require.Equal(t, then, rows(t, w.pool))
	require.Equal(t, ids(before), ids(w.published()))
	a.rollOut(apps[:3]...)
	w.process()
	require.Greater(t, len(w.checkOnce()), len(before))
}

func TestRebuildReportsAndRepairsCorruption(t *testing.T) {
	t.Parallel()
	w, a, apps := newUsedFixture(t)
	before, then := w.checkOnce(), rows(t, w.pool)
	stop := w.run(w.reader(0)) // the live reader must drop its cache
	for _, corruption := range []struct{ statement, reason string }{
		{`update workloads set state = replace(state, 'uid-a', 'uid-x')`, "workloads"},
		{`delete from workloads`, "is missing"},
		{`delete from facts where fact = 'started'`, "facts"},
		{`update facts set sequence = sequence + 100`, "sequence is"},
		{`update facts set observed_at = observed_at + interval '1 ms' where fact = 'completed'`, "observed_at is"},
		{`update rollouts set state = 'cancelled', duration_ms = 1`, `state is "cancelled"`},
		{`update agents set selection_complete = null`, "selection_complete is null"},
		{
			`insert into facts (id, workload, sequence, fact, occurred_at, observed_at, data)
				select 'made-up', workload, 99, 'started', now(), now(), '{}' from facts limit 1`,
			"facts made-up: is stored, but not in the streams",
		},
		{`truncate workloads, facts, rollouts, agents, resyncs, resync_members, environments`, "is missing"},
	} {
		w.exec(corruption.statement)
		out := w.rebuild(true, 0)
		require.Contains(t, strings.Join(out.Differences, "\n"), corruption.reason, corruption.statement)
		w.rebuild(false, 0)
		require.Equal(t, then, rows(t, w.pool), corruption.statement)
		count, err := w.reconciler().RepublishAll(t.Context())
		require.NoError(t, err)
		require.Zero(t, count, "the stream has all facts")
		require.Equal(t, ids(before), ids(w.checkOnce()))
	}
	a.rollOut(apps[:3]...)
	w.awaitProcessed()
	stop()
	require.Greater(t, len(w.checkOnce()), len(before))
	require.Empty(t, w.rebuild(true, 0).Differences)
}

func TestRebuildKeepsStateOfTruncatedStream(t *testing.T) {
	t.Parallel()
	w, a, apps := newUsedFixture(t)
	dropped := w.lastSequence()
	a.list("s", apps[:3]...)
	added := a.app("added")
	added.sendSet(added.sets[0])
	added.send()
	a.list("s", append(apps[:3:3], added)...)
	added.roll("i:2")
	added.finish()
	a.rollOut(apps[:3]...)
	w.process()
	before, then := w.checkOnce(), rows(t, w.pool)
	stream, err := w.js.Stream(t.Context(), "OBSERVED")
	require.NoError(t, err)
	require.NoError(t, stream.Purge(t.Context(), purgeUpTo(dropped)))
	require.Empty(t, w.rebuild(true, 0).Differences)
	w.rebuild(false, 0)
	require.Equal(t, then, rows(t, w.pool))
	w.exec(`update rollouts set state = 'cancelled' where name = 'added'`)
	require.Len(t, w.rebuild(false, 0).Differences, 1, "a workload whose messages are all on the stream is compared")
	require.Equal(t, then, rows(t, w.pool))
	require.Equal(t, ids(before), ids(w.checkOnce()))
}

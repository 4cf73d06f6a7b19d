package nats_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/event"
	"lockstep.internal/services/deploys/history"
	store "lockstep.internal/services/deploys/postgres"
)

func TestRolloutIsPublishedOnceInOrderAndStored(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a := w.agent(7)
	web := a.app("web")
	a.list("s", web)
	stop := w.run(w.reader(0))
	w.awaitProcessed()
	require.Empty(t, w.published(), "an existing workload is a baseline without facts")
	web.roll("i:2")
	web.step()
	web.finish()
	a.list("s", web)
	w.awaitProcessed()
	stop()
	facts := w.checkOnce()
	require.Equal(t, []string{"started", "progressed", "completed"}, names(facts, "web")[:3])
	rollouts := &store.Rollouts{DB: w.pool}
	found, err := rollouts.List(t.Context(), store.RolloutFilter{Name: "web"}, store.RolloutPage{Size: 10})
	require.NoError(t, err)
	require.Len(t, found, 1)
	r := found[0]
	require.Equal(t, history.Completed, *r.State)
	require.EqualValues(t, 2, r.Revision)
	require.EqualValues(t, 7, r.AgentID)
	require.Equal(t, "updated", r.Change)
	require.Equal(t, "i:2", r.Images[0].Image)
	require.Equal(t, "i:1", r.PreviousImages[0].Image)
	require.Positive(t, *r.DurationMs)
	require.WithinDuration(t, a.now.Add(-2*time.Second), *r.EndedObservedAt, time.Millisecond)
	own, _, err := rollouts.Facts(t.Context(), &r, 100)
	require.NoError(t, err)
	require.Len(t, own, len(facts))
}

func TestFactsDoNotDependOnBatchSize(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a, b := w.agent(7), w.agent(8)
	var apps []*app
	for _, name := range []string{"a", "b", "c"} {
		apps = append(apps, a.app(name), b.app(name+"-8"))
	}
	apps[3].deadline = nil // without a condition, only the clock detects the stall
	a.list("s", apps[0], apps[2], apps[4])
	b.list("s", apps[1], apps[3], apps[5])
	for n, p := range apps {
		p.roll("i:2")
		a.tick()
		if n%2 == 0 {
			p.step()
			p.finish()
		}
	}
	for range 50 { // beyond the deadline
		a.tick()
		b.tick()
	}
	apps[1].roll("i:3")
	apps[3].delete()
	apps[5].finish()
	var first map[string][]string
	for _, batch := range []int{1, 3, 50, 1000} {
		w.pool = w.database(t)
		if first != nil {
			// The facts are published already.
			before := w.published()
			w.process(batch)
			require.Equal(t, ids(before), ids(w.published()))
			require.Equal(t, first, rows(t, w.pool), "in batches of %d", batch)
			w.checkOnce()
			continue
		}
		w.process(batch)
		first = rows(t, w.pool)
		require.NotEmpty(t, w.checkOnce())
	}
	require.Contains(t, names(w.published(), "b-8"), "stalled")
}

func TestClockOfAnAgentIsBoundedByTheStream(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a := w.agent(7)
	a.now = time.Now().AddDate(1, 0, 0)
	a.tick()
	stop := w.run(w.reader(0))
	w.awaitProcessed()
	stop()
	var ticked time.Time
	require.NoError(t, w.pool.QueryRow(t.Context(), `select ticked_at from agents where agent_id = 7`).Scan(&ticked))
	require.WithinDuration(t, time.Now(), ticked, 2*event.MaxLead)
}

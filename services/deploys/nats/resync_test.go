package nats_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestFullResyncPublishesNoFacts(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a := w.agent(7)
	apps := a.apps("idle", "in-flight")
	a.list("s", apps...)
	apps[1].roll("i:2")
	w.process()
	before := w.checkOnce()
	for range 3 {
		a.list("s", apps...)
		a.tick()
	}
	w.process()
	require.Equal(t, ids(before), ids(w.checkOnce()))
}

func TestWorkloadAbsentFromCompleteResyncIsRemoved(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		resync func(a *agent, listed, absent *app)
		facts  []string
	}{
		"complete": {func(a *agent, listed, _ *app) { a.list("s", listed) }, []string{"gap", "removed"}},
		"a member is missing": {func(a *agent, listed, _ *app) {
			a.begin(3, "s")
			listed.send()
			listed.sendSet(listed.sets[0])
			a.end(3)
		}, nil},
		"more members than announced": {func(a *agent, listed, _ *app) {
			a.begin(1, "s")
			listed.send()
			listed.sendSet(listed.sets[0])
			a.end(1)
		}, nil},
		"begin and end disagree": {func(a *agent, listed, _ *app) {
			a.begin(2, "s")
			listed.send()
			listed.sendSet(listed.sets[0])
			a.end(3)
		}, nil},
		"a member is listed twice": {func(a *agent, listed, _ *app) {
			a.begin(2, "s")
			listed.send()
			listed.send()
			listed.sendSet(listed.sets[0])
			a.end(2)
		}, []string{"gap", "removed"}},
		"another resync begins before its end": {func(a *agent, listed, _ *app) {
			a.begin(2, "s")
			first := a.resync
			listed.send()
			a.begin(2, "s")
			a.resync = first
			listed.sendSet(listed.sets[0])
			a.end(2)
		}, nil},
		"the begin is repeated": {func(a *agent, listed, _ *app) {
			a.begin(2, "s")
			listed.send()
			a.publishBegin(2, "s")
			listed.sendSet(listed.sets[0])
			a.end(2)
		}, []string{"gap", "removed"}},
		"the workload changed after the list": {func(a *agent, listed, absent *app) {
			a.begin(2, "s")
			absent.rv = a.next()
			resync := a.resync
			a.resync = ""
			absent.send()
			a.resync = resync
			listed.send()
			listed.sendSet(listed.sets[0])
			a.end(2)
		}, nil},
		"the selection changed": {func(a *agent, listed, _ *app) { a.list("others", listed) }, nil},
		"a resync of another cluster": {func(a *agent, listed, _ *app) {
			a.cluster = "elsewhere"
			a.list("s", listed)
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, batch := range []int{1, 0} {
				w := newFixture(t)
				a := w.agent(7)
				listed, absent := a.app("listed"), a.app("absent")
				a.list("s", listed, absent)
				a.next()
				c.resync(a, listed, absent)
				w.process(batch)
				require.Equal(t, c.facts, names(w.checkOnce(), "absent"))
				require.Empty(t, names(w.published(), "listed"))
				// A second complete resync causes no new facts.
				a.cluster = "cluster-7"
				a.list("s", listed, absent)
				w.process(batch)
				require.Empty(t, names(w.published(), "listed"))
			}
		})
	}
}

// TestTracesOfAnAbsentWorkloadAreInAGap is about a workload that was created and deleted while nobody led: only one of
// its revisions was published.
func TestTracesOfAnAbsentWorkloadAreInAGap(t *testing.T) {
	t.Parallel()
	for _, batch := range []int{1, 0} {
		w := newFixture(t)
		a := w.agent(7)
		listed, traced := a.app("listed"), a.app("traced")
		a.list("s", listed)
		a.next()
		traced.sendSet(traced.sets[0])
		a.list("s", listed)
		w.process(batch)
		require.Equal(t, []string{"gap", "removed"}, names(w.checkOnce(), "traced"))
		a.list("s", listed)
		w.process(batch)
		require.Equal(t, []string{"gap", "removed"}, names(w.checkOnce(), "traced"))
	}
}

func TestSecondAgentOfClusterPublishesNothingNew(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a, b := w.agent(7), w.agent(8)
	b.cluster, b.rv = a.cluster, a.rv
	web := a.app("web")
	both := func(send func()) {
		for _, one := range []*agent{a, b} {
			web.a = one
			send()
		}
	}
	a.list("s", web)
	web.a = b
	b.list("s", web)
	web.a = a
	web.roll("i:2")
	both(func() { web.sendSet(web.sets[1]); web.send() })
	web.finish()
	both(func() { web.send() })
	w.process(2)
	require.Equal(t, []string{"started", "completed", "drained"}, names(w.checkOnce(), "web"))
	// The first agent becomes stale, and the second one acts for it.
	for range 6 {
		b.tick()
	}
	b.now = a.now.Add(10 * time.Minute)
	b.next()
	b.tick()
	b.list("s")
	w.process(2)
	require.Equal(t, []string{"gap", "removed"}, names(w.checkOnce(), "web")[3:])
}

func TestRestoredClusterStartsNewEpoch(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a := w.agent(7)
	*a.rv = 10_000
	web := a.app("web")
	a.list("s", web)
	w.process()
	a.advance(2 * time.Hour)
	*a.rv = 500 // all versions are lower now
	web.rv, web.sets[0].rv = a.next(), a.next()
	a.list("s", web)
	web.roll("i:2")
	web.finish()
	w.process()
	require.Equal(t, []string{"started", "completed"}, names(w.checkOnce(), "web")[:2])
	var epoch int
	require.NoError(t, w.pool.QueryRow(t.Context(), `select epoch from agents`).Scan(&epoch))
	require.Equal(t, 1, epoch)
}

func TestWorkloadCreatedAfterFirstListIsNew(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		created time.Duration // after the list
		facts   []string
	}{
		"during the resync":          {2 * time.Second, []string{"started", "completed", "drained"}},
		"before, and selected later": {-time.Minute, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newFixture(t)
			a := w.agent(7)
			other := a.app("other")
			a.begin(2, "s")
			listedAt := a.now
			a.advance(5 * time.Second)
			other.send()
			other.sendSet(other.sets[0])
			a.end(2)
			// The watcher was down and observes it later.
			late := a.app("late")
			late.created, late.first = listedAt.Add(c.created), true
			late.sets[0].created = late.created
			late.send()
			late.sendSet(late.sets[0])
			w.process()
			require.Equal(t, c.facts, names(w.checkOnce(), "late"))
			require.Empty(t, w.rebuild(true, 3).Differences)
		})
	}
}

package nats_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestFullResyncIsSilent(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a := w.agent(7)
	apps := a.apps("idle", "flying")
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
		resync func(a *agent, there, gone *app)
		facts  []string
	}{
		"complete": {func(a *agent, there, _ *app) { a.list("s", there) }, []string{"removed"}},
		"a member is missing": {func(a *agent, there,
			_ *app,
		) {
			a.begin(3, "s")
			there.send()
			there.sendSet(there.sets[0])
			a.end(3)
		}, nil},
		"more members than announced": {func(a *agent, there,
			_ *app,
		) {
			a.begin(1, "s")
			there.send()
			there.sendSet(there.sets[0])
			a.end(1)
		}, nil},
		"begin and end disagree": {func(a *agent, there,
			_ *app,
		) {
			a.begin(2, "s")
			there.send()
			there.sendSet(there.sets[0])
			a.end(3)
		}, nil},
		"a member came twice": {func(a *agent, there, _ *app) {
			a.begin(2, "s")
			there.send()
			there.send()
			there.sendSet(there.sets[0])
			a.end(2)
		}, []string{"removed"}},
		"another begins before its end": {func(a *agent, there, _ *app) {
			a.begin(2, "s")
			first := a.resync
			there.send()
			a.begin(2, "s")
			a.resync = first
			there.sendSet(there.sets[0])
			a.end(2)
		}, nil},
		"it changed after the list": {func(a *agent, there, gone *app) {
			a.begin(2, "s")
			gone.rv = a.next()
			resync := a.resync
			a.resync = ""
			gone.send()
			a.resync = resync
			there.send()
			there.sendSet(there.sets[0])
			a.end(2)
		}, nil},
		"the selection changed": {func(a *agent, there, _ *app) { a.list("others", there) }, nil},
		"of another cluster": {func(a *agent, there, _ *app) {
			a.cluster = "elsewhere"
			a.list("s", there)
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, batch := range []int{1, 0} {
				w := newFixture(t)
				a := w.agent(7)
				there, gone := a.app("there"), a.app("gone")
				a.list("s", there, gone)
				a.next()
				c.resync(a, there, gone)
				w.process(batch)
				require.Equal(t, c.facts, names(w.checkOnce(), "gone"))
				require.Empty(t, names(w.published(), "there"))
				// A complete resync has no new facts.
				a.cluster = "cluster-7"
				a.list("s", there, gone)
				w.process(batch)
				require.Empty(t, names(w.published(), "there"))
			}
		})
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
	// The first agent becomes stale; the second acts for it.
	for range 6 {
		b.tick()
	}
	b.now = a.now.Add(10 * time.Minute)
	b.next()
	b.tick()
	b.list("s")
	w.process(2)
	require.Equal(t, "removed", names(w.checkOnce(), "web")[3])
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
		"before, and followed later": {-time.Minute, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newFixture(t)
			a := w.agent(7)
			there := a.app("there")
			a.begin(2, "s")
			listed := a.now
			a.advance(5 * time.Second)
			there.send()
			there.sendSet(there.sets[0])
			a.end(2)
			// The watcher was down and observes it later.
			late := a.app("late")
			late.created, late.first = listed.Add(c.created), true
			late.sets[0].created = late.created
			late.send()
			late.sendSet(late.sets[0])
			w.process()
			require.Equal(t, c.facts, names(w.checkOnce(), "late"))
			require.Empty(t, w.rebuild(true, 3).Differences)
		})
	}
}

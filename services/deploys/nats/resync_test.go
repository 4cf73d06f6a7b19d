package nats_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAFullResyncIsSilent(t *testing.T) {
	t.Parallel()
	w := setup(t)
	a := w.agent(7)
	apps := a.apps("idle", "flying")
	a.list("s", apps...)
	apps[1].roll("i:2")
	w.take()
	before := w.once()
	for range 3 {
		a.list("s", apps...)
		a.tick()
	}
	w.take()
	require.Equal(t, ids(before), ids(w.once()))
}

func TestWhatACompleteFullResyncLacksIsGone(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		resync func(a *agent, there, gone *app)
		facts  []string
	}{
		"complete":                   {func(a *agent, there, _ *app) { a.list("s", there) }, []string{"removed"}},
		"a member is missing":        {func(a *agent, there, _ *app) { a.begin(3, "s"); there.tell(); there.tellSet(there.sets[0]); a.end(3) }, nil},
		"more came than were said":   {func(a *agent, there, _ *app) { a.begin(1, "s"); there.tell(); there.tellSet(there.sets[0]); a.end(1) }, nil},
		"begin and end do not agree": {func(a *agent, there, _ *app) { a.begin(2, "s"); there.tell(); there.tellSet(there.sets[0]); a.end(3) }, nil},
		"a member came twice": {func(a *agent, there, _ *app) {
			a.begin(2, "s")
			there.tell()
			there.tell()
			there.tellSet(there.sets[0])
			a.end(2)
		}, []string{"removed"}},
		"another begins before its end": {func(a *agent, there, _ *app) {
			a.begin(2, "s")
			first := a.resync
			there.tell()
			a.begin(2, "s")
			a.resync = first
			there.tellSet(there.sets[0])
			a.end(2)
		}, nil},
		"it came up after the listing": {func(a *agent, there, gone *app) {
			a.begin(2, "s")
			gone.rv = a.next()
			resync := a.resync
			a.resync = ""
			gone.tell()
			a.resync = resync
			there.tell()
			there.tellSet(there.sets[0])
			a.end(2)
		}, nil},
		"the watcher follows others now": {func(a *agent, there, _ *app) { a.list("others", there) }, nil},
		"of another cluster": {func(a *agent, there, _ *app) {
			a.cluster = "elsewhere"
			a.list("s", there)
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, batch := range []int{1, 0} {
				w := setup(t)
				a := w.agent(7)
				there, gone := a.app("there"), a.app("gone")
				a.list("s", there, gone)
				a.next()
				c.resync(a, there, gone)
				w.take(batch)
				require.Equal(t, c.facts, names(w.once(), "gone"))
				require.Empty(t, names(w.told(), "there"))
				// It is whole again, and tells the same.
				a.cluster = "cluster-7"
				a.list("s", there, gone)
				w.take(batch)
				require.Empty(t, names(w.told(), "there"))
			}
		})
	}
}

func TestASecondAgentOfAClusterTellsTheSame(t *testing.T) {
	t.Parallel()
	w := setup(t)
	a, b := w.agent(7), w.agent(8)
	b.cluster, b.rv = a.cluster, a.rv
	web := a.app("web")
	both := func(tell func()) {
		for _, one := range []*agent{a, b} {
			web.a = one
			tell()
		}
	}
	a.list("s", web)
	web.a = b
	b.list("s", web)
	web.a = a
	web.roll("i:2")
	both(func() { web.tellSet(web.sets[1]); web.tell() })
	web.finish()
	both(func() { web.tell() })
	w.take(2)
	require.Equal(t, []string{"started", "completed", "drained"}, names(w.once(), "web"))
	// The first one falls silent; the second speaks in its place.
	for range 6 {
		b.tick()
	}
	b.now = a.now.Add(10 * time.Minute)
	b.next()
	b.tick()
	b.list("s")
	w.take(2)
	require.Equal(t, "removed", names(w.once(), "web")[3])
}

func TestAClusterThatWasRestoredBeginsANewEpoch(t *testing.T) {
	t.Parallel()
	w := setup(t)
	a := w.agent(7)
	*a.rv = 10_000
	web := a.app("web")
	a.list("s", web)
	w.take()
	a.pass(2 * time.Hour)
	*a.rv = 500 // everything has lower versions now
	web.rv, web.sets[0].rv = a.next(), a.next()
	a.list("s", web)
	web.roll("i:2")
	web.finish()
	w.take()
	require.Equal(t, []string{"started", "completed"}, names(w.once(), "web")[:2])
	var epoch int
	require.NoError(t, w.pool.QueryRow(t.Context(), `select epoch from agents`).Scan(&epoch))
	require.Equal(t, 1, epoch)
}

func TestWhatWasMadeAfterTheFirstListingIsNew(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		created time.Duration // after the listing
		facts   []string
	}{
		"while it was told":          {2 * time.Second, []string{"started", "completed", "drained"}},
		"before, and followed later": {-time.Minute, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			a := w.agent(7)
			there := a.app("there")
			a.begin(2, "s")
			listed := a.now
			a.pass(5 * time.Second)
			there.tell()
			there.tellSet(there.sets[0])
			a.end(2)
			// The watcher was down, and tells it when it is back.
			late := a.app("late")
			late.created, late.first = listed.Add(c.created), true
			late.sets[0].created = late.created
			late.tell()
			late.tellSet(late.sets[0])
			w.take()
			require.Equal(t, c.facts, names(w.once(), "late"))
			require.Empty(t, w.rebuild(true, 3).Differences)
		})
	}
}

package nats_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/tools/testkit/natstest"
)

// history lets a few workloads roll out, some of them twice.
func (a *agent) history(apps ...*app) {
	a.w.t.Helper()
	for n, p := range apps {
		p.roll("i:2")
		if n%3 == 0 {
			p.step()
		}
		if n%2 == 0 {
			p.finish()
		}
		a.tick()
	}
}

func (a *agent) apps(names ...string) []*app {
	a.w.t.Helper()
	apps := make([]*app, len(names))
	for n, name := range names {
		apps[n] = a.app(name)
	}
	return apps
}

func TestACrashBetweenPublishingAndTheCommitIsHarmless(t *testing.T) {
	t.Parallel()
	w := setup(t)
	a := w.agent(7)
	apps := a.apps("a", "b", "c")
	a.list("s", apps...)
	a.history(apps...)
	i := w.ingest(2)
	var crashes atomic.Int64
	i.Hold(nil, func() error {
		if crashes.Add(1)%2 == 1 {
			return errors.New("crash")
		}
		return nil
	})
	stop := w.run(i)
	w.taken()
	stop()
	require.Greater(t, crashes.Load(), int64(10))
	facts := w.once()
	require.Equal(t, []string{"started", "progressed", "completed", "drained"}, names(facts, "a"))
	require.Equal(t, []string{"started"}, names(facts, "b"))
}

// A replica that lost its place goes on in ignorance of that: after what it does comes to nothing, and before.
func TestAReplicaThatWasSupersededTellsNothingTwice(t *testing.T) {
	t.Parallel()
	for name, published := range map[string]bool{"before it has published": false, "after it has published": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			a := w.agent(7)
			apps := a.apps("a", "b", "c")
			a.list("s", apps...)
			w.take()
			a.history(apps...)

			held, release := make(chan struct{}), make(chan struct{})
			stale := w.ingest(4)
			var once atomic.Bool
			hold := func() error {
				if once.CompareAndSwap(false, true) {
					close(held)
					<-release
				}
				return nil
			}
			if published {
				stale.Hold(nil, hold)
			} else {
				stale.Hold(hold, nil)
			}
			stopStale := w.run(stale)
			<-held
			w.exec(`select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid() and datname = current_database() and state like 'idle in transaction%'`)
			stop := w.run(w.ingest(0))
			w.taken()
			apps[1].finish()
			apps[0].roll("i:3")
			w.taken()
			close(release)
			apps[2].roll("i:3")
			apps[2].finish()
			w.taken()
			stop()
			a.history(apps...)
			w.taken() // by the stale one, which waited for its turn
			stopStale()
			facts := w.once()
			require.Equal(t, []string{"started", "progressed", "completed", "drained", "started"}, names(facts, "a")[:5])
		})
	}
}

func TestWhatARestoredStreamHasLostIsToldAgain(t *testing.T) {
	t.Parallel()
	for name, mended := range map[string]bool{"by the mender": true, "by the reader when there is more to tell": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			a := w.agent(7)
			apps := a.apps("a", "b", "c")
			a.list("s", apps...)
			a.history(apps[:1]...)
			w.take()
			copied := t.TempDir()
			require.NoError(t, w.server.Snapshot(copied))
			natstest.Reconnected(t, w.js.Conn())
			a.history(apps...)
			w.take()
			before := w.once()
			require.NoError(t, w.server.Restore(copied))
			natstest.Reconnected(t, w.js.Conn())
			require.Less(t, len(w.told()), len(before))
			if mended {
				again, err := w.mender().Mend(t.Context())
				require.NoError(t, err)
				require.Positive(t, again)
				require.ElementsMatch(t, ids(before), ids(w.told()))
				w.once()
				again, err = w.mender().Mend(t.Context())
				require.NoError(t, err)
				require.Zero(t, again)
			}
			// The watcher's last words were lost too: it tells everything.
			a.list("s", apps...)
			for _, p := range apps {
				p.roll("i:9")
				p.finish()
			}
			w.take()
			facts := w.once()
			require.Greater(t, len(facts), len(before))
			require.Subset(t, ids(facts), ids(before))
		})
	}
}

// keep keeps what the database has, and restore goes back to it, while readers run.
func (w *world) keep() (restore func()) {
	w.t.Helper()
	tables := []string{"intake", "agents", "resyncs", "resync_members", "workloads", "environments", "facts", "rollouts", "stream_cursors"}
	for _, table := range tables {
		w.exec(`create table kept_` + table + ` as table ` + table)
	}
	return func() {
		w.t.Helper()
		tx, err := w.pool.Begin(w.t.Context())
		require.NoError(w.t, err)
		// As a restore would: whoever is in the midst of something is cut off.
		_, err = tx.Exec(w.t.Context(), `lock table stream_cursors`)
		require.NoError(w.t, err)
		for _, table := range tables {
			for _, statement := range []string{`delete from ` + table, `insert into ` + table + ` table kept_` + table} {
				_, err = tx.Exec(w.t.Context(), statement)
				require.NoError(w.t, err)
			}
		}
		require.NoError(w.t, tx.Commit(w.t.Context()))
	}
}

func TestARestoredDatabaseTellsNothingTwice(t *testing.T) {
	t.Parallel()
	w := setup(t)
	a := w.agent(7)
	apps := a.apps("a", "b", "c")
	a.list("s", apps...)
	stop := w.run(w.ingest(3))
	a.history(apps...)
	w.taken()
	restore := w.keep()
	a.history(apps...)
	w.taken()
	before := w.once()
	restore()
	a.tick() // by which the reader notices
	w.taken()
	stop()
	require.Equal(t, ids(before), ids(w.once()))
	again := rows(t, w.pool)
	w.pool = w.database(t)
	w.take()
	require.Equal(t, rows(t, w.pool), again)
	a.history(apps...)
	w.take()
	require.Greater(t, len(w.once()), len(before))
}

func TestADatabaseThatIsLostIsMadeAnewAndTellsNothingTwice(t *testing.T) {
	t.Parallel()
	w := setup(t)
	a := w.agent(7)
	apps := a.apps("a", "b", "c")
	a.list("s", apps...)
	a.history(apps...)
	a.history(apps...)
	w.take()
	before, then := w.once(), rows(t, w.pool)
	w.pool = w.database(t)
	w.take(3)
	require.Equal(t, ids(before), ids(w.once()))
	require.Equal(t, then, rows(t, w.pool))
}

// The stream of observations has forgotten how it began, and the database is new: what can be concluded from the rest counts on from what was told.
func TestFactsAreNotToldTwiceFromWhatIsLeftOfTheStream(t *testing.T) {
	t.Parallel()
	w := setup(t)
	a := w.agent(7)
	apps := a.apps("a", "b", "c")
	a.list("s", apps...)
	a.history(apps...)
	cut := w.said()
	a.list("s", apps...)
	a.history(apps...)
	w.take()
	before := w.once()
	stream, err := w.js.Stream(t.Context(), "OBSERVED")
	require.NoError(t, err)
	require.NoError(t, stream.Purge(t.Context(), purgeUpTo(cut)))
	w.pool = w.database(t)
	w.take(3)
	a.history(apps...)
	w.take()
	facts := w.told()
	require.Subset(t, ids(facts), ids(before))
	perFact := map[string]int{}
	for i := range facts {
		if r := facts[i].Rollout; r != nil {
			perFact[r.ID+" "+string(facts[i].Fact)+" "+string(rune(facts[i].Ordinal))]++
		}
	}
	for what, count := range perFact {
		require.Equal(t, 1, count, what)
	}
}

// More workloads than may have facts in flight: some are stored while others are told of, and some of the facts are there already.
func TestWorkloadsAreStoredWhileOthersAreToldOf(t *testing.T) {
	t.Parallel()
	w := setup(t)
	a := w.agent(7)
	var apps []*app
	for n := range 600 {
		apps = append(apps, a.app(fmt.Sprintf("web-%d", n)))
	}
	a.list("s", apps...)
	w.take()
	for n, p := range apps {
		if n%2 == 0 {
			p.roll("i:2")
			p.step()
		}
	}
	crashed := make(chan struct{})
	var once sync.Once
	i := w.ingest(0)
	i.Hold(nil, func() error {
		once.Do(func() { close(crashed) })
		return errors.New("crash")
	})
	stop := w.run(i)
	<-crashed
	stop()
	for _, p := range apps {
		if p.image != "i:2" {
			p.roll("i:2")
			p.step()
		}
		p.finish()
	}
	w.take()
	facts := w.once()
	for _, p := range apps {
		require.Equal(t, []string{"started", "progressed", "completed", "drained"}, names(facts, p.name))
	}
	var astray int
	require.NoError(t, w.pool.QueryRow(t.Context(), `
		select count(*) from workloads w where told <> (select max(stream_sequence) from facts f where f.workload = w.id)
			or not exists (select from rollouts r where r.workload = w.id and r.state = 'completed')`).Scan(&astray))
	require.Zero(t, astray)
}

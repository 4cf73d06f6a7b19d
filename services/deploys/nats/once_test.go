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

// rollOut starts a rollout of each workload and completes some of them.
func (a *agent) rollOut(apps ...*app) {
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

func TestCrashBetweenPublishAndCommitPublishesOnce(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a := w.agent(7)
	apps := a.apps("a", "b", "c")
	a.list("s", apps...)
	a.rollOut(apps...)
	reader := w.reader(2)
	var crashes atomic.Int64
	reader.Publisher = hook{Publisher: reader.NewPublisher(), after: func() error {
		if crashes.Add(1)%2 == 1 {
			return errors.New("crash")
		}
		return nil
	}}
	stop := w.run(reader)
	w.awaitProcessed()
	stop()
	require.Greater(t, crashes.Load(), int64(10))
	facts := w.checkOnce()
	require.Equal(t, []string{"started", "progressed", "completed", "drained"}, names(facts, "a"))
	require.Equal(t, []string{"started"}, names(facts, "b"))
}

func TestSupersededReplicaPublishesNothingTwice(t *testing.T) {
	t.Parallel()
	for name, published := range map[string]bool{"before it publishes": false, "after it published": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newFixture(t)
			a := w.agent(7)
			apps := a.apps("a", "b", "c")
			a.list("s", apps...)
			w.process()
			a.rollOut(apps...)

			held, release := make(chan struct{}), make(chan struct{})
			stale := w.reader(4)
			var once atomic.Bool
			hold := func() error {
				if once.CompareAndSwap(false, true) {
					close(held)
					<-release
				}
				return nil
			}
			if published {
				stale.Publisher = hook{Publisher: stale.NewPublisher(), after: hold}
			} else {
				stale.Publisher = hook{Publisher: stale.NewPublisher(), before: hold}
			}
			stopStale := w.run(stale)
			<-held
			w.exec(`select pg_terminate_backend(pid) from pg_stat_activity
				where pid <> pg_backend_pid() and datname = current_database() and state like 'idle in transaction%'`)
			stop := w.run(w.reader(0))
			w.awaitProcessed()
			apps[1].finish()
			apps[0].roll("i:3")
			w.awaitProcessed()
			close(release)
			apps[2].roll("i:3")
			apps[2].finish()
			w.awaitProcessed()
			stop()
			a.rollOut(apps...)
			w.awaitProcessed() // by the stale replica, which was waiting for the lock
			stopStale()
			facts := w.checkOnce()
			require.Equal(t, []string{"started", "progressed", "completed", "drained", "started"}, names(facts, "a")[:5])
		})
	}
}

func TestFactsLostByRestoredStreamAreRepublished(t *testing.T) {
	t.Parallel()
	for name, reconciled := range map[string]bool{"by the reconciler": true, "by the publisher of later facts": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newFixture(t)
			a := w.agent(7)
			apps := a.apps("a", "b", "c")
			a.list("s", apps...)
			a.rollOut(apps[:1]...)
			w.process()
			snapshot := t.TempDir()
			require.NoError(t, w.server.Snapshot(snapshot))
			natstest.Reconnected(t, w.js.Conn())
			a.rollOut(apps...)
			w.process()
			before := w.checkOnce()
			require.NoError(t, w.server.Restore(snapshot))
			natstest.Reconnected(t, w.js.Conn())
			require.Less(t, len(w.published()), len(before))
			if reconciled {
				count, err := w.reconciler().RepublishAll(t.Context())
				require.NoError(t, err)
				require.Positive(t, count)
				require.ElementsMatch(t, ids(before), ids(w.published()))
				w.checkOnce()
				count, err = w.reconciler().RepublishAll(t.Context())
				require.NoError(t, err)
				require.Zero(t, count)
			}
			// The stream also lost the watcher's last messages, so the watcher resyncs.
			a.list("s", apps...)
			for _, p := range apps {
				p.roll("i:9")
				p.finish()
			}
			w.process()
			facts := w.checkOnce()
			require.Greater(t, len(facts), len(before))
			require.Subset(t, ids(facts), ids(before))
		})
	}
}

// backup copies the tables. restore writes them back while readers run.
func (w *fixture) backup() (restore func()) {
	w.t.Helper()
	tables := []string{
		"intake", "agents", "resyncs", "resync_members", "workloads", "environments", "facts", "rollouts", "stream_cursors",
	}
	for _, table := range tables {
		w.exec(`create table backup_` + table + ` as table ` + table)
	}
	return func() {
		w.t.Helper()
		tx, err := w.pool.Begin(w.t.Context())
		require.NoError(w.t, err)
		// As in a real restore, open transactions are aborted.
		_, err = tx.Exec(w.t.Context(), `lock table stream_cursors`)
		require.NoError(w.t, err)
		for _, table := range tables {
			for _, statement := range []string{`delete from ` + table, `insert into ` + table + ` table backup_` + table} {
				_, err = tx.Exec(w.t.Context(), statement)
				require.NoError(w.t, err)
			}
		}
		require.NoError(w.t, tx.Commit(w.t.Context()))
	}
}

func TestRestoredDatabasePublishesNothingTwice(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a := w.agent(7)
	apps := a.apps("a", "b", "c")
	a.list("s", apps...)
	stop := w.run(w.reader(3))
	a.rollOut(apps...)
	w.awaitProcessed()
	restore := w.backup()
	a.rollOut(apps...)
	w.awaitProcessed()
	before := w.checkOnce()
	restore()
	a.tick() // so that the reader processes a batch
	w.awaitProcessed()
	stop()
	require.Equal(t, ids(before), ids(w.checkOnce()))
	after := rows(t, w.pool)
	w.pool = w.database(t)
	w.process()
	require.Equal(t, rows(t, w.pool), after)
	a.rollOut(apps...)
	w.process()
	require.Greater(t, len(w.checkOnce()), len(before))
}

func TestLostDatabaseIsRecreatedAndPublishesNothingTwice(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a := w.agent(7)
	apps := a.apps("a", "b", "c")
	a.list("s", apps...)
	a.rollOut(apps...)
	a.rollOut(apps...)
	w.process()
	before, then := w.checkOnce(), rows(t, w.pool)
	w.pool = w.database(t)
	w.process(3)
	require.Equal(t, ids(before), ids(w.checkOnce()))
	require.Equal(t, then, rows(t, w.pool))
}

// OBSERVED has dropped its first messages, and the database is new. New facts continue the published sequence numbers.
func TestTruncatedStreamPublishesNothingTwice(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a := w.agent(7)
	apps := a.apps("a", "b", "c")
	a.list("s", apps...)
	a.rollOut(apps...)
	dropped := w.lastSequence()
	a.list("s", apps...)
	a.rollOut(apps...)
	w.process()
	before := w.checkOnce()
	stream, err := w.js.Stream(t.Context(), "OBSERVED")
	require.NoError(t, err)
	require.NoError(t, stream.Purge(t.Context(), purgeUpTo(dropped)))
	w.pool = w.database(t)
	w.process(3)
	a.rollOut(apps...)
	w.process()
	facts := w.published()
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

// The batch has more workloads than facts may be in flight. Some of the facts are published already.
func TestMoreWorkloadsThanFactsInFlight(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a := w.agent(7)
	var apps []*app
	for n := range 600 {
		apps = append(apps, a.app(fmt.Sprintf("web-%d", n)))
	}
	a.list("s", apps...)
	w.process()
	for n, p := range apps {
		if n%2 == 0 {
			p.roll("i:2")
			p.step()
		}
	}
	crashed := make(chan struct{})
	var once sync.Once
	reader := w.reader(0)
	reader.Publisher = hook{Publisher: reader.NewPublisher(), after: func() error {
		once.Do(func() { close(crashed) })
		return errors.New("crash")
	}}
	stop := w.run(reader)
	<-crashed
	stop()
	for _, p := range apps {
		if p.image != "i:2" {
			p.roll("i:2")
			p.step()
		}
		p.finish()
	}
	w.process()
	facts := w.checkOnce()
	for _, p := range apps {
		require.Equal(t, []string{"started", "progressed", "completed", "drained"}, names(facts, p.name))
	}
	var inconsistent int
	require.NoError(t, w.pool.QueryRow(t.Context(), `
		select count(*) from workloads w where told <> (select max(stream_sequence) from facts f where f.workload = w.id)
			or not exists (select from rollouts r where r.workload = w.id and r.state = 'completed')`).Scan(&inconsistent))
	require.Zero(t, inconsistent)
}

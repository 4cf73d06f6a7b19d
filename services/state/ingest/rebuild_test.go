package ingest_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"lockstep.internal/libs/readmodel"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/rebuild"
	"lockstep.internal/services/state/workspace"
)

func noProgress(readmodel.Progress) error { return nil }

func (w *fixture) tryRebuild(
	ctx context.Context,
	check bool,
	batch int,
	onProgress func(readmodel.Progress) error,
) (readmodel.Outcome, error) {
	w.t.Helper()
	r := rebuild.New(w.consumers(batch), onProgress)
	return r.Run(ctx, check)
}

func (w *fixture) rebuild(check bool, batch int) readmodel.Outcome {
	w.t.Helper()
	out, err := w.tryRebuild(w.t.Context(), check, batch, noProgress)
	require.NoError(w.t, err)
	require.Equal(w.t, !check, out.Replaced)
	return out
}

// requireIdentical checks that a rebuild gives the live tables, for each batch size. Defaults to 50.
func (w *fixture) requireIdentical(what string, batches ...int) {
	w.t.Helper()
	if len(batches) == 0 {
		batches = []int{50}
	}
	for _, batch := range batches {
		out := w.rebuild(true, batch)
		require.Empty(w.t, out.Differences, "%s, in batches of %d", what, batch)
		for _, table := range out.Tables {
			require.Zero(w.t, table.Different, "%s: %s", what, table.Name)
		}
	}
}

// dump returns all rows of the tables that a rebuild reads or writes, as text.
func (w *fixture) dump() map[string][]string {
	w.t.Helper()
	out := map[string][]string{}
	tables := []string{
		"agents", "observed_objects", "resyncs", "orphans", "workspaces", "outbox", "stream_cursors", "projects", "users",
	}
	for _, table := range tables {
		rows, err := w.pool.Query(w.t.Context(), `select t::text from `+table+` t order by 1`)
		require.NoError(w.t, err)
		out[table], err = pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(w.t, err)
	}
	return out
}

// FuzzRebuildMatchesLiveTables runs each rebuild test with random histories.
func FuzzRebuildMatchesLiveTables(f *testing.F) {
	kinds := []func(*testing.T, uint64){
		checkWholeHistory, checkCorruption, checkRebuildDuringTraffic, checkExpiredMessages, checkRestoredStreams,
	}
	for seed := range uint64(2) {
		f.Add(seed, uint8(0))
	}
	// Regressions: seeds that once failed.
	f.Add(uint64(22), uint8(1))
	f.Add(uint64(3), uint8(3))
	f.Add(uint64(6612163047009132882), uint8(3))
	f.Add(uint64(5009), uint8(3))
	f.Add(uint64(2021), uint8(4))
	f.Add(uint64(2035), uint8(4))
	f.Fuzz(func(t *testing.T, seed uint64, kind uint8) {
		t.Parallel()
		kinds[int(kind)%len(kinds)](t, seed)
	})
}

func checkWholeHistory(t *testing.T, seed uint64) {
	t.Helper()
	w := newFixture(t)
	w.randomHistory(seed).run(150)
	require.NotEmpty(t, w.deadLetterReasons(), "the rebuild has messages to skip")
	w.requireIdentical("after everything", 0, 7, 1)
}

func TestRebuildReportsAndRepairsCorruption(t *testing.T) {
	t.Parallel()
	checkCorruption(t, seed(t))
}

func checkCorruption(t *testing.T, seed uint64) {
	t.Helper()
	w := newFixture(t)
	c := w.randomHistory(seed)
	c.run(150)
	c.settle()
	w.requireIdentical("before")
	before := w.dump()
	dead := len(w.deadLetterReasons())
	const insertObject = `insert into observed_objects
		(agent_id, kind, namespace, name, uid, cluster_uid, epoch, resource_version, deleted, data) `
	for _, corruption := range []struct{ statement, table, want string }{
		{
			`update workspaces set actual_state = 'failed', reason = 'Corrupt' where actual_state <> 'terminated'`,
			"workspaces", `reason is "Corrupt", the streams give`,
		},
		{
			`update workspaces set applied_revision = 99 where actual_state <> 'terminated'`,
			"workspaces", "applied_revision is 99, the streams give",
		},
		{
			`update workspaces set termination = 'finished' where termination = 'none'`,
			"workspaces", `termination is "finished", the streams give "none"`,
		},
		{`delete from observed_objects where kind = 'deployment'`, "observed_objects", "is missing"},
		{`update observed_objects set deleted = not deleted`, "observed_objects", "deleted is"},
		{
			`update observed_objects set data = replace(data, '"has_status":true', '"has_status":false')
			where kind = 'deployment'`,
			"observed_objects", "data is",
		},
		{
			`update observed_objects set resource_version = resource_version + 1000`,
			"observed_objects", "resource_version is",
		},
		{
			insertObject + `values (7, 'pod', 'ws', 'invented', 'u', 'c', 2, 1, false, '{}')`,
			"observed_objects", "observed_objects 7/pod/ws/invented: is stored, but not in the streams",
		},
		{`update resyncs set outcome = 'open', received = 1000`, "resyncs", `outcome is "open", the streams give`},
		{`delete from resyncs`, "resyncs", "is missing"},
		{`update agents set epoch = 50, ticked_at = now()`, "agents", "epoch is 50, the streams give"},
		{
			`update agents set cluster_uid = 'another'`,
			"agents", `cluster_uid is "another", the streams give "cluster-`,
		},
	} {
		w.exec(corruption.statement)
		corrupted := w.dump()
		out := w.rebuild(true, 0)
		require.Contains(t, strings.Join(out.Differences, "\n"), corruption.want, corruption.statement)
		at := slices.IndexFunc(out.Tables, func(t readmodel.TableComparison) bool { return t.Name == corruption.table })
		require.Positive(t, out.Tables[at].Different, corruption.statement)
		require.Equal(t, corrupted, w.dump(), "a check changes nothing")

		replaced := w.rebuild(false, 0)
		require.Equal(t, out.Tables, replaced.Tables, "what was checked is what is replaced")
		require.Equal(t, before, w.dump(), "repaired: %s", corruption.statement)
	}
	require.Len(t, w.deadLetterReasons(), dead)
	require.Empty(t, w.rebuild(true, 0).Differences)
	w.exec(`update observed_objects set deleted = not deleted`)
	w.exec(insertObject + `select 7, 'pod', 'ws', 'invented-' || n, 'u', 'c', 2, 1, false, '{}'
		from generate_series(1, 200) n`)
	require.Len(t, w.rebuild(false, 0).Differences, 100, "the first hundred")
}

func TestReadersAndUsersContinueDuringARebuild(t *testing.T) {
	t.Parallel()
	checkRebuildDuringTraffic(t, seed(t))
}

func checkRebuildDuringTraffic(t *testing.T, seed uint64) {
	t.Helper()
	w := newFixture(t)
	c := w.randomHistory(seed)
	c.run(100)
	stop := w.startConsumers(5)
	ctx, cancel := context.WithCancel(t.Context())
	var rebuilding sync.WaitGroup
	var rebuilds atomic.Int64
	rebuilding.Go(func() {
		for ctx.Err() == nil {
			out, err := w.tryRebuild(t.Context(), rebuilds.Load()%2 == 0, 0, noProgress)
			if err != nil {
				t.Errorf("rebuild: %v", err)
				return
			}
			if len(out.Differences) > 0 {
				t.Errorf("rebuild during traffic: differences %q", out.Differences)
			}
			rebuilds.Add(1)
		}
	})
	for steps := 0; steps < 100 || rebuilds.Load() < 4 && !t.Failed(); steps++ {
		c.step()
		if steps%20 == 0 {
			w.caughtUp() // limit the backlog on a slow machine
		}
	}
	w.caughtUp()
	cancel()
	rebuilding.Wait()
	stop()
	require.Empty(t, w.logs.matching("deadlock"))
	w.requireIdentical("after rebuilds during traffic")
}

func TestCanceledRebuildChangesNothing(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	c := w.randomHistory(seed(t))
	c.run(100)
	w.exec(`update workspaces set actual_state = 'failed', reason = 'Corrupt'`)
	corrupted := w.dump()

	// While it reads.
	ctx, cancel := context.WithCancel(t.Context())
	_, err := w.tryRebuild(ctx, false, 10, func(p readmodel.Progress) error {
		if p.Stream == topology.StreamObserved && p.Sequence > p.Last/2 {
			cancel()
		}
		return nil
	})
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, corrupted, w.dump())
	gone := errors.New("the caller is gone")
	_, err = w.tryRebuild(t.Context(), false, 10, func(readmodel.Progress) error { return gone })
	require.ErrorContains(t, err, "the caller is gone")
	require.Equal(t, corrupted, w.dump())

	// Canceled while it blocks the consumers and waits for a locked workspace.
	user, err := w.pool.Begin(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = user.Rollback(context.WithoutCancel(t.Context())) })
	_, err = user.Exec(t.Context(), `select from workspaces for update`)
	require.NoError(t, err)
	ctx, cancel = context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := w.tryRebuild(ctx, false, 0, noProgress)
		ended <- err
	}()
	require.Eventually(t, func() bool {
		var waiting int
		err := w.pool.QueryRow(t.Context(), `
			select count(*) from pg_stat_activity
			where wait_event_type = 'Lock' and datname = current_database()`).Scan(&waiting)
		return err == nil && waiting == 1
	}, timeout, 5*time.Millisecond)
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	require.NoError(t, user.Rollback(t.Context()))
	require.Equal(t, corrupted, w.dump())

	// No locks remain and the consumers continue.
	c.agents[0].ticks()
	w.ingestAll()
	w.rebuild(false, 0)
	w.requireIdentical("after a repair")
}

func TestOneRebuildAtATime(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	w.randomHistory(1).run(20)
	tried := false
	_, err := w.tryRebuild(t.Context(), true, 0, func(readmodel.Progress) error {
		if tried {
			return nil
		}
		tried = true
		_, err := w.tryRebuild(t.Context(), true, 0, noProgress)
		require.True(t, fault.Is(err, errcode.Conflict), "%v", err)
		require.ErrorContains(t, err, "another rebuild is running")
		return nil
	})
	require.NoError(t, err)
	require.True(t, tried)
	w.requireIdentical("after the other rebuild")
}

// A rebuild does not know whether a state was computed before or after a change of the desired state. It leaves
// due states to the next tick.
func TestNextTickRepairsDueStates(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	changed, configured := w.workspace("changed"), w.workspace("configured")
	a := w.agent(7)
	for _, ws := range []workspace.Workspace{changed, configured} {
		a.reportsDeployment(running(ws, 5))
		a.applies(ws.ID, 1)
	}
	a.ticks()
	w.ingestAll()
	for _, due := range []struct {
		id   uuid.UUID
		make func()
	}{
		{changed.ID, func() { w.desire(changed.ID, workspace.DesiredStopped) }},
		{configured.ID, func() {
			w.exec(`update agents set configuration_revision = configuration_revision + 1 where id = 7`)
		}},
	} {
		due.make()
		w.exec(`update workspaces set actual_state = 'failed', reason = 'Corrupt' where id = '` + due.id.String() + `'`)
		w.requireIdentical("a due state is copied")
		a.ticks()
		w.ingestAll()
		require.Equal(t, "running", string(w.get(due.id).ActualState))
		w.requireIdentical("after the tick")
		w.exec(`update workspaces set actual_state = 'failed', reason = 'Corrupt' where id = '` + due.id.String() + `'`)
		require.Len(t, w.rebuild(false, 0).Differences, 1, "it is not due any more")
		require.Equal(t, "running", string(w.get(due.id).ActualState))
	}
}

// A workspace is terminated after its Deployment was deleted. The same observations now give another state.
func TestLaterDesiredStateDoesNotChangeARebuild(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	ws := w.workspace("w")
	a := w.agent(7)
	a.reportsDeployment(running(ws, 5))
	a.reportsDeployment(deletedDeployment(ws, 6))
	w.ingestAll()
	w.desire(ws.ID, workspace.DesiredTerminated)
	require.Equal(t, "unknown", string(w.get(ws.ID).ActualState))
	w.requireIdentical("until the next tick")
	a.ticks()
	w.ingestAll()
	require.Equal(t, "terminating", string(w.get(ws.ID).ActualState))
	w.requireIdentical("after it")

	other := w.workspace("other")
	a.fails(other.ID, 1)
	w.ingestAll()
	a.applies(other.ID, 1)
	w.ingestAll()
	require.Equal(
		t,
		"creation_requested",
		string(w.get(other.ID).ActualState),
		"as if the apply had never failed",
	)
	w.requireIdentical("after a resolved apply error, without observations")
	for _, e := range w.published("workspace.%.state_changed") {
		require.NotContains(t, e, "unexpected")
	}
}

func TestRebuildReportsProgress(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	w.randomHistory(3).run(40)
	last := map[string]readmodel.Progress{}
	_, err := w.tryRebuild(t.Context(), true, 4, func(p readmodel.Progress) error {
		require.Greater(t, p.Sequence, last[p.Stream].Sequence)
		require.LessOrEqual(t, p.Sequence, p.Last)
		last[p.Stream] = p
		return nil
	})
	require.NoError(t, err)
	for _, stream := range []string{topology.StreamObserved, topology.StreamApplied} {
		require.Equal(t, w.sequence(w.pool, stream), last[stream].Sequence)
	}
}

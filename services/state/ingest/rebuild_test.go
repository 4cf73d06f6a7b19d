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

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	store "lockstep.internal/services/state/postgres"
	"lockstep.internal/services/state/rebuild"
	"lockstep.internal/services/state/workspace"
)

func silent(rebuild.Progress) error { return nil }

func (w *fixture) tryRebuild(
	ctx context.Context,
	check bool,
	batch int,
	told func(rebuild.Progress) error,
) (rebuild.Outcome, error) {
	w.t.Helper()
	r := &rebuild.Rebuild{Readers: w.readers(batch), OnProgress: told}
	return r.Run(ctx, check)
}

func (w *fixture) rebuild(check bool, batch int) rebuild.Outcome {
	w.t.Helper()
	out, err := w.tryRebuild(w.t.Context(), check, batch, silent)
	require.NoError(w.t, err)
	require.Equal(w.t, !check, out.Replaced)
	return out
}

// identical is that a rebuild gives what is there, in batches of these sizes, 50 by default.
func (w *fixture) identical(what string, batches ...int) {
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

// everything is all rows of all that there is, as text, but how far the outbox is.
func (w *fixture) everything() map[string][]string {
	w.t.Helper()
	out := map[string][]string{}
	for _, table := range []string{"agents", "observed_objects", "resyncs", "orphans", "workspaces", "outbox", "stream_cursors", "projects", "users"} {
		rows, err := w.pool.Query(w.t.Context(), `select t::text from `+table+` t order by 1`)
		require.NoError(w.t, err)
		out[table], err = pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(w.t, err)
	}
	return out
}

// FuzzRebuildMatchesLiveTables lets random histories happen, of each kind that a test here has one of.
func FuzzRebuildMatchesLiveTables(f *testing.F) {
	kinds := []func(*testing.T, uint64){wholeHistory, corruption, livingSystem, forgetting, restoring}
	for seed := range uint64(6) {
		f.Add(seed, uint8(0))
	}
	// Histories that once were not given back.
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

func wholeHistory(t *testing.T, seed uint64) {
	t.Helper()
	w := newFixture(t)
	w.chaos(seed).live(250)
	require.NotEmpty(t, w.dead(), "there was something to skip")
	w.identical("after everything", 0, 7, 1)
}

func TestRebuildReportsAndRepairsCorruption(t *testing.T) {
	t.Parallel()
	corruption(t, seed(t))
}

func corruption(t *testing.T, seed uint64) {
	t.Helper()
	w := newFixture(t)
	c := w.chaos(seed)
	c.live(150)
	c.settle()
	w.identical("before")
	before := w.everything()
	dead := len(w.dead())
	const madeUp = `insert into observed_objects (agent_id, kind, namespace, name, uid, cluster_uid, epoch, resource_version, deleted, data) `
	for _, spoil := range []struct{ statement, table, says string }{
		{`update workspaces set actual_state = 'failed', reason = 'Spoilt' where actual_state <> 'terminated'`, "workspaces", `reason is "Spoilt", by the streams`},
		{`update workspaces set applied_revision = 99 where actual_state <> 'terminated'`, "workspaces", "applied_revision is 99, by the streams"},
		{`update workspaces set termination = 'finished' where termination = 'none'`, "workspaces", `termination is "finished", by the streams "none"`},
		{`delete from observed_objects where kind = 'deployment'`, "observed_objects", "is missing"},
		{`update observed_objects set deleted = not deleted`, "observed_objects", "deleted is"},
		{`update observed_objects set data = replace(data, '"has_status":true', '"has_status":false') where kind = 'deployment'`, "observed_objects", "data is"},
		{`update observed_objects set resource_version = resource_version + 1000`, "observed_objects", "resource_version is"},
		{madeUp + `values (7, 'pod', 'ws', 'made-up', 'u', 'c', 2, 1, false, '{}')`, "observed_objects", "observed_objects 7/pod/ws/made-up: is there, but not by the streams"},
		{`update resyncs set outcome = 'open', received = 1000`, "resyncs", `outcome is "open", by the streams`},
		{`delete from resyncs`, "resyncs", "is missing"},
		{`update agents set epoch = 50, ticked_at = now()`, "agents", "epoch is 50, by the streams"},
		{`update agents set cluster_uid = 'another'`, "agents", `cluster_uid is "another", by the streams "cluster-`},
	} {
		w.exec(spoil.statement)
		spoilt := w.everything()
		out := w.rebuild(true, 0)
		require.Contains(t, strings.Join(out.Differences, "\n"), spoil.says, spoil.statement)
		at := slices.IndexFunc(out.Tables, func(table store.RebuiltTable) bool { return table.Name == spoil.table })
		require.Positive(t, out.Tables[at].Different, spoil.statement)
		require.Equal(t, spoilt, w.everything(), "a check changes nothing")

		replaced := w.rebuild(false, 0)
		require.Equal(t, out.Tables, replaced.Tables, "what was checked is what is replaced")
		require.Equal(t, before, w.everything(), "mended: %s", spoil.statement)
	}
	require.Len(t, w.dead(), dead)
	require.Empty(t, w.rebuild(true, 0).Differences)
	w.exec(`update observed_objects set deleted = not deleted`)
	w.exec(madeUp + `select 7, 'pod', 'ws', 'made-up-' || n, 'u', 'c', 2, 1, false, '{}' from generate_series(1, 200) n`)
	require.Len(t, w.rebuild(false, 0).Differences, 100, "the first hundred")
}

func TestReadersAndUsersContinueDuringARebuild(t *testing.T) {
	t.Parallel()
	livingSystem(t, seed(t))
}

func livingSystem(t *testing.T, seed uint64) {
	t.Helper()
	w := newFixture(t)
	c := w.chaos(seed)
	c.live(100)
	stop := w.begin(5)
	ctx, cancel := context.WithCancel(t.Context())
	var rebuilding sync.WaitGroup
	var rebuilds atomic.Int64
	rebuilding.Go(func() {
		for ctx.Err() == nil {
			out, err := w.tryRebuild(t.Context(), rebuilds.Load()%2 == 0, 0, silent)
			if err != nil {
				t.Errorf("rebuild: %v", err)
				return
			}
			if len(out.Differences) > 0 {
				t.Errorf("a rebuild of a living system differs: %q", out.Differences)
			}
			rebuilds.Add(1)
		}
	})
	for steps := 0; steps < 100 || rebuilds.Load() < 4 && !t.Failed(); steps++ {
		c.step()
		if steps%20 == 0 {
			w.caughtUp() // or the streams would grow faster than a busy machine reads them
		}
	}
	w.caughtUp()
	cancel()
	rebuilding.Wait()
	stop()
	require.Empty(t, w.logs.matching("deadlock"))
	w.identical("after rebuilds of a living system")
}

func TestCanceledRebuildChangesNothing(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	c := w.chaos(seed(t))
	c.live(100)
	w.exec(`update workspaces set actual_state = 'failed', reason = 'Spoilt'`)
	spoilt := w.everything()

	// While it reads.
	ctx, cancel := context.WithCancel(t.Context())
	_, err := w.tryRebuild(ctx, false, 10, func(p rebuild.Progress) error {
		if p.Stream == topology.StreamObserved && p.Sequence > p.Last/2 {
			cancel()
		}
		return nil
	})
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, spoilt, w.everything())
	_, err = w.tryRebuild(t.Context(), false, 10, func(rebuild.Progress) error { return errors.New("the caller is gone") })
	require.ErrorContains(t, err, "the caller is gone")
	require.Equal(t, spoilt, w.everything())

	// While it holds the readers, and waits for somebody who changes a workspace.
	user, err := w.pool.Begin(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = user.Rollback(context.WithoutCancel(t.Context())) })
	_, err = user.Exec(t.Context(), `select from workspaces for update`)
	require.NoError(t, err)
	ctx, cancel = context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := w.tryRebuild(ctx, false, 0, silent)
		ended <- err
	}()
	require.Eventually(t, func() bool {
		var waiting int
		err := w.pool.QueryRow(t.Context(), `select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()`).
			Scan(&waiting)
		return err == nil && waiting == 1
	}, soon, 5*time.Millisecond)
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	require.NoError(t, user.Rollback(t.Context()))
	require.Equal(t, spoilt, w.everything())

	// Nothing of them is left, and the readers go on.
	c.agents[0].ticks()
	w.ingestAll()
	w.rebuild(false, 0)
	w.identical("mended at last")
}

func TestOneRebuildAtATime(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	w.chaos(1).live(20)
	tried := false
	_, err := w.tryRebuild(t.Context(), true, 0, func(rebuild.Progress) error {
		if tried {
			return nil
		}
		tried = true
		_, err := w.tryRebuild(t.Context(), true, 0, silent)
		require.True(t, fault.Is(err, errcode.Conflict), "%v", err)
		require.ErrorContains(t, err, "another rebuild is running")
		return nil
	})
	require.NoError(t, err)
	require.True(t, tried)
	w.identical("and then the next")
}

// A rebuild cannot know whether a state was computed before or after something was wished for, and so
// leaves it to the tick that computes it anew.
func TestNextTickRepairsDueStates(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	wished, configured := w.workspace("wished"), w.workspace("configured")
	a := w.agent(7)
	for _, ws := range []workspace.Workspace{wished, configured} {
		a.reportsDeployment(running(ws, 5))
		a.applies(ws.ID, 1)
	}
	a.ticks()
	w.ingestAll()
	for _, due := range []struct {
		id   uuid.UUID
		make func()
	}{
		{wished.ID, func() { w.desire(wished.ID, workspace.DesiredStopped) }},
		{configured.ID, func() { w.exec(`update agents set configuration_revision = configuration_revision + 1 where id = 7`) }},
	} {
		due.make()
		w.exec(`update workspaces set actual_state = 'failed', reason = 'Spoilt' where id = '` + due.id.String() + `'`)
		w.identical("as it is stored")
		a.ticks()
		w.ingestAll()
		require.Equal(t, "running", string(w.get(due.id).ActualState))
		w.identical("as it is")
		w.exec(`update workspaces set actual_state = 'failed', reason = 'Spoilt' where id = '` + due.id.String() + `'`)
		require.Len(t, w.rebuild(false, 0).Differences, 1, "it is not due any more")
		require.Equal(t, "running", string(w.get(due.id).ActualState))
	}
}

// Somebody wants a workspace terminated whose Deployment has gone before: what its cluster shows means
// something else from then on.
func TestLaterDesiredStateDoesNotChangeARebuild(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	ws := w.workspace("w")
	a := w.agent(7)
	a.reportsDeployment(running(ws, 5))
	a.reportsDeployment(absent(ws, 6))
	w.ingestAll()
	w.desire(ws.ID, workspace.DesiredTerminated)
	require.Equal(t, "unknown", string(w.get(ws.ID).ActualState))
	w.identical("until the next tick")
	a.ticks()
	w.ingestAll()
	require.Equal(t, "terminating", string(w.get(ws.ID).ActualState))
	w.identical("after it")

	other := w.workspace("other")
	a.fails(other.ID, 1)
	w.ingestAll()
	a.applies(other.ID, 1)
	w.ingestAll()
	require.Equal(
		t,
		"creation_requested",
		string(w.get(other.ID).ActualState),
		"as it would be had the error never been heard of",
	)
	w.identical("an error that is over, and nothing seen")
	for _, e := range w.published("workspace.%.state_changed") {
		require.NotContains(t, e, "unexpected")
	}
}

func TestRebuildReportsProgress(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	w.chaos(3).live(40)
	last := map[string]rebuild.Progress{}
	_, err := w.tryRebuild(t.Context(), true, 4, func(p rebuild.Progress) error {
		require.Greater(t, p.Sequence, last[p.Stream].Sequence)
		require.LessOrEqual(t, p.Sequence, p.Last)
		last[p.Stream] = p
		return nil
	})
	require.NoError(t, err)
	for _, stream := range []string{topology.StreamObserved, topology.StreamApplied} {
		require.Equal(t, w.sequence(stream), last[stream].Sequence)
	}
}

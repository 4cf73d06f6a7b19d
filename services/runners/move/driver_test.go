package move_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/assign"
	"lockstep.internal/services/runners/execution"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/move"
	"lockstep.internal/services/runners/postgres"
)

const twoStages = "stages: [a, b]\na: {stage: a, script: x, retry: 1}\nb: {stage: b, script: x}\n"

// take claims a job for a runner.
func (c *cell) take(j job.Job) error {
	c.t.Helper()
	change, err := j.Take(job.Claim{RunnerID: 31, ManagerID: 77}, c.now())
	require.NoError(c.t, err)
	stored, err := c.picks().Claim(c.t.Context(), []assign.Claim{{
		Change: change, TokenHash: [32]byte{1}, ExpiresAt: c.now().Add(time.Hour),
	}})
	if err == nil && !stored[j.ID] {
		err = errors.New("not claimed")
	}
	return err
}

// update stores what a runner of a job reports.
func (c *cell) update(id int64, decide execution.Decide) {
	c.t.Helper()
	require.NoError(c.t, c.executions().UpdateJob(c.t.Context(), id, decide))
}

// end ends a job that a runner has.
func (c *cell) end(id int64, result job.Result) {
	c.t.Helper()
	c.update(id, func(s execution.Snapshot) (execution.Decision, error) {
		change, err := s.Job.Finish(result, c.now())
		return execution.Decision{Change: &change}, err
	})
}

// finished creates a pipeline whose job has ended, with a trace and an artifact.
func (c *cell) finished() (pipeline int64, id int64) {
	c.t.Helper()
	p := c.create("work: {script: x}")
	j := c.job(p.ID, "work")
	require.NoError(c.t, c.take(j))
	key := junit(c, j.ID)
	c.update(j.ID, func(execution.Snapshot) (execution.Decision, error) {
		return execution.Decision{Artifact: &key}, nil
	})
	_, err := c.pool.Exec(c.t.Context(), `INSERT INTO traces (job_id, state) VALUES ($1, $2)
		ON CONFLICT (job_id) DO UPDATE SET state = excluded.state`, j.ID, `{"size": 5}`)
	require.NoError(c.t, err)
	_, err = c.pool.Exec(c.t.Context(), `INSERT INTO trace_parts VALUES ($1, 0, 0, 'hello')`, j.ID)
	require.NoError(c.t, err)
	c.end(j.ID, job.Result{})
	return p.ID, j.ID
}

// junit stores content for a job.
func junit(c *cell, jobID int64) execution.Artifact {
	c.t.Helper()
	var content bytes.Buffer
	packed := gzip.NewWriter(&content)
	_, err := packed.Write([]byte(`<?xml version="1.0"?><testsuites/>`))
	require.NoError(c.t, err)
	require.NoError(c.t, packed.Close())
	key := "jobs/x/" + c.now().Format("150405.000") + strings.ToLower(c.t.Name()[:4])
	store := c.artifacts.Reserving()
	info, err := store.Put(c.t.Context(), key, &content, 1<<20)
	require.NoError(c.t, err)
	return execution.Artifact{
		JobID: jobID, Type: "junit", Format: "gzip", Filename: "junit.xml.gz", Size: info.Size, SHA256: info.SHA256,
		Object: key, CreatedAt: c.now(), ExpiresAt: c.now().Add(time.Hour),
	}
}

func TestOrganizationMovesAndBack(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r, token := f.one.newRunner()
	waiting := f.one.create(twoStages)
	_, done := f.one.finished()
	f.begin(f.one, f.two)
	require.NoError(t, f.driver(f.one).Once(t.Context()))
	require.Equal(t, move.Done, f.latest(f.one).Phase, f.latest(f.one).Message)
	require.Equal(t, []string{
		"begin", "export", "import", "end moved", "end arrival moved", "revoke source",
	}, f.state.calls)
	require.Zero(t, f.one.count(`SELECT (SELECT count(*) FROM pipelines) + (SELECT count(*) FROM jobs)
		+ (SELECT count(*) FROM runners) + (SELECT count(*) FROM traces) + (SELECT count(*) FROM artifacts)
		+ (SELECT count(*) FROM moves WHERE tokens IS NOT NULL)`))

	// The target has everything, with the same ids.
	moved, err := postgres.Runners{Pool: f.two.pool}.Read(t.Context(), r.ID)
	require.NoError(t, err)
	require.Equal(t, r.TokenHash, moved.TokenHash)
	first := f.two.job(waiting.ID, "a")
	require.Equal(t, job.Pending, first.State)
	part, err := postgres.Traces{Pool: f.two.pool}.ReadTrace(t.Context(), done, 0, 100)
	require.NoError(t, err)
	require.Equal(t, "hello", string(part.Data))
	found, err := postgres.Artifacts{Pool: f.two.pool}.Find(t.Context(), done, "junit")
	require.NoError(t, err)
	content, _, err := f.two.objects.Open(t.Context(), found.Object)
	require.NoError(t, err)
	require.NoError(t, content.Close())
	require.NoError(t, f.two.take(first))
	require.Equal(t, 1, f.one.count(`SELECT count(*) FROM outbox WHERE subject LIKE '%.'||$1::bigint||'.moved'`, done))
	require.Equal(t, 1, f.two.count(`SELECT count(*) FROM outbox WHERE subject LIKE '%.'||$1::bigint||'.arrived'`, done))

	// The source answers the last request of a runner again, and sends nobody away for good.
	s, err := f.one.executions().Read(t.Context(), done)
	require.NoError(t, err)
	require.Equal(t, job.Success, s.Job.State)
	requireCode(t, errcode.OrganizationMoving, postgres.Runners{Pool: f.one.pool}.Elsewhere(t.Context(), organization))
	require.NotEmpty(t, token)

	// Back again, while a job runs.
	f.advance(time.Minute)
	f.begin(f.two, f.one)
	require.NoError(t, f.driver(f.two).Once(t.Context()))
	require.Equal(t, move.HandingOver, f.latest(f.two).Phase)
	require.Equal(t, 1, f.two.count(`SELECT count(*) FROM pipelines`))
	f.two.end(first.ID, job.Result{Reason: job.ScriptFailure})
	require.NoError(t, f.driver(f.two).Once(t.Context()))
	require.Equal(t, move.Done, f.latest(f.two).Phase, f.latest(f.two).Message)
	retried := f.one.job(waiting.ID, "a")
	require.Equal(t, first.ID, retried.RetryOf)
	f.advance(time.Minute)
	require.NoError(t, f.one.scheduler.BeginDue(t.Context()))
	require.NoError(t, f.one.take(f.one.job(waiting.ID, "a")))
	f.one.end(retried.ID, job.Result{})
	require.Equal(t, job.Pending, f.one.job(waiting.ID, "b").State)
	require.NoError(t, postgres.Runners{Pool: f.one.pool}.Elsewhere(t.Context(), organization))
	back, err := f.one.moves.Returned(t.Context())
	require.NoError(t, err)
	require.Equal(t, []int64{organization}, back)
	f.one.create("again: {script: x}")
}

func requireCode(t *testing.T, want fault.Code, err error) {
	t.Helper()
	require.Equal(t, want, fault.CodeOf(err), "%v", err)
}

// TestNothingChangesWhileAnOrganizationMoves tries all changes after the begin of a move.
func TestNothingChangesWhileAnOrganizationMoves(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r, _ := f.one.newRunner()
	running, waiting := f.one.create(twoStages), f.one.create(twoStages)
	a := f.one.job(running.ID, "a")
	require.NoError(t, f.one.take(a))
	pending := f.one.job(waiting.ID, "a")
	f.begin(f.one, f.two)
	ctx := t.Context()
	require.ErrorContains(t, f.one.take(pending), "not claimed")
	live, err := f.one.picks().Live(ctx)
	require.NoError(t, err)
	require.Len(t, live, 1)
	read, err := f.one.picks().Read(ctx, []int64{a.ID, pending.ID})
	require.NoError(t, err)
	require.Len(t, read, 1)
	requireCode(t, errcode.OrganizationMoving, f.one.scheduler.CancelPipeline(ctx, waiting.ID, 5))
	requireCode(t, errcode.OrganizationMoving, f.one.scheduler.RetryPipeline(ctx, waiting.ID))
	requireCode(t, errcode.OrganizationMoving, f.one.scheduler.CancelJob(ctx, a.ID, 5))
	_, err = f.one.scheduler.RetryJob(ctx, a.ID)
	requireCode(t, errcode.OrganizationMoving, err)
	store := postgres.Runners{Pool: f.one.pool}
	_, err = store.Update(ctx, r)
	requireCode(t, errcode.OrganizationMoving, err)
	_, err = store.Create(ctx, r)
	requireCode(t, errcode.OrganizationMoving, err)
	requireCode(t, errcode.OrganizationMoving, store.Delete(ctx, r.ID))

	// The running job ends here, and its retry waits.
	f.one.end(a.ID, job.Result{Reason: job.ScriptFailure})
	f.advance(time.Minute)
	require.NoError(t, f.one.scheduler.BeginDue(ctx))
	require.Equal(t, job.Created, f.one.job(running.ID, "a").State)
	next, err := f.one.scheduler.Store.NextDelay(ctx)
	require.NoError(t, err)
	require.Zero(t, next, "a delay of an organization that moves is nobody's")

	// After a cancellation everything works again.
	service := move.NewService(move.Config{Store: f.one.moves, Now: f.now})
	canceled, err := service.Cancel(ctx, organization)
	require.NoError(t, err)
	require.Equal(t, move.Canceling, canceled.Phase)
	require.NoError(t, f.driver(f.one).Once(ctx))
	require.Equal(t, move.Canceled, f.latest(f.one).Phase)
	require.NoError(t, f.one.take(pending))
	require.NoError(t, f.one.scheduler.BeginDue(ctx))
	require.Equal(t, job.Pending, f.one.job(running.ID, "a").State)
	require.Zero(t, f.two.count(`SELECT count(*) FROM runners`))
}

// TestChangeThatHasBegunDelaysTheBeginOfAMove holds the lock of each kind of change.
func TestChangeThatHasBegunDelaysTheBeginOfAMove(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	waiting := f.one.create(twoStages)
	begun := make(chan move.Move, 1)
	require.NoError(t, f.one.scheduler.Store.InTx(t.Context(), func(tx pgx.Tx) error {
		if err := f.one.scheduler.Store.LockOrganizationOf(t.Context(), tx, waiting.ID, 0); err != nil {
			return err
		}
		go func() { begun <- f.begin(f.one, f.two) }()
		require.Eventually(t, func() bool {
			return f.one.count(`SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
				AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`) == 1
		}, time.Minute, time.Millisecond, "the begin does not wait")
		require.Empty(t, begun)
		return nil
	}))
	m := <-begun
	require.Equal(t, move.Copying, m.Phase)
}

// TestMoveGoesOnAfterEachFailure lets the first attempt of every step fail, and another replica continue.
func TestMoveGoesOnAfterEachFailure(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.one.newRunner()
	pipeline := f.one.create(twoStages)
	f.begin(f.one, f.two)
	for _, call := range []string{"begin", "export", "import"} {
		f.state.fail(call)
		require.NoError(t, f.driver(f.one).Once(t.Context()))
		require.Equal(t, move.Copying, f.latest(f.one).Phase)
		require.Contains(t, f.latest(f.one).Message, call+" is away")
	}
	f.cellmap.err = errors.New("away")
	require.NoError(t, f.driver(f.one).Once(t.Context()))
	require.Equal(t, move.Moved, f.latest(f.one).Phase)
	require.Contains(t, f.latest(f.one).Message, "cell map")

	// Killed after the target has stored a pipeline, and before the source has forgotten it.
	m := f.latest(f.one)
	driver := f.driver(f.one)
	driver.Store = forgetful{f.one.moves}
	require.NoError(t, driver.Once(t.Context()))
	require.Equal(t, move.HandingOver, f.latest(f.one).Phase)
	stored := f.two.job(pipeline.ID, "a")
	require.NoError(t, f.two.take(stored))
	for _, call := range []string{"end moved", "end arrival moved"} {
		f.state.fail(call)
		require.NoError(t, f.driver(f.one).Once(t.Context()))
		require.Equal(t, move.Ending, f.latest(f.one).Phase)
		require.Contains(t, f.latest(f.one).Message, call+" is away")
	}
	require.Equal(t, job.Running, f.two.job(pipeline.ID, "a").State, "what came twice is stored once")
	require.NoError(t, f.driver(f.one).Once(t.Context()))
	require.Equal(t, move.Done, f.latest(f.one).Phase)
	require.Equal(t, m.ID, f.latest(f.one).ID)
	known, err := f.two.arrivals.Arrival(t.Context(), m.ID)
	require.NoError(t, err)
	require.Equal(t, move.Done, known.Phase)
}

// forgetful fails before it forgets.
type forgetful struct{ postgres.Moves }

func (forgetful) ForgetPipeline(context.Context, int64) error { return errors.New("killed") }

func TestMoveThatCannotSucceedIsUndone(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.one.newRunner()
	pending := f.one.job(f.one.create(twoStages).ID, "a")
	f.begin(f.one, f.two)
	f.state.fail("end canceled")
	f.state.refuse("import")
	require.NoError(t, f.driver(f.one).Once(t.Context()))
	require.Equal(t, move.Canceling, f.latest(f.one).Phase)
	require.Contains(t, f.latest(f.one).Message, "import is refused")
	require.NoError(t, f.one.take(pending), "the organization works again before everything is undone")
	require.NoError(t, f.driver(f.one).Once(t.Context()))
	require.Equal(t, move.Canceled, f.latest(f.one).Phase)
	require.NotContains(t, f.latest(f.one).Message, "away")
	require.Zero(t, f.two.count(`SELECT count(*) FROM runners`))

	// Another one begins, and is canceled by time.
	f.advance(time.Minute)
	f.begin(f.one, f.two)
	f.state.fail("begin")
	require.NoError(t, f.driver(f.one).Once(t.Context()))
	f.advance(10 * time.Minute)
	require.NoError(t, f.driver(f.one).Once(t.Context()))
	require.Equal(t, move.Canceled, f.latest(f.one).Phase)
	require.Contains(t, f.latest(f.one).Message, "not copied within 10m0s: begin is away")
}

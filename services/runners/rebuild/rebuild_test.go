package rebuild_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	natsgo "github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/libs/readmodel"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/nats"
	"lockstep.internal/services/runners/postgres"
	"lockstep.internal/services/runners/publish"
	"lockstep.internal/services/runners/rebuild"
	"lockstep.internal/tools/testkit/natstest"
	"lockstep.internal/tools/testkit/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const cell = topology.Cell("local")

var now = time.Date(2026, 3, 4, 5, 6, 0, 0, time.UTC)

// fixture is a database whose events are published to the stream JOBS.
type fixture struct {
	t      *testing.T
	pool   *pgxpool.Pool
	jobs   postgres.Jobs
	stream nats.Jobs
	conn   *natsgo.Conn
}

// migrate creates the tables.
func migrate(url string) error {
	ctx, logger := context.Background(), slog.New(slog.DiscardHandler)
	pool, err := libpostgres.Connect(ctx, libpostgres.Config{URL: url}, logger)
	if err != nil {
		return err
	}
	defer pool.Close()
	series, err := postgres.Migrations()
	if err != nil {
		return err
	}
	return libpostgres.Migrate(ctx, pool, logger, series...)
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	logger := slog.New(slog.DiscardHandler)
	pool, err := libpostgres.Connect(t.Context(), libpostgres.Config{URL: pgtest.Prepared(t, migrate)}, logger)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	server := natstest.Server(t)
	conn := natstest.Connect(t, server)
	js := natstest.Open(t, conn)
	require.NoError(t, topology.Ensure(natstest.Context(t), js, cell, topology.Options{StorageBytes: 1 << 30}))
	encoder := publish.Encoder{Cell: cell}
	publisher, err := nats.Publisher{Pool: pool, Conn: conn, Encoder: encoder, Logger: logger}.Open()
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() {
		if err := publisher.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		stop()
		group.Wait()
	})
	return &fixture{
		t: t, pool: pool, jobs: postgres.Jobs{Encoder: encoder}, stream: nats.Jobs{JetStream: js, Cell: cell}, conn: conn,
	}
}

func (f *fixture) store(changes ...job.Change) {
	f.t.Helper()
	require.NoError(f.t, libpostgres.InTx(f.t.Context(), f.pool, func(tx pgx.Tx) error {
		return f.jobs.Store(f.t.Context(), tx, changes...)
	}))
}

// failed stores a job that has run and failed.
func (f *fixture) failed(id int64) {
	f.t.Helper()
	created := job.Create(job.Job{
		ID: id, PipelineID: 3, ProjectID: 4, OrganizationID: 1, Name: "test", Stage: "test", Tags: []string{"linux"},
		Protected: true, Timeout: time.Hour, Policy: job.Policy{Retries: 1, AllowExitCodes: []int{3}},
	}, now)
	waiting, err := created.Job.Enqueue(now)
	require.NoError(f.t, err)
	running, err := waiting.Job.Take(job.Claim{RunnerID: 31, ManagerID: 77}, now)
	require.NoError(f.t, err)
	failed, err := running.Job.Finish(job.Result{Reason: job.ScriptFailure, ExitCode: 3}, now.Add(time.Minute))
	require.NoError(f.t, err)
	for _, c := range []job.Change{created, waiting, running, failed} {
		f.store(c)
	}
}

// decided stores a job after the decision of admission.
func (f *fixture) decided(id int64, outcome job.Outcome) {
	f.t.Helper()
	created := job.Create(job.Job{
		ID: id, PipelineID: 3, ProjectID: 4, OrganizationID: 1, Name: "test", Stage: "test", Tags: []string{"linux"},
		Timeout: time.Hour,
	}, now)
	preparing, err := created.Job.Prepare(job.Preparation{Deadline: now.Add(time.Hour)}, now)
	require.NoError(f.t, err)
	f.store(created, preparing)
	f.store(preparing.Job.Decide(job.Decision{
		Preparation: preparing.Job.Revision, Outcome: outcome, Tags: []string{"linux", "zone_a"},
		AcceptedRunners: []int64{31}, RejectedRunners: []int64{32}, Reason: "zones: user 5 is in zone_a",
	}, now.Add(time.Second))...)
}

func (f *fixture) rebuild(check bool) readmodel.Outcome {
	f.t.Helper()
	progress := func(readmodel.Progress) error { return nil }
	out, err := rebuild.New(f.pool, f.stream, progress).Run(f.t.Context(), check)
	require.NoError(f.t, err)
	require.Len(f.t, out.Tables, 1)
	return out
}

func (f *fixture) exec(sql string) {
	f.t.Helper()
	_, err := f.pool.Exec(f.t.Context(), sql)
	require.NoError(f.t, err)
}

func (f *fixture) all() []job.Job {
	f.t.Helper()
	var all []job.Job
	require.NoError(f.t, libpostgres.InTx(f.t.Context(), f.pool, func(tx pgx.Tx) error {
		return postgres.EachJob(f.t.Context(), tx, func(jobs []job.Job) error {
			all = append(all, jobs...)
			return nil
		})
	}))
	return all
}

func TestTheStreamAloneRebuildsTheTableOfJobs(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for id := range int64(5) {
		f.failed(id + 1)
	}
	replaced, retry, err := f.all()[0].Retry(9, now)
	require.NoError(t, err)
	f.store(replaced, retry)
	f.decided(10, job.Admitted)
	f.decided(11, job.Denied)
	before := f.all()
	out := f.rebuild(true)
	require.Empty(t, out.Differences)
	require.EqualValues(t, 8, out.Tables[0].Rows)
	require.False(t, out.Replaced)

	f.exec(`UPDATE jobs SET state = 'success' WHERE id = 2`)
	f.exec(`DELETE FROM jobs WHERE id = 3`)
	out = f.rebuild(true)
	require.Len(t, out.Differences, 2)
	require.Equal(t, `jobs 2: state is "success", the streams give "failed"`, out.Differences[0])
	require.EqualValues(t, 2, out.Tables[0].Different)
	require.True(t, f.rebuild(false).Replaced)
	require.Equal(t, before, f.all())

	f.exec(`TRUNCATE jobs`)
	require.True(t, f.rebuild(false).Replaced)
	require.Equal(t, before, f.all())
}

// TestJobsThatMoveAreRebuiltWhereTheyAre moves a job away, lets another one come, and gets the first one back.
func TestJobsThatMoveAreRebuiltWhereTheyAre(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for id := range int64(2) {
		f.failed(id + 1)
	}
	f.exec(`INSERT INTO pipelines (id, project_id, organization_id) VALUES (3, 4, 1)`)
	moves := postgres.Moves{Pool: f.pool, Jobs: f.jobs, Now: func() time.Time { return now }}
	before := f.all()
	require.NoError(t, moves.ForgetPipeline(t.Context(), 3))
	require.Empty(t, f.all())
	require.Empty(t, f.rebuild(true).Differences)
	require.True(t, f.rebuild(false).Replaced)
	require.Empty(t, f.all())

	// A job of the other cell comes, after the first one has come back.
	for i, j := range before {
		j.Revision = before[0].Revision + 1
		if i == 1 {
			j.ID = 99
		}
		arrived, err := j.Arrive(now)
		require.NoError(t, err)
		require.NoError(t, libpostgres.InTx(t.Context(), f.pool, func(tx pgx.Tx) error {
			if err := postgres.PutReplayed(t.Context(), tx, []job.Change{{Job: j}}); err != nil {
				return err
			}
			return f.jobs.Store(t.Context(), tx, arrived)
		}))
	}
	out := f.rebuild(true)
	require.Empty(t, out.Differences)
	require.EqualValues(t, 2, out.Tables[0].Rows)
}

func TestJobsChangeWhileTheTableIsRebuilt(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for id := range int64(50) {
			f.failed(id + 1)
		}
	}()
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		require.Empty(t, f.rebuild(true).Differences)
	}
	require.Len(t, f.all(), 50)
}

func TestRebuildWithoutNATSChangesNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.failed(1)
	before := f.all()
	f.conn.Close()
	_, err := rebuild.New(f.pool, f.stream, func(readmodel.Progress) error { return nil }).Run(t.Context(), false)
	require.Error(t, err)
	require.Equal(t, before, f.all())
}

package schedule_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/postgres"
	"lockstep.internal/services/runners/publish"
	"lockstep.internal/services/runners/schedule"
	"lockstep.internal/tools/testkit/pgtest"
)

const project, user = 4, 5

var start = time.Date(2026, 3, 4, 5, 6, 0, 0, time.UTC)

// fixture is a database with a scheduler and a clock.
type fixture struct {
	t         *testing.T
	pool      *pgxpool.Pool
	scheduler *schedule.Scheduler

	mu  sync.Mutex
	now time.Time
}

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
	pool, err := libpostgres.Connect(t.Context(), libpostgres.Config{URL: pgtest.Prepared(t, migrate)},
		slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	f := &fixture{t: t, pool: pool, now: start}
	f.scheduler = f.replica()
	return f
}

// replica returns a scheduler as another replica has it.
func (f *fixture) replica() *schedule.Scheduler {
	return &schedule.Scheduler{Store: f.store(), Now: f.time, Logger: slog.New(slog.DiscardHandler)}
}

func (f *fixture) store() postgres.Pipelines {
	return postgres.Pipelines{Pool: f.pool, Jobs: postgres.Jobs{Encoder: publish.Encoder{Cell: "local"}}}
}

func (f *fixture) time() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now
}

func (f *fixture) advance(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = f.now.Add(d)
}

func request(file string) schedule.Request {
	return schedule.Request{ProjectID: project, OrganizationID: 1, UserID: user, Source: "api", File: []byte(file)}
}

func (f *fixture) create(file string) schedule.Pipeline {
	f.t.Helper()
	p, err := f.scheduler.Create(f.t.Context(), request(file))
	require.NoError(f.t, err)
	return p
}

// attempts returns the latest attempts of a pipeline.
func (f *fixture) attempts(pipelineID int64) []schedule.Attempt {
	f.t.Helper()
	attempts, err := postgres.ReadAttempts(f.t.Context(), f.pool, pipelineID)
	require.NoError(f.t, err)
	return attempts
}

// job returns the latest attempt of a job.
func (f *fixture) job(pipelineID int64, name string) job.Job {
	f.t.Helper()
	attempts := f.attempts(pipelineID)
	i := slices.IndexFunc(attempts, func(a schedule.Attempt) bool { return a.Job.Name == name })
	require.GreaterOrEqual(f.t, i, 0, "no job %s", name)
	return attempts[i].Job
}

// states returns the states of all jobs, by name.
func (f *fixture) states(pipelineID int64) map[string]job.State {
	f.t.Helper()
	out := map[string]job.State{}
	for _, a := range f.attempts(pipelineID) {
		out[a.Job.Name] = a.Job.State
	}
	return out
}

// pipeline returns a pipeline as it is stored.
func (f *fixture) pipeline(id int64) schedule.Pipeline {
	f.t.Helper()
	var found *schedule.Pipeline
	require.NoError(f.t, f.store().InTx(f.t.Context(), func(tx pgx.Tx) error {
		var err error
		found, err = f.store().Lock(f.t.Context(), tx, id)
		return err
	}))
	require.NotNil(f.t, found)
	return *found
}

// take gives a pending job to a runner.
func (f *fixture) take(pipelineID int64, name string) job.Job {
	f.t.Helper()
	taken, err := f.job(pipelineID, name).Take(job.Claim{RunnerID: 31, ManagerID: 77}, f.time())
	require.NoError(f.t, err)
	require.NoError(f.t, f.store().InTx(f.t.Context(), func(tx pgx.Tx) error {
		return f.store().StoreJobs(f.t.Context(), tx, taken)
	}))
	return taken.Job
}

// end ends a job as package execution does: it locks the pipeline, and stores the end with what follows.
func (f *fixture) end(s *schedule.Scheduler, id int64, result job.Result, after ...func() error) error {
	ctx := context.Background()
	return f.store().InTx(ctx, func(tx pgx.Tx) error {
		if err := s.LockOfJob(ctx, tx, id); err != nil {
			return err
		}
		j, err := postgres.LockJob(ctx, tx, id)
		if err != nil {
			return err
		}
		ended, err := j.Finish(result, f.time())
		if err != nil {
			return err
		}
		if err := f.store().StoreJobs(ctx, tx, ended); err != nil {
			return err
		}
		if err := s.Ended(ctx, tx, ended); err != nil {
			return err
		}
		for _, fn := range after {
			if err := fn(); err != nil {
				return err
			}
		}
		return nil
	})
}

// run takes a job and ends it.
func (f *fixture) run(pipelineID int64, name string, result job.Result) {
	f.t.Helper()
	require.NoError(f.t, f.end(f.scheduler, f.take(pipelineID, name).ID, result))
}

// events returns the last tokens of the subjects of all events of a job in the outbox, in their order.
func (f *fixture) events(jobID int64) []string {
	f.t.Helper()
	rows, err := f.pool.Query(f.t.Context(), `
		SELECT split_part(subject, '.', 6) FROM outbox WHERE split_part(subject, '.', 5) = $1::bigint::text
		ORDER BY id`, jobID)
	require.NoError(f.t, err)
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(f.t, err)
	return names
}

func (f *fixture) count(sql string, args ...any) int {
	f.t.Helper()
	var n int
	require.NoError(f.t, f.pool.QueryRow(f.t.Context(), sql, args...).Scan(&n))
	return n
}

// requireCode checks the code of a fault.
func requireCode(t *testing.T, code errcode.Code, err error) {
	t.Helper()
	require.Error(t, err)
	require.Equal(t, code, fault.CodeOf(err), "%v", err)
}

var (
	succeeded  = job.Result{}
	failed     = job.Result{Reason: job.ScriptFailure, ExitCode: 1}
	errStopped = errors.New("the process was killed")
)

// background runs a part until the test ends. The channel is closed when it is ready.
func (f *fixture) background(run func(ready func()) error) <-chan struct{} {
	f.t.Helper()
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- run(func() { close(ready) }) }()
	f.t.Cleanup(func() { require.NoError(f.t, <-ended) })
	return ready
}

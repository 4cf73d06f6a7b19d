package execution_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/jobtoken"
	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/libs/seal"
	"lockstep.internal/services/runners/assign"
	"lockstep.internal/services/runners/execution"
	"lockstep.internal/services/runners/gitlab"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/postgres"
	"lockstep.internal/services/runners/publish"
	"lockstep.internal/services/runners/signing"
	"lockstep.internal/services/runners/wire"
	"lockstep.internal/tools/testkit/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const (
	cell = "local"
	soon = time.Minute
	// limit of traces in bytes.
	limit = 1000
)

var begin = time.Date(2026, 3, 4, 5, 6, 0, 0, time.UTC)

// clock is the time of all replicas.
type clock struct {
	mu sync.Mutex
	at time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

// followers record the ends of jobs.
type followers struct {
	mu    sync.Mutex
	ended []job.Change
	// broken ends are not stored.
	broken error
}

func (f *followers) Ended(_ context.Context, _ pgx.Tx, change job.Change) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.broken != nil {
		return f.broken
	}
	f.ended = append(f.ended, change)
	return nil
}

func (f *followers) states() map[int64]job.State {
	f.mu.Lock()
	defer f.mu.Unlock()
	states := map[int64]job.State{}
	for _, c := range f.ended {
		states[c.Job.ID] = c.Job.State
	}
	return states
}

var errBroken = errors.New("the pipeline cannot be advanced")

// fixture is a database. Each replica has its own connections to it, and its own keys in memory.
type fixture struct {
	t         testing.TB
	pool      *pgxpool.Pool
	clock     *clock
	seal      seal.Key
	followers *followers
	first     *replica
}

// replica is one process of the service.
type replica struct {
	*execution.Jobs

	keys  *signing.Keyring
	store postgres.Executions
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

func newFixture(t testing.TB) *fixture {
	t.Helper()
	pool, err := libpostgres.Connect(t.Context(), libpostgres.Config{URL: pgtest.Prepared(t, migrate)},
		slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	key, err := seal.GenerateKey()
	require.NoError(t, err)
	f := &fixture{t: t, pool: pool, clock: &clock{at: begin}, seal: key, followers: &followers{}}
	f.first = f.replica()
	require.NoError(t, f.first.keys.Refresh(t.Context()))
	return f
}

func (f *fixture) jobs() postgres.Jobs { return postgres.Jobs{Encoder: publish.Encoder{Cell: cell}} }

// replica starts without keys.
func (f *fixture) replica() *replica {
	logger := slog.New(slog.DiscardHandler)
	r := &replica{store: postgres.Executions{Pool: f.pool, Jobs: f.jobs(), Followers: f.followers}}
	r.keys = &signing.Keyring{
		Store: postgres.SigningKeys{
			DB: f.pool, Key: f.seal, Schedule: signing.Schedule, Logger: logger, Now: f.clock.now,
		},
		Cell: cell, Logger: logger, Now: f.clock.now, Registry: true,
	}
	r.Jobs = f.serve(r.store, r.keys)
	return r
}

func (f *fixture) serve(store execution.Store, keys *signing.Keyring) *execution.Jobs {
	return f.serveLimit(store, keys, limit)
}

func (f *fixture) serveLimit(store execution.Store, keys *signing.Keyring, traces int64) *execution.Jobs {
	return execution.NewJobs(execution.Config{
		Store: store, Now: f.clock.now, TraceLimit: traces,
		Tokens: execution.NewTokens(jobtoken.NewVerifier(keys.Find, f.clock.now), keys.Refresh),
	})
}

func (f *fixture) exec(sql string, args ...any) {
	f.t.Helper()
	_, err := f.pool.Exec(f.t.Context(), sql, args...)
	require.NoError(f.t, err)
}

func (f *fixture) count(sql string, args ...any) int {
	f.t.Helper()
	var n int
	require.NoError(f.t, f.pool.QueryRow(f.t.Context(), sql, args...).Scan(&n))
	return n
}

// running stores a job that a runner has taken.
func (f *fixture) running(id int64, downloads ...int64) gitlab.JobRef {
	f.t.Helper()
	f.pending(id)
	return f.take(id, downloads...)
}

// pending stores a job that waits for a runner.
func (f *fixture) pending(id int64) {
	f.t.Helper()
	content, err := json.Marshal(job.Definition{Script: []string{"make"}, Variables: []job.Variable{
		{Key: "PASSWORD", Value: "swordfish", Masked: true},
	}})
	require.NoError(f.t, err)
	f.exec(`INSERT INTO pipelines (id, project_id, organization_id) VALUES ($1, 4, 1)`, id+1000)
	f.exec(`INSERT INTO definitions (pipeline_id, name, position, stage_index, run_when, content)
		VALUES ($1, 'test', 0, 0, 'on_success', $2)`, id+1000, content)
	created := job.Create(job.Job{
		ID: id, PipelineID: id + 1000, ProjectID: 4, OrganizationID: 1, Name: "test", Stage: "test",
		Timeout: time.Hour,
	}, f.clock.now())
	waiting, err := created.Job.Enqueue(f.clock.now())
	require.NoError(f.t, err)
	f.store(created, waiting)
}

func (f *fixture) store(changes ...job.Change) {
	f.t.Helper()
	require.NoError(f.t, libpostgres.InTx(f.t.Context(), f.pool, func(tx pgx.Tx) error {
		return f.jobs().Store(f.t.Context(), tx, changes...)
	}))
}

// take gives a pending job to a runner.
func (f *fixture) take(id int64, downloads ...int64) gitlab.JobRef {
	f.t.Helper()
	taken, err := f.job(id).Take(job.Claim{RunnerID: 31, ManagerID: 77}, f.clock.now())
	require.NoError(f.t, err)
	token, err := f.first.keys.Issue(taken.Job, downloads)
	require.NoError(f.t, err)
	picks := postgres.Picks{Pool: f.pool, Jobs: f.jobs(), Now: f.clock.now}
	stored, err := picks.Claim(f.t.Context(), []assign.Claim{
		{Change: taken, TokenHash: token.Hash, ExpiresAt: token.ExpiresAt},
	})
	require.NoError(f.t, err)
	require.True(f.t, stored[id])
	return gitlab.JobRef{ID: id, Token: token.Value}
}

func (f *fixture) job(id int64) job.Job {
	f.t.Helper()
	jobs, err := postgres.ReadJobs(f.t.Context(), f.pool, id)
	require.NoError(f.t, err)
	require.Len(f.t, jobs, 1)
	return jobs[0]
}

// cancel cancels a running job as a person does.
func (f *fixture) cancel(id int64) {
	f.t.Helper()
	canceling, err := f.job(id).Cancel(5, f.clock.now())
	require.NoError(f.t, err)
	f.store(canceling)
}

// trace returns what people read.
func (f *fixture) trace(id int64) string {
	f.t.Helper()
	part, err := postgres.Traces{Pool: f.pool}.ReadTrace(f.t.Context(), id, 0, 1<<20)
	require.NoError(f.t, err)
	require.Len(f.t, part.Data, int(part.Size))
	return string(part.Data)
}

// append appends to a trace, which has to work.
func (f *fixture) append(ref gitlab.JobRef, offset int64, text string) {
	f.t.Helper()
	size, _, err := f.first.AppendTrace(f.t.Context(), ref, offset, []byte(text))
	require.NoError(f.t, err)
	require.Equal(f.t, offset+int64(len(text)), size)
}

// report is the update of a runner whose job succeeded, with the checksum of its trace.
func report(crc uint32, size int) wire.UpdateRequest {
	sum, bytes := wire.NewChecksum(crc), int64(size)
	return wire.UpdateRequest{
		State: wire.UpdateSuccess, Checksum: sum, Output: wire.Output{Checksum: sum, ByteSize: &bytes},
	}
}

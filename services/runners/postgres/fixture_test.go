package postgres_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/postgres"
	"lockstep.internal/services/runners/publish"
	"lockstep.internal/tools/testkit/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var now = time.Date(2026, 3, 4, 5, 6, 0, 0, time.UTC)

// fixture is a database with the tables of the service.
type fixture struct {
	t    *testing.T
	pool *pgxpool.Pool
	jobs postgres.Jobs
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
	pool, err := libpostgres.Connect(t.Context(), libpostgres.Config{URL: pgtest.Prepared(t, migrate)},
		slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return &fixture{t: t, pool: pool, jobs: postgres.Jobs{Encoder: publish.Encoder{Cell: "local"}}}
}

func (f *fixture) tx(fn func(tx pgx.Tx) error) error {
	return libpostgres.InTx(f.t.Context(), f.pool, fn)
}

// store stores changes in a transaction of their own.
func (f *fixture) store(changes ...job.Change) error {
	return f.tx(func(tx pgx.Tx) error { return f.jobs.Store(f.t.Context(), tx, changes...) })
}

// pending stores a job that waits for a runner.
func (f *fixture) pending(id int64) job.Job {
	f.t.Helper()
	created := job.Create(job.Job{
		ID: id, PipelineID: 3, ProjectID: 4, OrganizationID: 1, Name: "test", Stage: "test", Tags: []string{"linux"},
		Timeout: time.Hour, Policy: job.Policy{Retries: 1, RetryWhen: []job.FailureReason{job.ScriptFailure}},
	}, now)
	waiting, err := created.Job.Enqueue(now)
	require.NoError(f.t, err)
	require.NoError(f.t, f.store(created, waiting))
	return waiting.Job
}

// count returns the result of a query.
func (f *fixture) count(sql string, args ...any) int {
	f.t.Helper()
	var n int
	require.NoError(f.t, f.pool.QueryRow(f.t.Context(), sql, args...).Scan(&n))
	return n
}

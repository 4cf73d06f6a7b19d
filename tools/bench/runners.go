package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/routable"
	"lockstep.internal/services/runners"
	store "lockstep.internal/services/runners/postgres"
	"lockstep.internal/tools/stack"
)

const (
	// pendingJobs wait while picks are measured.
	pendingJobs = 10_000
	// fewJobs and manyJobs wait for the figure about the growth.
	fewJobs, manyJobs = 1000, 100_000
	// jobProjects is the number of projects that the jobs belong to.
	jobProjects = 20
	// Times of the queue are longer than a benchmark: no job ends or waits again by itself.
	queueTime = 24 * time.Hour
)

// Runners of the instance.
const (
	// anyRunner takes jobs without tags.
	anyRunner = int64(iota + 1)
	// waitingRunner takes jobs with the tag waitingTag only.
	waitingRunner
)

const waitingTag = "waits"

// runnerJobs measures what GitLab runners get from the service runners.
func runnerJobs(ctx context.Context, f *fixture, size Size, measured Measured) {
	measurePicks(ctx, f, size, measured)
	if size.wants("idle_queries", "wait_p50_ms", "wait_p99_ms", "trace_mb_s") {
		b := newRunnersFixture(ctx, f, 1)
		if size.wants("idle_queries") {
			b.measureIdle(ctx, size, measured)
		}
		if size.wants("wait_p50_ms", "wait_p99_ms") {
			b.measureWait(ctx, size, measured)
		}
		if size.wants("trace_mb_s") {
			b.measureTraces(ctx, size, measured)
		}
	}
}

// runnersFixture is the service runners with a database of its own.
type runnersFixture struct {
	f       *fixture
	url     string // of the database
	pool    *pgxpool.Pool
	service *process
	pending int              // number of jobs that wait
	tokens  map[int64]string // of runners
}

// newRunnersFixture starts the service with pending jobs and two runners.
func newRunnersFixture(ctx context.Context, f *fixture, pending int) *runnersFixture {
	b := &runnersFixture{f: f, url: f.postgres(ctx), pending: pending, tokens: map[int64]string{}}
	b.pool = f.pool(ctx, b.url, stack.Runners, must(store.Migrations())...)
	b.addRunner(ctx, anyRunner, `{}`, true)
	b.addRunner(ctx, waitingRunner, `{`+waitingTag+`}`, false)
	for _, sql := range []string{
		`INSERT INTO pipelines (id, project_id, organization_id) SELECT p, p, 1 FROM generate_series(1, $1::bigint) AS p`,
		`INSERT INTO definitions (pipeline_id, name, position, stage_index, run_when, content)
			SELECT p, 'job', 0, 0, 'on_success', '{"script": ["true"]}' FROM generate_series(1, $1::bigint) AS p`,
	} {
		must(b.pool.Exec(ctx, sql, jobProjects))
	}
	b.refill(ctx, "jobs")

	_, natsURL, keys := f.accounts(ctx)
	seed, _, err := stack.InitRunners(f.file("keys"))
	check(err)
	artifacts := must(os.MkdirTemp(f.file(""), "artifacts-"))
	cfg := runners.DefaultConfig()
	cfg.Ops.Listen, cfg.API.Listen = loopback, loopback
	cfg.Cell.Name = string(benchCell)
	databaseURL := f.file("database-url")
	check(os.WriteFile(databaseURL, []byte(b.url), 0o600))
	cfg.Database.URLFile = config.SecretFile(databaseURL)
	cfg.NATS.URL = config.URL(natsURL)
	cfg.NATS.NKeySeedFile = config.SecretFile(natsauth.SeedFile(keys, natsauth.PrincipalRunners))
	cfg.Signing.KeyFile = config.SecretFile(seed)
	cfg.Artifacts.Store.Disk.Folder = artifacts
	cfg.Queue.ConfirmTimeout, cfg.Queue.SilenceTimeout, cfg.Queue.CancelTimeout = queueTime, queueTime, queueTime
	cfg.Queue.StuckTimeout, cfg.Queue.MatchTimeout = queueTime, queueTime
	cfg.Traces.Limit = traceLimit
	b.service = f.start(ctx, stack.Runners, "--config", f.configuration(stack.Runners, &cfg))
	return b
}

func (b *runnersFixture) addRunner(ctx context.Context, id int64, tags string, runUntagged bool) {
	b.tokens[id] = must(routable.New(routable.Runner, routable.Payload{Cell: benchCell, Type: 1}))
	hash := sha256.Sum256([]byte(b.tokens[id]))
	must(b.pool.Exec(ctx, `INSERT INTO runners (id, type, tags, run_untagged, token_hash)
		VALUES ($1, 'instance_type', $2, $3, $4)`, id, tags, runUntagged, hash[:]))
}

// configuration writes the settings of a program to a file and returns its path.
func (f *fixture) configuration(name string, settings any) string {
	f.processes++
	path := f.file(fmt.Sprintf("%s-%d.yaml", name, f.processes))
	check(os.WriteFile(path, []byte(must(must(config.Bind(settings, "")).Print())), 0o600))
	return path
}

// insertPending adds jobs to a table until enough of them wait, and notifies the service of each.
const insertPending = `
	WITH inserted AS (
		INSERT INTO %[1]s (id, pipeline_id, project_id, organization_id, name, stage, tags, protected, timeout_s, policy,
			state, revision, attempt, retry_of, retried_by, claims, runner_id, manager_id, run_timeout_s, reason, exit_code,
			canceled_by, created_at, pending_since)
		SELECT last.id + n, n %% $2 + 1, n %% $2 + 1, 1, 'job', 'test', '{}', false, 3600, '{}', 'pending', 2, 1, 0, 0, 0, 0,
			0, 0, '', 0, 0, now(), now() + n * interval '1 microsecond'
		FROM (SELECT coalesce(max(id), 0) AS id FROM %[1]s) AS last,
			generate_series(1, $1 - (SELECT count(*) FROM %[1]s WHERE state = 'pending')) AS n
		RETURNING id)
	SELECT count(*) FROM inserted, pg_notify('` + store.JobChannel + `', id::text)`

// refill adds jobs to a table until enough of them wait.
func (b *runnersFixture) refill(ctx context.Context, table string) {
	must(b.pool.Exec(ctx, fmt.Sprintf(insertPending, table), b.pending, jobProjects))
}

// insertTagged adds a job for the runner that waits.
const insertTagged = `
	WITH inserted AS (
		INSERT INTO jobs SELECT (SELECT max(id) + 1 FROM jobs), 1, 1, 1, 'job', 'test', ARRAY[$1], false, 3600, '{}',
			'pending', 2, 1, 0, 0, 0, 0, 0, 0, '', 0, 0, now(), now()
		RETURNING id)
	SELECT count(*) FROM inserted, pg_notify('` + store.JobChannel + `', id::text)`

// createJob makes a job for the runner that waits.
func (b *runnersFixture) createJob(ctx context.Context) {
	must(b.pool.Exec(ctx, insertTagged, waitingTag))
}

// settle waits until the service has read all jobs so far: notifications arrive in their order.
func (b *runnersFixture) settle(ctx context.Context) {
	b.createJob(ctx)
	c := b.connect(ctx, waitingRunner)
	defer c.Close() //nolint:errcheck // nothing follows
	check(c.call())
}

// connect returns a caller that gets a job with each call.
func (b *runnersFixture) connect(ctx context.Context, runner int64) *httpCall {
	return b.connectHTTP(ctx, http.StatusCreated, func() []byte { return b.jobRequest(runner) })
}

func (b *runnersFixture) connectHTTP(ctx context.Context, status int, next func() []byte) *httpCall {
	return connectHTTP(ctx, stack.Runners, b.service.addresses[stack.ListenerAPI], status, next)
}

// jobRequest returns the request of a runner for a job.
func (b *runnersFixture) jobRequest(runner int64) []byte {
	body := must(json.Marshal(map[string]any{"token": b.tokens[runner], "system_id": "s"}))
	return httpRequest(http.MethodPost, "/api/v4/jobs/request", "Content-Type: application/json\r\n", body)
}

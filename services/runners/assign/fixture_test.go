package assign_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/assign"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/postgres"
	"lockstep.internal/services/runners/publish"
	"lockstep.internal/services/runners/wire"
	"lockstep.internal/tools/testkit/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const soon = time.Minute

// runners are runners in memory, by token.
type runners struct {
	mu      sync.Mutex
	known   map[string]runner
	changed chan struct{}
}

// runner takes the jobs of its projects whose tags it has.
type runner struct {
	id       int64
	tags     []string
	projects []int64 // none: all
	timeout  time.Duration
}

func (r runner) RunnerID() int64 { return r.id }

func (r runner) TakesClass(tags []string, _ bool) bool {
	return !slices.ContainsFunc(tags, func(tag string) bool { return !slices.Contains(r.tags, tag) })
}

func (r runner) TakesProject(project int64) bool {
	return len(r.projects) == 0 || slices.Contains(r.projects, project)
}

func (r *runners) Identify(_ context.Context, token string) (assign.Runner, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known, found := r.known[token]
	if !found {
		return assign.Runner{}, fault.New(errcode.PermissionDenied, "the token is not valid")
	}
	return assign.Runner{ID: known.id, MaximumTimeout: known.timeout, Matcher: known}, nil
}

func (r *runners) Manager(_ context.Context, runnerID int64, _ wire.JobRequest) (int64, error) {
	return runnerID + 1000, nil
}

func (r *runners) Changed() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

// put adds or changes a runner; a runner without id is removed.
func (r *runners) put(token string, changed runner) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known[token] = changed
	if changed.id == 0 {
		delete(r.known, token)
	}
	close(r.changed)
	r.changed = make(chan struct{})
}

// tokens makes tokens that nobody signs.
type tokens struct{}

func (tokens) Issue(claimed job.Job, artifacts []int64) (assign.Token, error) {
	value := fmt.Sprintf("token-%d-%d-%v", claimed.ID, claimed.Claims, artifacts)
	return assign.Token{
		Value: value, Hash: sha256.Sum256([]byte(value)), ExpiresAt: claimed.StartedAt.Add(claimed.RunTimeout),
	}, nil
}

// store counts queries, and can fail.
type store struct {
	postgres.Picks

	queries atomic.Int64
	broken  atomic.Bool
}

var errBroken = errors.New("the database is down")

func (s *store) Live(ctx context.Context) ([]job.Job, error) {
	s.queries.Add(1)
	return s.Picks.Live(ctx)
}

func (s *store) Read(ctx context.Context, ids []int64) ([]job.Job, error) {
	s.queries.Add(1)
	if s.broken.Load() {
		return nil, errBroken
	}
	return s.Picks.Read(ctx, ids)
}

func (s *store) Changed(ctx context.Context, revisions map[int64]int64) ([]job.Job, error) {
	s.queries.Add(1)
	if s.broken.Load() {
		return nil, errBroken
	}
	return s.Picks.Changed(ctx, revisions)
}

func (s *store) Claim(ctx context.Context, claims []assign.Claim) (map[int64]bool, error) {
	s.queries.Add(1)
	if s.broken.Load() {
		return nil, errBroken
	}
	return s.Picks.Claim(ctx, claims)
}

func (s *store) Fail(ctx context.Context, j job.Job, reason job.FailureReason) error {
	failed, err := j.Fail(reason, s.Now())
	if err != nil {
		return err
	}
	return libpostgres.InTx(ctx, s.Pool, func(tx pgx.Tx) error { return s.Jobs.Store(ctx, tx, failed) })
}

// fixture is a database with runners. Each replica is an assigner of its own.
type fixture struct {
	t       *testing.T
	pool    *pgxpool.Pool
	runners *runners
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
	return &fixture{t: t, pool: pool, runners: &runners{known: map[string]runner{}, changed: make(chan struct{})}}
}

// replica is one assigner.
type replica struct {
	*assign.Assigner

	t     *testing.T
	store *store
}

// start runs a replica until the test ends.
func (f *fixture) start() *replica {
	f.t.Helper()
	s := &store{Picks: postgres.Picks{
		Pool: f.pool, Jobs: f.jobs(), Now: time.Now, Definitions: postgres.NewDefinitions(1 << 20),
	}}
	changes := postgres.NewJobChanges(f.pool)
	a := assign.New(assign.Config{
		Cell: "local", Runners: f.runners, Store: s, Tokens: tokens{}, Payloads: assign.Answers{}, Changes: changes,
		Logger: slog.New(slog.DiscardHandler), Now: time.Now,
	})
	ctx, stop := context.WithCancel(context.Background())
	var group sync.WaitGroup
	listening, ready := make(chan struct{}), make(chan struct{})
	group.Go(func() {
		if err := changes.Run(ctx, sync.OnceFunc(func() { close(listening) })); err != nil {
			f.t.Error(err)
		}
	})
	f.await(listening)
	group.Go(func() { a.Run(ctx, sync.OnceFunc(func() { close(ready) })) })
	f.await(ready)
	f.t.Cleanup(func() {
		stop()
		group.Wait()
	})
	return &replica{a, f.t, s}
}

func (f *fixture) await(signal <-chan struct{}) {
	f.t.Helper()
	select {
	case <-signal:
	case <-time.After(soon):
		require.FailNow(f.t, "no signal")
	}
}

func (f *fixture) jobs() postgres.Jobs { return postgres.Jobs{Encoder: publish.Encoder{Cell: "local"}} }

func (f *fixture) tx(fn func(tx pgx.Tx) error) {
	f.t.Helper()
	require.NoError(f.t, libpostgres.InTx(f.t.Context(), f.pool, fn))
}

// add stores jobs that wait for a runner, all in one transaction.
func (f *fixture) add(jobs ...job.Job) {
	f.t.Helper()
	f.tx(func(tx pgx.Tx) error {
		var changes []job.Change
		for i, j := range jobs {
			j.PipelineID, j.OrganizationID, j.Timeout = j.ID, 1, time.Hour
			j.Name = "job"
			content, err := json.Marshal(job.Definition{Script: []string{"true"}})
			require.NoError(f.t, err)
			_, err = tx.Exec(f.t.Context(), `INSERT INTO pipelines (id, project_id, organization_id) VALUES ($1, $2, 1)`,
				j.PipelineID, j.ProjectID)
			require.NoError(f.t, err)
			_, err = tx.Exec(f.t.Context(), `
				INSERT INTO definitions (pipeline_id, name, position, stage_index, run_when, content)
				VALUES ($1, 'job', 0, 0, 'on_success', $2)`, j.PipelineID, content)
			require.NoError(f.t, err)
			created := job.Create(j, time.Now())
			waiting, err := created.Job.Enqueue(time.Now().Add(time.Duration(i) * time.Millisecond))
			require.NoError(f.t, err)
			changes = append(changes, created, waiting)
		}
		return f.jobs().Store(f.t.Context(), tx, changes...)
	})
}

// answer is the result of a request.
type answer struct {
	job  *wire.Job
	last string
	err  error
}

// request asks for a job in the background.
func (r *replica) request(ctx context.Context, token string) <-chan answer {
	answers := make(chan answer, 1)
	go func() {
		j, last, err := r.Request(ctx, wire.JobRequest{Token: token, SystemID: "s"})
		answers <- answer{j, last, err}
	}()
	return answers
}

// get returns the answer to a request.
func get(t *testing.T, answers <-chan answer) answer {
	t.Helper()
	select {
	case a := <-answers:
		return a
	case <-time.After(soon):
		require.FailNow(t, "no answer")
		return answer{}
	}
}

// take returns the id of the next job for a runner; 0 if there is none now.
func (r *replica) take(token string) int64 {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.t.Context())
	answers := r.request(ctx, token)
	require.Eventually(r.t, func() bool {
		_, waiting := r.Waiting()
		return waiting > 0 || len(answers) > 0
	}, soon, time.Millisecond)
	cancel()
	a := get(r.t, answers)
	require.NoError(r.t, a.err)
	if a.job == nil {
		return 0
	}
	return a.job.ID
}

// waits returns once n requests wait.
func (r *replica) waits(n int) {
	r.t.Helper()
	require.Eventually(r.t, func() bool {
		_, waiting := r.Waiting()
		return waiting == n
	}, soon, time.Millisecond)
}

// state returns the stored state of a job.
func (f *fixture) state(id int64) job.Job {
	f.t.Helper()
	jobs, err := postgres.ReadJobs(f.t.Context(), f.pool, id)
	require.NoError(f.t, err)
	require.Len(f.t, jobs, 1)
	return jobs[0]
}

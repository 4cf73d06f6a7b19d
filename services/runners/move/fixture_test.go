package move_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/fault"
	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/libs/routable"
	"lockstep.internal/libs/seal"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/services/runners/arrival"
	"lockstep.internal/services/runners/artifact"
	"lockstep.internal/services/runners/execution"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/move"
	"lockstep.internal/services/runners/objects"
	"lockstep.internal/services/runners/postgres"
	"lockstep.internal/services/runners/publish"
	"lockstep.internal/services/runners/rpc"
	"lockstep.internal/services/runners/runner"
	"lockstep.internal/services/runners/schedule"
	"lockstep.internal/tools/testkit/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const organization, project = int64(1), int64(4)

var start = time.Date(2026, 3, 4, 5, 6, 0, 0, time.UTC)

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

// state stands in for the state services of both cells, which have tests of their own.
type state struct {
	mu sync.Mutex
	// calls in their order, such as begin or end moved.
	calls []string
	// errs are the errors of the next call of a name.
	errs map[string]error
}

// fail lets the next call fail because the service is away, refuse because it refuses.
func (s *state) fail(call string) {
	s.set(call, fault.New(errcode.Unavailable, "%s is away", call))
}

func (s *state) refuse(call string) {
	s.set(call, fault.New(errcode.FailedPrecondition, "%s is refused", call))
}

func (s *state) set(call string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.errs[call] = err
}

func (s *state) call(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, name)
	err := s.errs[name]
	delete(s.errs, name)
	return err
}

func (s *state) Begin(context.Context, string, move.Move) error { return s.call("begin") }

func (s *state) Export(_ context.Context, _ string, _ move.Move, send func([]*statev1.MoveRecord) error) error {
	if err := s.call("export"); err != nil {
		return err
	}
	return send([]*statev1.MoveRecord{{Entity: &statev1.MoveRecord_Organization{
		Organization: &statev1.Organization{Id: organization, Name: "acme"},
	}}})
}

func (s *state) Revoke(_ context.Context, token string) error { return s.call("revoke " + token) }

func (s *state) Check(context.Context, string, int64) (*statev1.CheckMoveResponse, error) {
	return &statev1.CheckMoveResponse{Agents: 2, Workspaces: 1}, s.call("check")
}

func outcomeOf(o statev1.MoveOutcome) string {
	return strings.ToLower(strings.TrimPrefix(o.String(), "MOVE_OUTCOME_"))
}

func (s *state) End(
	_ context.Context, _ string, _ move.Move, o statev1.MoveOutcome,
) (*statev1.EndMoveResponse, error) {
	return &statev1.EndMoveResponse{RevokedTokens: []int64{7}}, s.call("end " + outcomeOf(o))
}

func (s *state) Import(
	_ context.Context, token string, _ move.Move, next func() ([]*statev1.MoveRecord, error),
) error {
	if token != "target" {
		return errors.New("wrong token")
	}
	for {
		records, err := next()
		if err != nil {
			return err // the source gave up
		}
		if len(records) == 0 {
			return s.call("import")
		}
	}
}

func (s *state) EndArrival(_ context.Context, _ string, r *statev1.EndMoveRequest) error {
	return s.call("end arrival " + outcomeOf(r.GetOutcome()))
}

// Caller knows one administrator, and one without the scope.
func (*state) Caller(_ context.Context, token string) (access.Caller, error) {
	switch token {
	case "target":
		return access.Caller{UserID: 5, Admin: true, Scope: access.ScopeAdmin}, nil
	case "reader":
		return access.Caller{UserID: 5, Admin: true, Scope: access.ScopeRead}, nil
	case "user":
		return access.Caller{UserID: 6, Scope: access.ScopeAdmin}, nil
	default:
		return access.Caller{}, fault.New(errcode.Unauthenticated, "the token is not valid")
	}
}

// cell is the database of a cell with its store of objects.
type cell struct {
	t         *testing.T
	name      topology.Cell
	pool      *pgxpool.Pool
	moves     postgres.Moves
	arrivals  postgres.Arrivals
	scheduler *schedule.Scheduler
	objects   objects.Store
	artifacts *execution.Artifacts
	url       string
	now       func() time.Time
}

func newCell(t *testing.T, name topology.Cell, number int64, states *state, now func() time.Time) *cell {
	t.Helper()
	logger := slog.New(slog.DiscardHandler)
	pool, err := libpostgres.Connect(t.Context(), libpostgres.Config{URL: pgtest.Prepared(t, migrate)}, logger)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	require.NoError(t, libpostgres.ReserveIDs(t.Context(), pool, number))
	key, err := seal.GenerateKey()
	require.NoError(t, err)
	cfg := objects.DefaultConfig()
	cfg.Disk.Folder = t.TempDir()
	store, err := objects.Open(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	jobs := postgres.Jobs{Encoder: publish.Encoder{Cell: name}}
	c := &cell{
		t: t, name: name, pool: pool, objects: store, now: now,
		moves: postgres.Moves{Pool: pool, Jobs: jobs, Key: key, Now: now},
		scheduler: &schedule.Scheduler{
			Store: postgres.Pipelines{Pool: pool, Jobs: jobs}, Now: now, Logger: logger,
		},
	}
	c.arrivals = postgres.Arrivals{Moves: c.moves, CellNumber: number}
	c.artifacts = execution.NewArtifacts(execution.ArtifactConfig{
		Jobs:  execution.NewJobs(execution.Config{Store: c.executions(), Now: now}),
		Store: postgres.Artifacts{Pool: pool}, Objects: store, Sizes: artifact.DefaultSizes(),
		Bounds: artifact.DefaultBounds(), Expiry: artifact.DefaultExpiry(),
	})
	server := httptest.NewServer(arrival.NewHandler(arrival.Config{
		Cell: name, Store: c.arrivals, State: states, Users: states, Objects: c.artifacts.Reserving(),
		Sizes: artifact.DefaultSizes(), Bounds: artifact.DefaultBounds(), Logger: logger,
	}))
	t.Cleanup(server.Close)
	c.url = server.URL
	return c
}

func (c *cell) executions() postgres.Executions {
	return postgres.Executions{
		Pool: c.pool, Jobs: postgres.Jobs{Encoder: publish.Encoder{Cell: c.name}}, Followers: c.scheduler,
	}
}

func (c *cell) picks() postgres.Picks {
	return postgres.Picks{Pool: c.pool, Jobs: postgres.Jobs{Encoder: publish.Encoder{Cell: c.name}}, Now: c.now}
}

func (c *cell) count(sql string, args ...any) int {
	c.t.Helper()
	var n int
	require.NoError(c.t, c.pool.QueryRow(c.t.Context(), sql, args...).Scan(&n))
	return n
}

func (c *cell) create(file string) schedule.Pipeline {
	c.t.Helper()
	p, err := c.scheduler.Create(c.t.Context(), schedule.Request{
		ProjectID: project, OrganizationID: organization, UserID: 5, Ref: "main", Source: "api", File: []byte(file),
	})
	require.NoError(c.t, err)
	return p
}

// job returns the latest attempt of a job.
func (c *cell) job(pipeline int64, name string) job.Job {
	c.t.Helper()
	attempts, err := postgres.ReadAttempts(c.t.Context(), c.pool, pipeline)
	require.NoError(c.t, err)
	for _, a := range attempts {
		if a.Job.Name == name {
			return a.Job
		}
	}
	require.Fail(c.t, "no such job", name)
	return job.Job{}
}

func (c *cell) runners() postgres.Runners {
	return postgres.Runners{Pool: c.pool, Encoder: publish.Encoder{Cell: c.name}, Now: c.now}
}

// newRunner creates a runner of the organization's group 2.
func (c *cell) newRunner() (runner.Runner, string) {
	c.t.Helper()
	token, hash, err := runner.NewToken(routable.Payload{Cell: c.name, Organization: organization, Group: 2})
	require.NoError(c.t, err)
	r, err := c.runners().Create(c.t.Context(), runner.Runner{
		Type: runner.GroupType, OrganizationID: organization, GroupID: 2, TokenHash: hash, CreatedAt: c.now(),
		Settings: runner.Settings{Tags: []string{"linux"}, RunUntagged: true},
	})
	require.NoError(c.t, err)
	return r, token
}

// entries are the moves in the cell map.
type entries struct {
	mu    sync.Mutex
	moves map[int64]topology.Cell
	err   error
}

func (e *entries) PutMoved(_ context.Context, id int64, to topology.Cell, _ int64) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.err; err != nil {
		e.err = nil
		return err
	}
	e.moves[id] = to
	return nil
}

// fixture is two cells.
type fixture struct {
	t        *testing.T
	one, two *cell
	state    *state
	cellmap  *entries
	mu       sync.Mutex
	at       time.Time
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{
		t: t, state: &state{errs: map[string]error{}}, cellmap: &entries{moves: map[int64]topology.Cell{}}, at: start,
	}
	f.one = newCell(t, "one", 0, f.state, f.now)
	f.two = newCell(t, "two", 1, f.state, f.now)
	return f
}

func (f *fixture) now() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.at
}

func (f *fixture) advance(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.at = f.at.Add(d)
}

// driver returns a replica of a cell that drives moves.
func (f *fixture) driver(c *cell) *move.Driver {
	return &move.Driver{
		Pool: c.pool, Store: c.moves, State: f.state, Objects: c.objects, Map: f.cellmap,
		Logger: slog.New(slog.DiscardHandler), Now: f.now,
		Target: func(m move.Move, token string) move.Target {
			return rpc.NewTarget(http.DefaultClient, m.URL, token, c.name)
		},
	}
}

// begin begins a move from a cell to another one.
func (f *fixture) begin(from, to *cell) move.Move {
	f.t.Helper()
	m, err := from.moves.Begin(f.t.Context(), move.Move{
		ID: "move-" + string(from.name) + f.now().Format("150405"), OrganizationID: organization, Cell: to.name, URL: to.url,
		Phase: move.Copying, StartedBy: 5, StartedAt: f.now(), CancelAt: f.now().Add(10 * time.Minute),
	}, move.Tokens{Source: "source", Target: "target"})
	require.NoError(f.t, err)
	return m
}

// latest returns the move as it is stored.
func (f *fixture) latest(c *cell) move.Move {
	f.t.Helper()
	m, err := c.moves.Latest(f.t.Context(), organization)
	require.NoError(f.t, err)
	return m
}

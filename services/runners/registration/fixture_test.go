package registration_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/directory"
	"lockstep.internal/libs/fault"
	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/postgres"
	"lockstep.internal/services/runners/publish"
	"lockstep.internal/services/runners/registration"
	"lockstep.internal/services/runners/runner"
	"lockstep.internal/tools/testkit/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var now = time.Date(2026, 3, 4, 5, 6, 0, 0, time.UTC)

const registrationToken = "a-registration-token"

// Users of the fixture. Their roles are those of newFixture.
var (
	admin      = access.Caller{UserID: 1, Admin: true, Scope: access.ScopeAdmin}
	owner      = access.Caller{UserID: 2, Scope: access.ScopeWrite} // of group 3
	maintainer = access.Caller{UserID: 4, Scope: access.ScopeWrite} // of projects 4 and 5
	reader     = access.Caller{UserID: 5, Scope: access.ScopeWrite} // of project 4
	stranger   = access.Caller{UserID: 6, Scope: access.ScopeWrite}
)

// tree is a directory with project 4 in group 3 and project 5 in group 6, both of organization 1, and project 8 of
// organization 9. Package directory tests the inheritance of roles.
type tree struct {
	roles map[int64]map[directory.Scope]directory.Role
}

func project(id int64) directory.Scope { return directory.Scope{Kind: directory.Project, ID: id} }

func (d tree) Role(user int64, scope directory.Scope) directory.Role { return d.roles[user][scope] }

func (d tree) Place(scope directory.Scope) (directory.Place, bool) {
	place, found := map[directory.Scope]directory.Place{
		{Kind: directory.Group, ID: 3}: {Organization: 1},
		project(4):                     {Groups: []int64{3}, Organization: 1},
		project(5):                     {Groups: []int64{6}, Organization: 1},
		project(8):                     {Groups: []int64{7}, Organization: 9},
	}[scope]
	return place, found
}

// users are the personal access tokens of the fixture.
type users map[string]access.Caller

func (u users) Caller(_ context.Context, token string) (access.Caller, error) {
	caller, found := u[token]
	if !found {
		return access.Caller{}, fault.New(errcode.Unauthenticated, "the personal access token is unknown")
	}
	return caller, nil
}

// fixture is a replica with a real database.
type fixture struct {
	t        *testing.T
	store    postgres.Runners
	registry *runner.Registry
	service  *registration.Service
	programs *registration.Programs
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

func newFixture(t *testing.T, change ...func(*registration.Config)) *fixture {
	t.Helper()
	pool, err := libpostgres.Connect(t.Context(), libpostgres.Config{URL: pgtest.Prepared(t, migrate)},
		slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	f := &fixture{t: t, store: runnerStore(pool), registry: replica(t, pool)}
	cfg := registration.Config{
		Cell: "local", Store: f.store, Registry: f.registry, Logger: slog.New(slog.DiscardHandler),
		Now: func() time.Time { return now },
		Directory: tree{roles: map[int64]map[directory.Scope]directory.Role{
			2: {{Kind: directory.Group, ID: 3}: directory.RoleOwner, project(4): directory.RoleOwner},
			4: {
				project(4): directory.RoleMaintainer, project(5): directory.RoleMaintainer,
				project(8): directory.RoleMaintainer, {Kind: directory.Group, ID: 3}: directory.RoleMaintainer,
			},
			5: {project(4): directory.RoleReader},
		}},
	}
	for _, c := range change {
		c(&cfg)
	}
	f.service = registration.New(cfg)
	f.programs = registration.NewPrograms(f.service, users{"admin": admin, "maintainer": maintainer}, registrationToken)
	return f
}

// replica runs a registry until the test ends.
func replica(t *testing.T, pool *pgxpool.Pool) *runner.Registry {
	t.Helper()
	listener := postgres.NewRunnerChanges(pool)
	subscription := listener.Subscribe()
	registry := runner.NewRegistry(runner.Config{
		Store: runnerStore(pool), Changes: subscription, Logger: slog.New(slog.DiscardHandler),
		Now: func() time.Time { return now },
	})
	ctx, stop := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	var once sync.Once
	var group sync.WaitGroup
	group.Go(func() { registry.Run(ctx, func() { once.Do(func() { close(ready) }) }) })
	group.Go(func() { ended <- listener.Run(ctx, func() {}) })
	t.Cleanup(func() {
		stop()
		group.Wait()
		subscription.Close()
		require.NoError(t, <-ended)
	})
	select {
	case <-ready:
	case <-time.After(time.Minute):
		require.FailNow(t, "the registry does not become ready")
	}
	return registry
}

func open() runner.Settings { return runner.Settings{RunUntagged: true} }

// create creates a runner of the instance, of group 3 or of project 4.
func (f *fixture) create(typ runner.Type) registration.Issued {
	f.t.Helper()
	request := registration.NewRunner{Type: typ, Settings: open()}
	switch typ {
	case runner.GroupType:
		request.GroupID = 3
	case runner.ProjectType:
		request.ProjectID = 4
	case runner.InstanceType:
	}
	issued, err := f.service.Create(f.t.Context(), admin, request)
	require.NoError(f.t, err)
	return issued
}

func (f *fixture) valid(token string) *runner.Runner {
	f.t.Helper()
	r, err := f.registry.Authenticate(f.t.Context(), token)
	require.NoError(f.t, err)
	return r
}

func (f *fixture) void(token string) {
	f.t.Helper()
	_, err := f.registry.Authenticate(f.t.Context(), token)
	requireCode(f.t, errcode.PermissionDenied, err)
}

func requireCode(t *testing.T, code fault.Code, err error) {
	t.Helper()
	require.Equal(t, code, fault.CodeOf(err), "%v", err)
}

func runnerStore(pool *pgxpool.Pool) postgres.Runners {
	return postgres.Runners{Pool: pool, Encoder: publish.Encoder{Cell: "local"}, Now: time.Now}
}

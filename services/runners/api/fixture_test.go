package api_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/directory"
	"lockstep.internal/libs/fault"
	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/libs/readmodel"
	"lockstep.internal/libs/service"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	"lockstep.internal/schemas/gen/lockstep/runners/v1/runnersv1connect"
	"lockstep.internal/services/runners/api"
	"lockstep.internal/services/runners/gitlab"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/move"
	"lockstep.internal/services/runners/postgres"
	"lockstep.internal/services/runners/publish"
	"lockstep.internal/services/runners/registration"
	"lockstep.internal/services/runners/runner"
	"lockstep.internal/services/runners/schedule"
	"lockstep.internal/tools/testkit/pgtest"
)

const (
	cell = topology.Cell("local")
	soon = time.Minute
)

// traces are the outputs of jobs.
type traces map[int64]string

func (t traces) ReadTrace(_ context.Context, jobID, offset int64, limit int) ([]byte, int64, error) {
	text, known := t[jobID]
	if !known {
		return nil, 0, nil
	}
	size := int64(len(text))
	text = text[min(offset, size):]
	return []byte(text[:min(len(text), limit)]), size, nil
}

// tail is a stream that sends one event, so that its authorization is tested here. Package execution has the real one.
func tail(authorize func(r *http.Request, jobID int64) error) http.Handler {
	return fault.Handler(slog.New(slog.DiscardHandler), func(w http.ResponseWriter, r *http.Request) error {
		if err := authorize(r, 1); err != nil {
			return err
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, err := io.WriteString(w, "event: end\n\n")
		return err
	})
}

// archives are the artifacts of jobs, or where they are.
type archives map[int64]gitlab.Download

func (a archives) Archive(_ context.Context, jobID int64) (gitlab.Download, error) {
	found, known := a[jobID]
	if !known {
		return found, fault.New(errcode.NotFound, "job %d has no archive", jobID)
	}
	if found.Location == "" {
		found.Content = io.NopCloser(strings.NewReader("content"))
	}
	return found, nil
}

// maxStreams is the limit of open streams of a user.
const maxStreams = 3

// fixture is the API with its database, served over HTTP.
type fixture struct {
	t         *testing.T
	directory *fakeDirectory
	pool      *pgxpool.Pool
	scheduler *schedule.Scheduler
	registry  *runner.Registry
	runners   *registration.Service
	traces    traces
	archives  archives
	rebuilt   int
	private   ed25519.PrivateKey
	url       string
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
	public, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	now := time.Now()
	f := &fixture{
		t: t, private: private, traces: traces{}, archives: archives{},
		directory: newDirectory(directory.Key{
			ID: "k", Public: public, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		}),
	}
	f.pool, err = libpostgres.Connect(t.Context(), libpostgres.Config{URL: pgtest.Prepared(t, migrate)},
		slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(f.pool.Close)
	f.scheduler = &schedule.Scheduler{Store: f.store(), Now: time.Now, Logger: slog.New(slog.DiscardHandler)}
	f.serve()
	return f
}

// changes are the listeners of a replica.
type changes struct {
	jobs      *postgres.JobChanges
	pipelines *postgres.PipelineChanges
	runners   *postgres.RunnerChanges
}

// parts run the listeners and the registry of runners.
func (f *fixture) parts(c changes) []service.Part {
	subscription := c.runners.Subscribe()
	f.t.Cleanup(subscription.Close)
	f.registry = runner.NewRegistry(runner.Config{
		Store: f.runnerStore(), Changes: subscription, Logger: slog.New(slog.DiscardHandler), Now: time.Now,
	})
	f.runners = registration.New(registration.Config{
		Cell: cell, Store: f.runnerStore(), Registry: f.registry, Directory: f.directory,
		Logger: slog.New(slog.DiscardHandler),
	})
	part := func(name string, run func(ctx context.Context, ready func()) error) service.Part {
		return service.Part{Name: name, Run: func(ctx context.Context, self *service.Handle) error {
			return run(ctx, self.Ready)
		}}
	}
	return []service.Part{
		part("jobs", c.jobs.Run), part("pipelines", c.pipelines.Run), part("runners", c.runners.Run),
		part("registry", func(ctx context.Context, ready func()) error {
			f.registry.Run(ctx, ready)
			return nil
		}),
	}
}

func (f *fixture) store() postgres.Pipelines {
	return postgres.Pipelines{Pool: f.pool, Jobs: postgres.Jobs{Encoder: publish.Encoder{Cell: cell}}}
}

// moves is the service of moves of a cell that cannot move organizations. Package move has the tests of others.
func (f *fixture) moves() *move.Service {
	return move.NewService(move.Config{
		Store: postgres.Moves{Pool: f.pool, Now: time.Now}, Cell: cell, Missing: "cell.url", Now: time.Now,
	})
}

func (f *fixture) serve() {
	f.t.Helper()
	verifier, err := access.NewVerifier(access.Config{
		Directory: f.directory, Cell: cell, Audience: "runners", Scopes: api.Scopes(),
	})
	require.NoError(f.t, err)
	logger := slog.New(slog.DiscardHandler)
	c := changes{
		postgres.NewJobChanges(f.pool), postgres.NewPipelineChanges(f.pool), postgres.NewRunnerChanges(f.pool),
	}
	parts := f.parts(c)
	handler := api.NewHandler(api.Dependencies{
		Pool: f.pool, Scheduler: f.scheduler, JobChanges: c.jobs, PipelineChanges: c.pipelines, Access: verifier,
		Directory: f.directory, Registry: f.registry, Runners: f.runners, Traces: f.traces, Tail: tail,
		Archives: f.archives, Logger: logger, Now: time.Now, Moves: f.moves(), MaxStreams: maxStreams,
		Rebuild: func(context.Context, bool, func(readmodel.Progress) error) (readmodel.Outcome, error) {
			f.rebuilt++
			return readmodel.Outcome{}, nil
		},
	})
	mux := http.NewServeMux()
	for _, pattern := range api.Patterns() {
		mux.Handle(pattern, handler)
	}
	cfg := service.DefaultConfig("127.0.0.1:0")
	ready := make(chan map[string]string, 1)
	cfg.OnReady = func(addresses map[string]string) { ready <- addresses }
	server := service.HTTPServer("api", service.DefaultListener("127.0.0.1:0"), mux, service.HTTPOptions{
		Logger: logger, StopBefore: []string{"jobs", "pipelines", "registry"},
	})
	server.StartAfter = []string{"jobs", "pipelines", "registry"}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- service.Run(ctx,
			service.Options{Name: "api", Config: cfg, Logger: logger, Metrics: prometheus.NewRegistry()},
			append(parts, server)...)
	}()
	f.t.Cleanup(func() {
		cancel()
		require.NoError(f.t, <-ended, "the server does not stop")
	})
	select {
	case addresses := <-ready:
		f.url = "http://" + addresses["api"]
	case <-time.After(soon):
		require.FailNow(f.t, "the API is not ready")
	}
}

// clients are the API clients of one user.
type clients struct {
	runnersv1connect.PipelineServiceClient
	runnersv1connect.JobServiceClient
	runnersv1connect.RunnerServiceClient
	runnersv1connect.OperationServiceClient
	runnersv1connect.MoveServiceClient
}

func (f *fixture) token(user int64, scope access.Scope) string {
	f.t.Helper()
	now := time.Now()
	token, err := access.Sign(f.private, "k", access.Grant{
		Issuer: access.Issuer(cell), Audience: []string{"runners"}, UserID: user, Admin: user == admin, Scope: scope,
		IssuedAt: now, ExpiresAt: now.Add(access.TokenLifetime),
	})
	require.NoError(f.t, err)
	return token
}

func (f *fixture) as(user int64) clients { return f.with("Bearer " + f.token(user, access.ScopeAdmin)) }

func (f *fixture) with(authorization string) clients {
	f.t.Helper()
	client := f.client(authorization)
	options := connect.WithInterceptors(fault.NewInterceptor(nil))
	return clients{
		runnersv1connect.NewPipelineServiceClient(client, f.url, options),
		runnersv1connect.NewJobServiceClient(client, f.url, options),
		runnersv1connect.NewRunnerServiceClient(client, f.url, options),
		runnersv1connect.NewOperationServiceClient(client, f.url, options),
		runnersv1connect.NewMoveServiceClient(client, f.url, options),
	}
}

func (f *fixture) client(authorization string) *http.Client {
	transport := &http.Transport{}
	f.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{
		Transport:     authorized{transport, authorization},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

type authorized struct {
	http.RoundTripper

	value string
}

func (a authorized) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	if a.value != "" {
		r.Header.Set("Authorization", a.value)
	}
	return a.RoundTripper.RoundTrip(r)
}

// create creates a pipeline as the maintainer.
func (f *fixture) create(file string, change ...func(*runnersv1.CreatePipelineRequest)) *runnersv1.Pipeline {
	f.t.Helper()
	request := &runnersv1.CreatePipelineRequest{ProjectId: projectID, File: []byte(file)}
	for _, c := range change {
		c(request)
	}
	made, err := f.as(maintainer).CreatePipeline(f.t.Context(), connect.NewRequest(request))
	require.NoError(f.t, err)
	return made.Msg.GetPipeline()
}

// run takes a job and ends it.
func (f *fixture) run(id int64, result job.Result) {
	f.t.Helper()
	f.take(id)
	require.NoError(f.t, f.store().InTx(f.t.Context(), func(tx pgx.Tx) error {
		ctx := f.t.Context()
		if err := f.scheduler.LockOfJob(ctx, tx, id); err != nil {
			return err
		}
		j, err := postgres.LockJob(ctx, tx, id)
		if err != nil {
			return err
		}
		ended, err := j.Finish(result, time.Now())
		if err != nil {
			return err
		}
		if err := f.store().StoreJobs(ctx, tx, ended); err != nil {
			return err
		}
		return f.scheduler.Ended(ctx, tx, ended)
	}))
}

func (f *fixture) take(id int64) {
	f.t.Helper()
	require.NoError(f.t, f.store().InTx(f.t.Context(), func(tx pgx.Tx) error {
		j, err := postgres.LockJob(f.t.Context(), tx, id)
		if err != nil {
			return err
		}
		taken, err := j.Take(job.Claim{RunnerID: 31, ManagerID: 77}, time.Now())
		if err != nil {
			return err
		}
		return f.store().StoreJobs(f.t.Context(), tx, taken)
	}))
}

func (f *fixture) exec(sql string, args ...any) {
	f.t.Helper()
	_, err := f.pool.Exec(f.t.Context(), sql, args...)
	require.NoError(f.t, err)
}

// requireCode checks the code of a fault.
func requireCode(t *testing.T, code errcode.Code, err error, message ...any) {
	t.Helper()
	require.Error(t, err, message...)
	require.Equal(t, code, fault.CodeOf(err), "%v: %v", message, err)
}

func (f *fixture) runnerStore() postgres.Runners {
	return postgres.Runners{Pool: f.pool, Encoder: publish.Encoder{Cell: cell}, Now: time.Now}
}

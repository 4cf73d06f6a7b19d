package api_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"lockstep.internal/libs/readmodel"

	"connectrpc.com/connect"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/cursor"
	"lockstep.internal/libs/directory"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/postgres"
	"lockstep.internal/libs/service"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/schemas/gen/lockstep/deploys/v1/deploysv1connect"
	"lockstep.internal/services/deploys/api"
	"lockstep.internal/services/deploys/history"
	"lockstep.internal/services/deploys/ownership"
	store "lockstep.internal/services/deploys/postgres"
	"lockstep.internal/services/deploys/sink"
	"lockstep.internal/tools/testkit/pgtest"
)

const (
	cell = topology.Cell("local")
	soon = time.Minute
)

// Users and agents of the tests. The reader may read agent 7. Agent 8 belongs to another project.
const (
	admin, reader, stranger, blocked = 1, 2, 3, 4
	agent, otherAgent                = 7, 8
)

// fakeDirectory is a directory in memory.
type fakeDirectory struct {
	mu      sync.Mutex
	users   map[int64]directory.User
	key     directory.Key
	reads   map[int64][]int64 // agents by user
	changed chan struct{}
}

func (b *fakeDirectory) Ready() bool { return true }

func (b *fakeDirectory) Changed() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.changed
}

func (b *fakeDirectory) User(id int64) (directory.User, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	u, known := b.users[id]
	return u, known
}

func (b *fakeDirectory) Key(id string) (directory.Key, bool) { return b.key, id == b.key.ID }

func (b *fakeDirectory) AgentRole(userID, agentID int64) directory.Role {
	if slices.Contains(b.Agents(userID, directory.RoleReader), agentID) {
		return directory.RoleReader
	}
	return directory.RoleNone
}

func (b *fakeDirectory) Agents(userID int64, _ directory.Role) []int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.reads[userID])
}

func (b *fakeDirectory) write(change func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change()
	close(b.changed)
	b.changed = make(chan struct{})
}

// sinks is a fake that records its calls.
type sinks struct {
	mu    sync.Mutex
	calls []string
}

func (*sinks) List(context.Context) ([]sink.Status, error) {
	return []sink.Status{{Name: "chat", Type: "slack"}}, nil
}

func (s *sinks) record(format string, args ...any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, fmt.Sprintf(format, args...))
	return nil
}

func (s *sinks) Backfill(_ context.Context, name string, sequence uint64) error {
	return s.record("backfill %s from %d", name, sequence)
}

func (s *sinks) Resend(_ context.Context, name string, sequence uint64) error {
	return s.record("resend %d to %s", sequence, name)
}

// fixture is the API with its database, served over HTTP.
type fixture struct {
	t         *testing.T
	directory *fakeDirectory
	sinks     *sinks
	pool      *pgxpool.Pool
	stream    *fakeStream
	changes   *store.Changes
	private   ed25519.PrivateKey
	url       string
	// stop stops the server and waits for it.
	stop     func()
	rollouts int // number of returned rollouts
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	now := time.Now()
	b := &fixture{t: t, private: private, sinks: &sinks{}, directory: &fakeDirectory{
		changed: make(chan struct{}),
		key:     directory.Key{ID: "k", Public: public, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour)},
		users: map[int64]directory.User{
			admin:    {ID: admin, Admin: true},
			reader:   {ID: reader},
			stranger: {ID: stranger},
			blocked:  {ID: blocked, Blocked: true},
		},
		reads: map[int64][]int64{reader: {agent}, blocked: {agent}},
	}}
	b.pool, err = postgres.Connect(t.Context(), postgres.Config{
		URL:    pgtest.Database(t),
		Schema: "deploys",
	}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(b.pool.Close)
	series, err := store.Migrations()
	require.NoError(t, err)
	require.NoError(t, postgres.Migrate(t.Context(), b.pool, slog.New(slog.DiscardHandler), series...))
	b.stream = &fakeStream{pool: b.pool}
	b.serve()
	return b
}

// projects are the existing projects.
type projects map[int64]bool

func (p projects) Project(id int64) bool { return p[id] }

// fakeStream is a stream whose reader processes releases immediately. With held, it does not process them. With faster,
// it ignores them because another release came first.
type fakeStream struct {
	pool *pgxpool.Pool

	mu     sync.Mutex
	at     cursor.Position
	held   bool
	fails  error
	faster bool
	// failing is the error of the reader.
	failing error
}

func (s *fakeStream) Check(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failing
}

func (s *fakeStream) Release(
	ctx context.Context, claim ownership.Claim, to, user int64, reason string, _ time.Time,
) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fails != nil {
		return 0, s.fails
	}
	s.at.Sequence++
	if s.held || s.faster {
		at := s.at.Sequence
		if s.held {
			s.at.Sequence = 0
		}
		return at, nil
	}
	return s.at.Sequence, pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		return (&store.Store{}).Claim(ctx, tx, nil, []ownership.Claim{{
			ClusterUID: claim.ClusterUID,
			Since:      s.at.Sequence,
			ProjectID:  to,
			UserID:     user,
			Reason:     reason,
		}})
	})
}

func (s *fakeStream) Position(context.Context) (cursor.Position, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at, nil
}

func (s *fakeStream) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func (b *fixture) serve() {
	b.t.Helper()
	verifier, err := access.NewVerifier(access.Config{Directory: b.directory, Cell: cell, Audience: "deploys"})
	require.NoError(b.t, err)
	b.changes = store.NewChanges(b.pool)
	changes, logger := b.changes, slog.New(slog.DiscardHandler)
	handler := api.NewHandler(api.Dependencies{
		Pool:    b.pool,
		Changes: changes,
		Access:  verifier,
		Roles:   b.directory,
		Sinks:   b.sinks,
		Logger:  logger,
		Now:     time.Now,
		Stream:  b.stream, Projects: projects{2: true, 3: true},
		Rebuild: func(context.Context, bool, func(readmodel.Progress) error) (readmodel.Outcome, error) {
			return readmodel.Outcome{}, b.sinks.record("rebuild")
		},
	})
	cfg := service.DefaultConfig("127.0.0.1:0")
	ready := make(chan map[string]string, 1)
	cfg.OnReady = func(addrs map[string]string) { ready <- addrs }
	api := service.HTTPServer("api", service.DefaultListener("127.0.0.1:0"), handler, service.HTTPOptions{
		Logger:     logger,
		StopBefore: []string{"changes"},
	})
	api.StartAfter = []string{"changes"}
	listening := service.Part{
		Name: "changes",
		Run:  func(ctx context.Context, self *service.Handle) error { return changes.Run(ctx, self.Ready) },
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- service.Run(ctx, service.Options{
			Name:    "api",
			Config:  cfg,
			Logger:  logger,
			Metrics: prometheus.NewRegistry(),
		}, listening, api)
	}()
	b.stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(b.t, <-ended, "the server does not stop")
	})
	b.t.Cleanup(b.stop)
	select {
	case addrs := <-ready:
		b.url = "http://" + addrs["api"]
	case <-time.After(soon):
		require.FailNow(b.t, "the API is not ready")
	}
}

// clients are the API clients of one user.
type clients struct {
	deploysv1connect.ClusterServiceClient
	deploysv1connect.RolloutServiceClient
	deploysv1connect.SinkServiceClient
	deploysv1connect.OperationServiceClient
}

func (b *fixture) token(user int64) string {
	b.t.Helper()
	now := time.Now()
	token, err := access.Sign(b.private, "k", access.Grant{
		Issuer:    access.Issuer(cell),
		Audience:  []string{"deploys"},
		UserID:    user,
		Admin:     user == admin,
		IssuedAt:  now,
		ExpiresAt: now.Add(access.TokenLifetime),
	})
	require.NoError(b.t, err)
	return token
}

func (b *fixture) as(user int64) clients {
	b.t.Helper()
	return b.with("Bearer " + b.token(user))
}

func (b *fixture) with(authorization string, options ...connect.ClientOption) clients {
	b.t.Helper()
	transport := &http.Transport{}
	b.t.Cleanup(transport.CloseIdleConnections)
	client := &http.Client{Transport: authorized{transport, authorization}}
	options = append(options, connect.WithInterceptors(fault.NewInterceptor(nil)))
	return clients{
		deploysv1connect.NewClusterServiceClient(client, b.url, options...),
		deploysv1connect.NewRolloutServiceClient(client, b.url, options...),
		deploysv1connect.NewSinkServiceClient(client, b.url, options...),
		deploysv1connect.NewOperationServiceClient(client, b.url, options...),
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

// start returns the default start of rollouts.
func start() time.Time { return time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC) }

// rollout returns a running rollout of a new workload of the agent.
func (b *fixture) rollout(agentID int64, change ...func(*history.Rollout)) history.Rollout {
	b.rollouts++
	name := fmt.Sprintf("w%d", b.rollouts)
	r := history.Rollout{
		ID:                "cluster/" + name + "/1/h",
		Workload:          uuid.NewSHA1(uuid.Nil, []byte(name)).String(),
		ClusterUID:        "cluster",
		AgentID:           agentID,
		Namespace:         "shop",
		Kind:              "deployment",
		Name:              name,
		UID:               "uid-" + name,
		Revision:          1,
		TemplateHash:      "h",
		Change:            string(events.ChangeUpdated),
		Strategy:          "RollingUpdate",
		Images:            []events.Image{},
		PreviousImages:    []events.Image{},
		Labels:            map[string]string{"app": name},
		StartedAt:         start(),
		StartedObservedAt: start(),
		ReplicasAtStart:   3,
		LastSequence:      1, UpdatedAt: start(), FirstSequence: new(int64(1)), State: new(history.Running),
	}
	for _, c := range change {
		c(&r)
	}
	return r
}

// put stores rollouts and waits until the listener has received the changes.
func (b *fixture) put(rollouts ...history.Rollout) {
	b.t.Helper()
	subscription := b.changes.Subscribe()
	defer subscription.Close()
	b.save(store.Rows{Rollouts: rollouts})
	missing := map[string]bool{}
	for i := range rollouts {
		missing[rollouts[i].ID] = true
	}
	for timeout := time.After(soon); len(missing) > 0; {
		select {
		case <-subscription.Changed():
		case <-timeout:
			require.FailNow(b.t, "the listener did not receive the changes")
		}
		ids, all := subscription.Take()
		if all {
			return
		}
		for _, id := range ids {
			delete(missing, id)
		}
	}
}

func (b *fixture) save(rows store.Rows) {
	b.t.Helper()
	require.NoError(b.t, pgx.BeginFunc(b.t.Context(), b.pool, func(tx pgx.Tx) error {
		return (&store.Store{}).Save(b.t.Context(), tx, rows)
	}))
}

// requireCode checks the code of an error and returns the error.
func requireCode(t *testing.T, code errcode.Code, err error) *fault.Error {
	t.Helper()
	require.Error(t, err)
	require.Equal(t, code, fault.CodeOf(err), "%v", err)
	var f *fault.Error
	require.ErrorAs(t, err, &f)
	return f
}

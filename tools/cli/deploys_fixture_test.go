package cli

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/cursor"
	"lockstep.internal/libs/directory"
	"lockstep.internal/libs/event"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/postgres"
	"lockstep.internal/libs/readmodel"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/events"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/schemas/gen/lockstep/state/v1/statev1connect"
	deploysapi "lockstep.internal/services/deploys/api"
	"lockstep.internal/services/deploys/cdevent"
	"lockstep.internal/services/deploys/environment"
	"lockstep.internal/services/deploys/history"
	"lockstep.internal/services/deploys/nats"
	store "lockstep.internal/services/deploys/postgres"
	"lockstep.internal/services/deploys/rebuild"
	"lockstep.internal/services/deploys/sink"
	"lockstep.internal/tools/detection/watchertest"
	"lockstep.internal/tools/testkit/natstest"
	"lockstep.internal/tools/testkit/pgtest"
)

const (
	// processTimeout bounds waits for other processes.
	processTimeout = time.Minute
	personal       = "personal"
	accessToken    = "access"
)

// deploysFixture is the reader, the store and the API of the deploys service with a database and streams.
// Authentication, sinks and the watcher are fakes.
type deploysFixture struct {
	t       *testing.T
	pool    *pgxpool.Pool
	js      jetstream.JetStream
	api     *httptest.Server
	watcher *watchertest.Watcher
	sinks   *fakeSinks
	flags   []string
}

func newDeploysFixture(t *testing.T) *deploysFixture {
	t.Helper()
	server := natstest.Server(t)
	b := &deploysFixture{t: t, js: natstest.JetStream(t, server), sinks: &fakeSinks{}}
	require.NoError(t, topology.Ensure(natstest.Context(t), b.js, "local", topology.Options{StorageBytes: 1 << 30}))
	b.watcher = &watchertest.Watcher{
		Cell: "local",
		Now:  time.Now().Add(-time.Hour).UTC().Truncate(time.Second),
		Publish: func(m *natsgo.Msg) error {
			_, err := b.js.PublishMsg(t.Context(), m)
			return err
		},
	}
	b.openDatabase()
	reader := &nats.Reader{
		Pool:         b.pool,
		JetStream:    b.js,
		Cell:         "local",
		Logger:       slog.New(slog.DiscardHandler),
		Directory:    fakeDirectory{},
		Environments: environment.Rules{},
		History:      history.Rules{GroupLabel: "lockstep.dev/deploy-group"},
	}
	consumer, err := reader.Consumer()
	require.NoError(t, err)
	b.background(consumer.Run)
	changes, listening := store.NewChanges(b.pool), make(chan struct{})
	b.background(func(ctx context.Context) error { return changes.Run(ctx, func() { close(listening) }) })
	<-listening
	rebuildTables := func(
		ctx context.Context, check bool, progress func(readmodel.Progress) error,
	) (readmodel.Outcome, error) {
		return rebuild.New(reader, progress).Run(ctx, check)
	}
	b.api = httptest.NewServer(deploysapi.NewHandler(deploysapi.Dependencies{
		Pool:     b.pool,
		Changes:  changes,
		Access:   fakeAuth{},
		Roles:    &directory.Directory{},
		Sinks:    b.sinks,
		Logger:   slog.New(slog.DiscardHandler),
		Now:      time.Now,
		Stream:   observations{&nats.Releaser{JetStream: b.js, Cell: "local"}, b.pool, consumer},
		Projects: fakeProjects{},
		Rebuild:  rebuildTables,
	}))
	mux := http.NewServeMux()
	mux.Handle(statev1connect.NewTokenServiceHandler(fakeTokens{}))
	state := httptest.NewServer(mux)
	t.Cleanup(func() {
		closeIdle()
		b.api.CloseClientConnections()
		b.api.Close()
		state.Close()
	})
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte(personal+"\n"), 0o600))
	b.flags = []string{
		"--server", state.URL,
		"--deploys-server", b.api.URL,
		"--token-file", token,
		"--nats-url", server.ClientURL(),
	}
	return b
}

func (b *deploysFixture) openDatabase() {
	b.t.Helper()
	var err error
	b.pool, err = postgres.Connect(b.t.Context(), postgres.Config{URL: pgtest.Database(b.t), Schema: "deploys"},
		slog.New(slog.DiscardHandler))
	require.NoError(b.t, err)
	b.t.Cleanup(b.pool.Close)
	series, err := store.Migrations()
	require.NoError(b.t, err)
	require.NoError(b.t, postgres.Migrate(b.t.Context(), b.pool, slog.New(slog.DiscardHandler), series...))
}

// background runs a component until the test ends.
func (b *deploysFixture) background(component func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- component(ctx) }()
	b.t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			require.NoError(b.t, err)
		}
	})
}

// publish runs the steps of the fake watcher and waits until the reader has processed the messages.
func (b *deploysFixture) publish(steps ...func() error) {
	b.t.Helper()
	for _, step := range steps {
		require.NoError(b.t, step())
	}
	stream, err := b.js.Stream(b.t.Context(), topology.StreamObserved)
	require.NoError(b.t, err)
	require.Eventually(b.t, func() bool {
		var sequence uint64
		err := b.pool.QueryRow(b.t.Context(), `select coalesce(max(sequence), 0) from stream_cursors`).Scan(&sequence)
		return err == nil && sequence >= stream.CachedInfo().State.LastSeq
	}, processTimeout, 10*time.Millisecond)
}

// publishForgedFact publishes a stalled fact that no observation supports.
func (b *deploysFixture) publishForgedFact(stream jetstream.Stream) {
	b.t.Helper()
	first, err := stream.GetMsg(b.t.Context(), 1)
	require.NoError(b.t, err)
	decoded, err := event.Decode(first.Header, first.Data)
	require.NoError(b.t, err)
	fact, err := cdevent.Read(decoded)
	require.NoError(b.t, err)
	fact.Fact, fact.Ordinal = events.FactStalled, 1
	forged, err := cdevent.Of("local", fact)
	require.NoError(b.t, err)
	msg, err := event.Encode(forged, strings.TrimSuffix(first.Subject, "started")+"stalled")
	require.NoError(b.t, err)
	_, err = b.js.PublishMsg(b.t.Context(), msg)
	require.NoError(b.t, err)
}

// run executes a command.
func (b *deploysFixture) run(args ...string) (code int, stdout, stderr string) {
	b.t.Helper()
	return run(b.t, append(append([]string{}, b.flags...), args...)...)
}

// runs executes a command and requires success.
func (b *deploysFixture) runs(args ...string) (stdout, stderr string) {
	b.t.Helper()
	code, stdout, stderr := b.run(args...)
	require.Zero(b.t, code, stderr)
	return stdout, stderr
}

// start runs a command in the background. stop interrupts it and returns the exit code.
func (b *deploysFixture) start(args ...string) (out *output, stop func() int) {
	b.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	out, done := &output{}, make(chan int, 1)
	line := append(append([]string{"--client", filepath.Join(b.t.TempDir(), "none.yaml")}, b.flags...), args...)
	go func() { done <- Run(ctx, line, out, out, "test") }()
	stop = sync.OnceValue(func() int { cancel(); return <-done })
	b.t.Cleanup(func() { stop() })
	return out, stop
}

// output is the output of a running command.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// fakeTokens exchanges the personal token for the access token.
type fakeTokens struct {
	statev1connect.UnimplementedTokenServiceHandler
}

func (fakeTokens) ExchangeToken(
	_ context.Context, r *connect.Request[statev1.ExchangeTokenRequest],
) (*connect.Response[statev1.ExchangeTokenResponse], error) {
	if r.Header().Get("Authorization") != "Bearer "+personal {
		return nil, connect.NewError(connect.CodeUnauthenticated, errors.New("not the personal token"))
	}
	return connect.NewResponse(
		&statev1.ExchangeTokenResponse{
			AccessToken: accessToken,
			ExpiresAt:   timestamppb.New(time.Now().Add(5 * time.Minute)),
		},
	), nil
}

// fakeAuth accepts the access token and returns an administrator.
type fakeAuth struct{}

func (fakeAuth) Handler(reject func(http.ResponseWriter, *http.Request, error), next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+accessToken {
			reject(w, r, fault.New(errcode.Unauthenticated, "no access token"))
			return
		}
		next.ServeHTTP(w, r.WithContext(access.WithCaller(r.Context(), access.Caller{UserID: 1, Admin: true})))
	})
}

func (fakeAuth) Interceptor() connect.Interceptor {
	return connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc { return next })
}

// observations is the stream that the reader consumes.
type observations struct {
	*nats.Releaser

	pool     *pgxpool.Pool
	consumer *nats.Consumer
}

func (o observations) Check(ctx context.Context) error { return o.consumer.Check(ctx) }

func (o observations) Position(ctx context.Context) (at cursor.Position, err error) {
	err = pgx.BeginFunc(ctx, o.pool, func(tx pgx.Tx) error {
		at, err = o.consumer.Position(ctx, tx)
		return err
	})
	return at, err
}

// fakeProjects contains the projects up to 9.
type fakeProjects struct{}

func (fakeProjects) Project(id int64) bool { return id < 10 }

// fakeDirectory is a directory in which the project ID of an agent is its own ID.
type fakeDirectory struct{}

func (fakeDirectory) Agent(id int64) (directory.Agent, bool) {
	return directory.Agent{ID: id, ProjectID: id}, true
}

// publishDirectory publishes the first agents.
func (b *deploysFixture) publishDirectory() {
	b.t.Helper()
	for id := range 3 {
		e, err := event.New(event.Attributes{
			Type:    events.TypeDirectoryAgent,
			Source:  event.ServiceSource("local", "state"),
			Subject: "agent",
			ID:      strconv.Itoa(id),
			Time:    time.Now(),
		}, events.DirectoryAgent{AgentID: id, ProjectID: id})
		require.NoError(b.t, err)
		msg, err := event.Encode(e, topology.Cell("local").Directory("agent", strconv.Itoa(id)))
		require.NoError(b.t, err)
		_, err = b.js.PublishMsg(b.t.Context(), msg)
		require.NoError(b.t, err)
	}
}

func (fakeDirectory) Changed() <-chan struct{} { return nil }

func (fakeDirectory) UpToDate() bool { return true }

// fakeSinks records its calls.
type fakeSinks struct {
	mu    sync.Mutex
	calls []string
	last  uint64
}

func (*fakeSinks) List(context.Context) ([]sink.Status, error) {
	return []sink.Status{
		{
			Name:           "chat",
			Type:           "slack",
			Next:           7,
			Lag:            2,
			Pending:        1,
			LastError:      "429 Too Many Requests",
			LastErrorSince: time.Now().Add(-5 * time.Minute),
		},
	}, nil
}

func (s *fakeSinks) record(call, name string, sequence uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if name != "chat" {
		return fault.New(errcode.NotFound, "there is no sink %q", name)
	}
	s.calls, s.last = append(s.calls, call), sequence
	return nil
}

func (s *fakeSinks) Backfill(_ context.Context, name string, sequence uint64) error {
	return s.record("backfill", name, sequence)
}

func (s *fakeSinks) Resend(_ context.Context, name string, sequence uint64) error {
	return s.record("resend", name, sequence)
}

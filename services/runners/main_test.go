package runners_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/cellmap"
	"lockstep.internal/libs/config"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/outbox"
	"lockstep.internal/libs/seal"
	"lockstep.internal/libs/stored"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/runners"
	"lockstep.internal/tools/testkit/natsd"
	"lockstep.internal/tools/testkit/natstest"
	"lockstep.internal/tools/testkit/pgtest"
)

const (
	cell = topology.Cell("local")
	soon = time.Minute
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// fixture is a NATS server with the permissions of production and the streams of state.
type fixture struct {
	t      *testing.T
	keys   string
	server *natsd.Server
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := withoutStreams(t)
	require.NoError(t, topology.Ensure(natstest.Context(t), f.as(natsauth.PrincipalState), cell,
		topology.Options{StorageBytes: 1 << 30}))
	return f
}

// withoutStreams is the fixture before state has created its streams.
func withoutStreams(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{t: t, keys: t.TempDir()}
	report, err := natsauth.Init(f.keys, natsauth.Options{})
	require.NoError(t, err)
	f.server = natstest.Start(t, natsd.Options{ConfigFile: report.ConfigFile, StoreDir: filepath.Join(f.keys, "store")})
	return f
}

func (f *fixture) as(principal string) jetstream.JetStream {
	f.t.Helper()
	key, err := natsgo.NkeyOptionFromSeed(natsauth.SeedFile(f.keys, principal))
	require.NoError(f.t, err)
	return natstest.JetStream(f.t, f.server, key, natsgo.CustomInboxPrefix(natsauth.InboxPrefix(principal)))
}

func (f *fixture) config() runners.Config {
	f.t.Helper()
	cfg := runners.DefaultConfig()
	cfg.Ops.Listen, cfg.API.Listen = "127.0.0.1:0", "127.0.0.1:0"
	cfg.Telemetry.Out = io.Discard
	cfg.Database.URL = config.URL(pgtest.Database(f.t))
	cfg.NATS.URL = config.URL(f.server.ClientURL())
	cfg.NATS.NKeySeedFile = config.SecretFile(natsauth.SeedFile(f.keys, natsauth.PrincipalRunners))
	key, err := seal.GenerateKey()
	require.NoError(f.t, err)
	seed, err := key.Seed()
	require.NoError(f.t, err)
	keyFile := filepath.Join(f.t.TempDir(), "signing.seed")
	require.NoError(f.t, os.WriteFile(keyFile, []byte(seed.Reveal()), 0o600))
	cfg.Signing.KeyFile = config.SecretFile(keyFile)
	cfg.Artifacts.Store.Disk.Folder = f.t.TempDir()
	cfg.Cell.URL = "http://runners.example"
	require.Empty(f.t, cfg.Validate())
	return cfg
}

// start runs the service until the test ends. It returns the addresses of its listeners.
func (f *fixture) start(cfg runners.Config) map[string]string {
	f.t.Helper()
	addresses, _ := f.startUntil(cfg)
	return addresses
}

// startUntil runs the service until stop is called or the test ends. It returns when the service is ready.
func (f *fixture) startUntil(cfg runners.Config) (addresses map[string]string, stop context.CancelFunc) {
	f.t.Helper()
	ready := make(chan map[string]string, 1)
	cfg.OnReady = func(addresses map[string]string) { ready <- addresses }
	return f.run(cfg, ready)
}

// run runs the service until stop is called or the test ends. It returns the addresses that it receives.
func (f *fixture) run(
	cfg runners.Config, ready <-chan map[string]string,
) (addresses map[string]string, stop context.CancelFunc) {
	f.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- runners.Main(ctx, cfg) }()
	f.t.Cleanup(func() {
		cancel()
		require.NoError(f.t, <-ended)
	})
	select {
	case addresses := <-ready:
		return addresses, cancel
	case err := <-ended:
		ended <- err
		require.FailNow(f.t, "the service ended", "%v", err)
	case <-time.After(2 * soon):
		require.FailNow(f.t, "the service is not ready")
	}
	return nil, nil
}

// get returns the status and the body of a response.
func get(t *testing.T, url string) (int, string) {
	t.Helper()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	require.NoError(t, err)
	response, err := (&http.Client{Transport: transport}).Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(body)
}

func TestTwoReplicasServeOneDatabase(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	cfg := f.config()
	for range 2 {
		addresses := f.start(cfg)
		for _, path := range []string{"/livez", "/readyz"} {
			status, body := get(t, "http://"+addresses["ops"]+path)
			require.Equal(t, http.StatusOK, status, "%s: %s", path, body)
		}
		status, body := get(t, "http://"+addresses["ops"]+"/metrics")
		require.Equal(t, http.StatusOK, status)
		for _, part := range []string{
			"api", "cell_map", "cleaner", "database", "directory", "nats", "outbox", "overdue", "queue", "runners",
			"signing_keys", "streams", "stuck", "tails",
		} {
			require.Contains(t, body, `lockstep_part_ready{part="`+part+`"} 1`)
		}
		status, body = get(t, "http://"+addresses["api"]+"/api/v4/runners/router/discovery")
		require.Equal(t, http.StatusNotImplemented, status)
		require.Contains(t, body, "unimplemented")
	}
}

// post sends JSON and returns the status and the body of the response.
func post(ctx context.Context, url, body string) (int, string, error) {
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, string(text), err
}

// TestWaitingRequestEndsWithTheDrain is about restarts: a request that is cut is an error in the log of its runner.
func TestWaitingRequestEndsWithTheDrain(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*soon)
	defer cancel()
	f := newFixture(t)
	cfg := f.config()
	cfg.Queue.Hold = 9 * time.Minute
	file := filepath.Join(t.TempDir(), "registration.token")
	require.NoError(t, os.WriteFile(file, []byte("register"), 0o600))
	cfg.Runners.RegistrationTokenFile = config.SecretFile(file)
	addresses, stop := f.startUntil(cfg)
	api := "http://" + addresses["api"] + "/api/v4"
	status, body, err := post(ctx, api+"/runners", `{"token": "register"}`)
	require.NoError(t, err)
	require.Equal(t, http.StatusCreated, status, body)
	var runner struct {
		Token string `json:"token"`
	}
	require.NoError(t, json.Unmarshal([]byte(body), &runner))

	type answer struct {
		status int
		err    error
	}
	answered := make(chan answer, 1)
	go func() {
		status, _, err := post(ctx, api+"/jobs/request", `{"token": "`+runner.Token+`", "system_id": "s_1"}`)
		answered <- answer{status, err}
	}()
	require.Eventually(t, func() bool {
		_, metrics := get(t, "http://"+addresses["ops"]+"/metrics")
		return strings.Contains(metrics, "lockstep_runners_waiting_requests 1")
	}, soon, 10*time.Millisecond)
	stop()
	require.Equal(t, answer{status: http.StatusNoContent}, <-answered)
}

func TestInvalidCellIsRefused(t *testing.T) {
	t.Parallel()
	cfg := runners.DefaultConfig()
	cfg.Cell.Name = "a.b"
	require.ErrorContains(t, errors.Join(cfg.Validate()...), "cell.name")
}

func TestServiceEndsWithoutItsKey(t *testing.T) {
	t.Parallel()
	cfg := newFixture(t).config()
	cfg.NATS.NKeySeedFile = config.SecretFile(filepath.Join(t.TempDir(), "missing.seed"))
	require.ErrorContains(t, runners.Main(t.Context(), cfg), "connect to NATS")
}

// TestPrincipalHasTheRightsThatTheServiceNeeds is about what the service publishes and reads in NATS.
func TestPrincipalHasTheRightsThatTheServiceNeeds(t *testing.T) {
	t.Parallel()
	js := newFixture(t).as(natsauth.PrincipalRunners)
	subject := cell.Job(4, 9001, "created")
	_, err := js.Publish(natstest.Context(t), subject, []byte("x"))
	require.NoError(t, err)
	reader := stored.Reader{JetStream: js, Stream: topology.StreamJobs}
	var read []string
	require.NoError(t, reader.Read(natstest.Context(t), cell.All(topology.FamilyJob), 1, 1, func(m stored.Message) error {
		read = append(read, m.Subject)
		return nil
	}))
	require.Equal(t, []string{subject}, read)
	changed, err := cellmap.Writer{JetStream: js}.PutCell(natstest.Context(t), cellmap.Cell{
		Name: cell, URL: "http://runners.example", State: cellmap.Active,
	})
	require.NoError(t, err)
	require.True(t, changed)
}

// TestOutboxContinuesAfterAMessageThatItDidNotPublish is about a replica that was killed: its successor meets messages
// on the stream and reads the last one, with the rights of the service.
func TestOutboxContinuesAfterAMessageThatItDidNotPublish(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	cfg := f.config()
	f.start(cfg)
	js, subject := f.as(natsauth.PrincipalRunners), cell.Job(4, 9001, "created")
	_, err := js.Publish(natstest.Context(t), subject, []byte("earlier"))
	require.NoError(t, err)
	db, err := pgx.Connect(t.Context(), string(cfg.Database.URL))
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close(context.WithoutCancel(t.Context()))) }()
	require.NoError(t, pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), "SET LOCAL search_path TO runners"); err != nil {
			return err
		}
		return outbox.Insert(t.Context(), tx, &natsgo.Msg{Subject: subject, Data: []byte("later")})
	}))
	reader := stored.Reader{JetStream: js, Stream: topology.StreamJobs}
	require.Eventually(t, func() bool {
		var read []string
		err := reader.Read(natstest.Context(t), cell.All(topology.FamilyJob), 1, 2, func(m stored.Message) error {
			read = append(read, string(m.Data))
			return nil
		})
		return err == nil && slices.Equal(read, []string{"earlier", "later"})
	}, soon, 10*time.Millisecond)
}

// TestPeopleWaitUntilTheDirectoryIsLoaded is about a project that the service does not know yet.
func TestPeopleWaitUntilTheDirectoryIsLoaded(t *testing.T) {
	t.Parallel()
	f := withoutStreams(t)
	cfg := f.config()
	listening := make(chan map[string]string, 1)
	cfg.OnListen = func(addresses map[string]string) { listening <- addresses }
	addresses, _ := f.run(cfg, listening)
	status, body, err := post(t.Context(), "http://"+addresses["api"]+"/lockstep.runners.v1.PipelineService/GetPipeline",
		`{"id": "1"}`)
	require.NoError(t, err)
	require.Equal(t, http.StatusServiceUnavailable, status, body)
	require.Contains(t, body, "has not read the directory")
}

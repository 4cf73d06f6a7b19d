package router_test

import (
	"context"
	"crypto/ed25519"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/cellmap"
	"lockstep.internal/libs/config"
	"lockstep.internal/libs/jobtoken"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/routable"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/router"
	"lockstep.internal/tools/testkit/leaktest"
	"lockstep.internal/tools/testkit/natsd"
	"lockstep.internal/tools/testkit/natstest"
)

const (
	home      = topology.Cell("local")
	headerJob = "Job-Token"
	// organization moves in the tests.
	organization = 7
	soon         = time.Minute
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// fixture is a NATS server with the permissions of production, and the bucket of the cell map.
type fixture struct {
	t      *testing.T
	keys   string
	server *natsd.Server
	cells  cellmap.Writer
	client *http.Client
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{t: t, keys: t.TempDir()}
	report, err := natsauth.Init(f.keys, natsauth.Options{})
	require.NoError(t, err)
	f.server = natstest.Start(t, natsd.Options{ConfigFile: report.ConfigFile, StoreDir: filepath.Join(f.keys, "store")})
	transport := &http.Transport{}
	f.client = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
	t.Cleanup(transport.CloseIdleConnections)
	return f
}

// createMap creates the bucket, as state does.
func (f *fixture) createMap() {
	f.t.Helper()
	require.NoError(f.t, topology.Ensure(natstest.Context(f.t), f.as(natsauth.PrincipalState), home,
		topology.Options{StorageBytes: 1 << 30}))
	f.cells = cellmap.Writer{JetStream: f.as(natsauth.PrincipalCells)}
}

func (f *fixture) as(principal string) jetstream.JetStream {
	f.t.Helper()
	key, err := natsgo.NkeyOptionFromSeed(natsauth.SeedFile(f.keys, principal))
	require.NoError(f.t, err)
	return natstest.JetStream(f.t, f.server, key, natsgo.CustomInboxPrefix(natsauth.InboxPrefix(principal)))
}

func (f *fixture) config() router.Config {
	f.t.Helper()
	cfg := router.DefaultConfig()
	cfg.Ops.Listen, cfg.API.Listen = "127.0.0.1:0", "127.0.0.1:0"
	cfg.Telemetry.Out = io.Discard
	cfg.NATS.URL = config.URL(f.server.ClientURL())
	cfg.NATS.NKeySeedFile = config.SecretFile(natsauth.SeedFile(f.keys, natsauth.PrincipalRouter))
	cfg.Cells.Breaker.Failures = 3
	require.Empty(f.t, cfg.Validate())
	require.Empty(f.t, cfg.Cells.Validate())
	return cfg
}

// listening runs the service until the test ends. It returns the addresses of its listeners, and a channel that is
// closed when the service is ready.
func (f *fixture) listening(cfg router.Config) (addresses map[string]string, ready <-chan struct{}) {
	f.t.Helper()
	opened, isReady := make(chan map[string]string, 1), make(chan struct{})
	cfg.OnListen = func(addresses map[string]string) { opened <- addresses }
	cfg.OnReady = func(map[string]string) { close(isReady) }
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- router.Main(ctx, cfg) }()
	f.t.Cleanup(func() {
		f.client.CloseIdleConnections()
		cancel()
		require.NoError(f.t, <-ended)
	})
	select {
	case addresses := <-opened:
		return addresses, isReady
	case err := <-ended:
		ended <- err
		require.FailNow(f.t, "the service ended", "%v", err)
	case <-time.After(soon):
		require.FailNow(f.t, "the service does not listen")
	}
	return nil, nil
}

// start runs the service, and returns when it is ready.
func (f *fixture) start() *running {
	f.t.Helper()
	addresses, ready := f.listening(f.config())
	f.await(ready)
	return &running{f, "http://" + addresses["api"], "http://" + addresses["ops"]}
}

func (f *fixture) await(ready <-chan struct{}) {
	f.t.Helper()
	select {
	case <-ready:
	case <-time.After(soon):
		require.FailNow(f.t, "the service is not ready")
	}
}

// addCell starts a cell that answers with its name, and adds it to the map.
func (f *fixture) addCell(name topology.Cell) *httptest.Server {
	f.t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, string(name))
	}))
	f.t.Cleanup(server.Close)
	f.putCell(cellmap.Cell{Name: name, URL: server.URL, State: cellmap.Active})
	return server
}

func (f *fixture) putCell(c cellmap.Cell) {
	f.t.Helper()
	public, _ := privateKey(c.Name).Public().(ed25519.PublicKey)
	c.Keys = jobtoken.KeySet{{ID: "k1", Public: public}}
	_, err := f.cells.PutCell(natstest.Context(f.t), c)
	require.NoError(f.t, err)
}

// move moves the organization.
func (f *fixture) move(to topology.Cell) {
	f.t.Helper()
	_, err := f.cells.PutOrganization(natstest.Context(f.t), cellmap.Organization{ID: organization, Cell: to})
	require.NoError(f.t, err)
}

// privateKey signs the tokens of jobs of a cell.
func privateKey(cell topology.Cell) ed25519.PrivateKey {
	seed := [ed25519.SeedSize]byte{}
	copy(seed[:], cell)
	return ed25519.NewKeyFromSeed(seed[:])
}

// runnerToken returns the token of a runner of an organization in a cell.
func runnerToken(t *testing.T, cell topology.Cell, organization int64) string {
	t.Helper()
	token, err := routable.New(routable.Runner, routable.Payload{Cell: cell, Organization: organization})
	require.NoError(t, err)
	return token
}

func jobToken(t *testing.T, cell topology.Cell) string {
	t.Helper()
	token, err := jobtoken.Sign("k1", privateKey(cell), jobtoken.Claims{
		ID: "x", JobID: 1, ProjectID: 2, OrganizationID: organization, Cell: cell,
		Scopes: []jobtoken.Scope{jobtoken.ScopeTrace}, IssuedAt: time.Now(), ExpiresAt: time.Now().Add(soon),
	})
	require.NoError(t, err)
	return token
}

// running is a router that runs.
type running struct {
	*fixture

	api, ops string
}

// get returns the status and the body of a response.
func (r *running) get(url, token string) (response *http.Response, body string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), soon)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader("{}"))
	if token == "" {
		request, err = http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	}
	require.NoError(r.t, err)
	request.Header.Set(headerJob, token)
	response, err = r.client.Do(request)
	require.NoError(r.t, err)
	defer response.Body.Close()
	raw, err := io.ReadAll(response.Body)
	require.NoError(r.t, err)
	return response, string(raw)
}

func (r *running) request(token string) (*http.Response, string) {
	r.t.Helper()
	return r.get(r.api+"/api/v4/jobs/request", token)
}

// requireAnswer waits until the body of a response is the expected one: the map reaches routers a little later.
func (r *running) requireAnswer(token, expected string) {
	r.t.Helper()
	require.EventuallyWithT(r.t, func(c *assert.CollectT) {
		_, body := r.request(token)
		assert.Equal(c, expected, body)
	}, soon, time.Millisecond)
}

// requireStatus waits until a response has the status.
func (r *running) requireStatus(token string, expected int) {
	r.t.Helper()
	require.EventuallyWithT(r.t, func(c *assert.CollectT) {
		response, body := r.request(token)
		assert.Equal(c, expected, response.StatusCode, body)
	}, soon, time.Millisecond)
}

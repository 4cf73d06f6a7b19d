package forward_test

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/cellmap"
	"lockstep.internal/libs/routable"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/router/forward"
	"lockstep.internal/tools/testkit/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const (
	headerRunner  = "Runner-Token"
	headerJob     = "Job-Token"
	headerPrivate = "Private-Token"

	soon = time.Minute
)

// fakeCells is a cell map in memory.
type fakeCells struct {
	mu       sync.Mutex
	notReady bool
	stale    error
	cells    map[topology.Cell]cellmap.Cell
	legacy   topology.Cell
	changed  chan struct{}
}

func (c *fakeCells) Cell(name topology.Cell) (cellmap.Cell, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	found, ok := c.cells[name]
	return found, ok
}
func (c *fakeCells) CellDeleted(topology.Cell) bool                  { return false }
func (c *fakeCells) Organization(int64) (topology.Cell, bool)        { return "", false }
func (c *fakeCells) Moved(topology.Cell, int64) (cellmap.Move, bool) { return cellmap.Move{}, false }

func (c *fakeCells) Legacy() (topology.Cell, bool)                       { return c.legacy, c.legacy != "" }
func (c *fakeCells) Key(topology.Cell, string) (ed25519.PublicKey, bool) { return nil, false }
func (c *fakeCells) Ready() bool                                         { return !c.notReady }
func (c *fakeCells) Check(context.Context) error                         { return c.stale }
func (c *fakeCells) HasCells() bool                                      { return len(c.cells) > 0 }
func (c *fakeCells) Changed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

// set changes the map.
func (c *fakeCells) set(change func(cells map[topology.Cell]cellmap.Cell)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(c.cells)
	close(c.changed)
	c.changed = make(chan struct{})
}

// fixture is a router with cells.
type fixture struct {
	t       *testing.T
	cells   *fakeCells
	handler *forward.Handler
	url     string
	client  *http.Client
}

// newFixture starts a router. Cells are added with addCell.
func newFixture(t *testing.T, configure func(*forward.Config)) *fixture {
	t.Helper()
	f := &fixture{t: t, cells: &fakeCells{
		cells: map[topology.Cell]cellmap.Cell{}, changed: make(chan struct{}),
	}}
	cfg := forward.Config{
		Cells: f.cells, MaxRequestsPerCell: 100, Breaker: forward.BreakerConfig{Failures: 3, Open: time.Hour},
		BodyTimeout: soon, ResponseTimeout: soon, Logger: slog.New(slog.DiscardHandler),
	}
	if configure != nil {
		configure(&cfg)
	}
	f.handler = forward.NewHandler(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f.handler.Run(ctx)
	}()
	server := httptest.NewServer(f.handler)
	f.url = server.URL
	transport := &http.Transport{ExpectContinueTimeout: soon, DisableCompression: true}
	f.client = &http.Client{Transport: transport}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		server.Close()
		cancel()
		<-ended
	})
	return f
}

// addCell starts a cell.
func (f *fixture) addCell(name topology.Cell, handler http.HandlerFunc) *httptest.Server {
	f.t.Helper()
	server := httptest.NewServer(handler)
	f.t.Cleanup(server.Close)
	f.cells.set(func(cells map[topology.Cell]cellmap.Cell) {
		cells[name] = cellmap.Cell{Name: name, URL: server.URL, State: cellmap.Active}
	})
	return server
}

// runner returns the token of a runner of a cell.
func (f *fixture) runner(cell topology.Cell) string {
	f.t.Helper()
	token, err := routable.New(routable.Runner, routable.Payload{Cell: cell})
	require.NoError(f.t, err)
	return token
}

func (f *fixture) request(method, path, token string, body io.Reader) *http.Request {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), soon)
	f.t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, method, f.url+path, body)
	require.NoError(f.t, err)
	if token != "" {
		r.Header.Set(headerRunner, token)
	}
	return r
}

// send returns the response with its body read.
func (f *fixture) send(r *http.Request) (*http.Response, string) {
	f.t.Helper()
	response, err := f.client.Do(r)
	require.NoError(f.t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(f.t, err)
	return response, string(body)
}

func (f *fixture) get(token string) (*http.Response, string) {
	f.t.Helper()
	return f.send(f.request(http.MethodGet, "/api/v4/x", token, nil))
}

// requireCount waits until requests ended so: the router counts a request after its response.
func (f *fixture) requireCount(cell topology.Cell, result string, count int) {
	f.t.Helper()
	line := fmt.Sprintf("lockstep_router_requests_total{cell=%q,result=%q} %d\n", cell, result, count)
	require.Eventually(f.t, func() bool {
		metrics, err := testutil.CollectAndFormat(f.handler, expfmt.TypeTextPlain, "lockstep_router_requests_total")
		return err == nil && strings.Contains(string(metrics), line)
	}, soon, time.Millisecond, line)
}

// text answers with a text.
func text(answer string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, answer) }
}

package router_test

import (
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/cellmap"
	"lockstep.internal/libs/config"
	"lockstep.internal/services/router"
	"lockstep.internal/tools/testkit/natstest"
)

func TestMoveOfAnOrganizationTakesEffectAtOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.createMap()
	f.addCell("one")
	f.addCell("two")
	f.move("one")
	replicas := []*running{f.start(), f.start()}
	runner, other, job := runnerToken(t, "one", organization), runnerToken(t, "one", 8), jobToken(t, "one")
	for _, r := range replicas {
		for _, token := range []string{runner, other, job} {
			_, body := r.request(token)
			require.Equal(t, "one", body)
		}
	}
	f.move("two")
	for _, r := range replicas {
		r.requireAnswer(runner, "two")
		for _, token := range []string{other, job} {
			_, body := r.request(token)
			require.Equal(t, "one", body, "jobs end where they run, and other organizations stay")
		}
	}
}

func TestLegacyCellGetsUnknownTokens(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.createMap()
	f.addCell("old")
	r := f.start()
	response, body := r.request("glrt-unknown")
	require.Equal(t, http.StatusForbidden, response.StatusCode)
	require.Contains(t, body, `"code":"permission_denied"`)
	_, err := f.cells.PutLegacy(natstest.Context(t), "old")
	require.NoError(t, err)
	r.requireAnswer("glrt-unknown", "old")
}

func TestStatesOfCells(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.createMap()
	one := f.addCell("one")
	f.addCell("two")
	r := f.start()
	token := runnerToken(t, "one", 0)
	_, body := r.request(token)
	require.Equal(t, "one", body)

	f.putCell(cellmap.Cell{Name: "one", URL: one.URL, State: cellmap.Maintenance})
	r.requireStatus(token, http.StatusServiceUnavailable)
	response, _ := r.request(token)
	require.NotEmpty(t, response.Header.Get("Retry-After"))

	f.putCell(cellmap.Cell{Name: "one", URL: one.URL, RedirectURL: "https://one.example.org", State: cellmap.Active})
	r.requireStatus(token, http.StatusTemporaryRedirect)
	response, _ = r.request(token)
	require.Equal(t, "https://one.example.org/api/v4/jobs/request", response.Header.Get("Location"))

	_, err := f.cells.DeleteCell(natstest.Context(t), "one")
	require.NoError(t, err)
	r.requireStatus(token, http.StatusForbidden)
	r.requireStatus(runnerToken(t, "never", 0), http.StatusServiceUnavailable)
	_, body = r.request(runnerToken(t, "two", 0))
	require.Equal(t, "two", body)
}

func TestCellThatIsDown(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.createMap()
	f.addCell("one").Close()
	f.addCell("two")
	r := f.start()
	for range 5 {
		response, _ := r.request(runnerToken(t, "one", 0))
		require.Equal(t, http.StatusServiceUnavailable, response.StatusCode)
		_, body := r.request(runnerToken(t, "two", 0))
		require.Equal(t, "two", body)
	}
	require.Eventually(t, func() bool {
		_, metrics := r.get(r.ops+"/metrics", "")
		return strings.Contains(metrics, `lockstep_router_breaker_open{cell="one"} 1`) &&
			strings.Contains(metrics, `lockstep_router_breaker_open{cell="two"} 0`) &&
			strings.Contains(metrics, `lockstep_router_requests_total{cell="one",result="open"} 2`) &&
			strings.Contains(metrics, `lockstep_router_requests_total{cell="two",result="forwarded"} 5`)
	}, soon, time.Millisecond)
}

func TestLastMapRemainsInForceWithoutNATS(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.createMap()
	f.addCell("one")
	f.addCell("two")
	f.move("two")
	r := f.start()
	f.server.Down()
	require.Eventually(t, func() bool {
		_, report := r.get(r.ops+"/readyz", "")
		return strings.Contains(report, "[!!] nats")
	}, soon, time.Millisecond)
	response, report := r.get(r.ops+"/readyz", "")
	require.Equal(t, http.StatusOK, response.StatusCode, report)
	for token, expected := range map[string]string{
		runnerToken(t, "one", organization): "two", runnerToken(t, "one", 0): "one", jobToken(t, "one"): "one",
	} {
		_, body := r.request(token)
		require.Equal(t, expected, body)
	}
	require.NoError(t, f.server.Restart())
	f.cells = cellmap.Writer{JetStream: f.as("cells")}
	f.move("one")
	r.requireAnswer(runnerToken(t, "one", organization), "one")
}

func TestNotReadyBeforeTheMapIsLoaded(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	addresses, ready := f.listening(f.config())
	r := &running{f, "http://" + addresses["api"], "http://" + addresses["ops"]}
	response, report := r.get(r.ops+"/readyz", "")
	require.Equal(t, http.StatusServiceUnavailable, response.StatusCode)
	require.Contains(t, report, "[no] cells")
	response, body := r.request(runnerToken(t, "one", 0))
	require.Equal(t, http.StatusServiceUnavailable, response.StatusCode, "no runner is refused: %s", body)
	f.createMap()
	f.await(ready)
	r.requireStatus("unknown", http.StatusServiceUnavailable) // an empty map may be one that was lost
	f.addCell("one")
	r.requireAnswer(runnerToken(t, "one", 0), "one")
	r.requireStatus("unknown", http.StatusForbidden)
}

// TestGarbageDelaysNobody floods the router with requests that have no valid token.
func TestGarbageDelaysNobody(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.createMap()
	f.addCell("one")
	r := f.start()
	valid := runnerToken(t, "one", 0)
	garbage := []string{valid[:len(valid)-1] + "_", "glcbt-" + strings.Repeat("x.", 500), jobToken(t, "two"), "x"}
	var flood sync.WaitGroup
	for range 8 {
		flood.Go(func() {
			for i := range 100 {
				response, _ := r.request(garbage[i%len(garbage)])
				if response.StatusCode == http.StatusOK {
					t.Error("a cell got a request without a valid token")
				}
			}
		})
	}
	for range 50 {
		_, body := r.request(valid)
		require.Equal(t, "one", body)
	}
	flood.Wait()
}

func TestServiceEndsWithoutItsKey(t *testing.T) {
	t.Parallel()
	cfg := newFixture(t).config()
	cfg.NATS.NKeySeedFile = config.SecretFile(filepath.Join(t.TempDir(), "missing.seed"))
	require.ErrorContains(t, router.Main(t.Context(), cfg), "connect to NATS")
}

func TestInvalidConfigurationIsRefused(t *testing.T) {
	t.Parallel()
	require.Empty(t, router.DefaultConfig().Validate())
	require.Empty(t, router.DefaultConfig().Cells.Validate())
	cfg := router.DefaultConfig()
	cfg.Cell.Name, cfg.API.MaxBody, cfg.Cells.MaxRequests = "a.b", 1, cfg.API.MaxHTTPRequests
	require.Len(t, cfg.Validate(), 3)
	require.Len(t, router.CellsConfig{CAFile: "missing"}.Validate(), 6)
	cfg = router.DefaultConfig()
	cfg.Cells.CAFile = "missing"
	require.ErrorContains(t, router.Main(t.Context(), cfg), "load the CAs of cells")
}

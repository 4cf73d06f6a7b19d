package gitlab_test

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/runners/gitlab"
	"lockstep.internal/services/runners/openapi"
	"lockstep.internal/tools/testkit/leaktest"
	"lockstep.internal/tools/testkit/runnerclient"
	"lockstep.internal/tools/testkit/runnerreplay"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

type fixture struct {
	*memory

	url string
	// faults are what the OpenAPI document does not allow.
	mu     sync.Mutex
	faults []error
}

// newFixture starts a server. Every exchange is compared with the OpenAPI document.
func newFixture(t *testing.T, change ...func(*gitlab.Config)) *fixture {
	t.Helper()
	m := newMemory()
	cfg := gitlab.Config{
		Runners: m, Queue: m, Jobs: m, Artifacts: m, Hold: 5 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
	}
	for _, c := range change {
		c(&cfg)
	}
	contract, err := openapi.Load(t.Context(), "../../..")
	require.NoError(t, err)
	f := &fixture{memory: m}
	server := httptest.NewServer(contract.Handler(gitlab.NewHandler(cfg), func(err error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.faults = append(f.faults, err)
	}))
	t.Cleanup(func() {
		server.Close()
		require.Empty(t, f.faults)
	})
	f.url = server.URL
	return f
}

func (f *fixture) client(t *testing.T, change ...func(*runnerclient.Config)) *runnerclient.Client {
	t.Helper()
	cfg := runnerclient.Config{URL: f.url, Token: "glrt-one", SystemID: "s_1", MaxWait: 2 * time.Millisecond}
	for _, c := range change {
		c(&cfg)
	}
	client := runnerclient.New(cfg)
	t.Cleanup(client.Close)
	return client
}

// running makes a job that the runner has.
func (f *fixture) running(t *testing.T, client *runnerclient.Client, j runnerreplay.Job) *runnerclient.Job {
	t.Helper()
	require.NoError(t, f.offer(t.Context(), j))
	given, err := client.RequestJob(t.Context())
	require.NoError(t, err)
	require.NotNil(t, given)
	return given
}

// snapshot is everything that requests can change.
func (f *fixture) snapshot() string {
	f.memory.mu.Lock()
	defer f.memory.mu.Unlock()
	var text strings.Builder
	for token, system := range f.runners {
		text.WriteString(token + "=" + system + ";")
	}
	for id := range int64(1000) {
		if j := f.jobs[id]; j != nil {
			text.WriteString(j.Name + string(j.status) + string(j.stored) + string(j.artifact) + j.runner + ";")
		}
	}
	return text.String()
}

// exchange sends a request and returns the answer with its body.
func (f *fixture) exchange(
	t *testing.T, method, path string, header map[string]string, body string,
) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, f.url+"/api/v4"+path, strings.NewReader(body))
	require.NoError(t, err)
	r.Header.Set("Content-Type", "application/json")
	for name, value := range header {
		r.Header.Set(name, value)
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(r)
	require.NoError(t, err)
	defer response.Body.Close()
	raw, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response, string(raw)
}

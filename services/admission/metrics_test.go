package admission_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	admissionv1 "lockstep.internal/schemas/gen/lockstep/admission/v1"
)

// Dashboards and alerts need these metrics.
func TestMetricsCountDecisionsAndJobsThatWait(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.start()
	release := make(chan struct{})
	silent := newWebServer(t, func(w http.ResponseWriter, r received) {
		select {
		case <-release:
			answering(accept)(w, r)
		case <-r.gone:
		}
	})
	f.create(project, projectID, &admissionv1.ControllerSettings{
		Name: "denies", Policy: `rules: [{if: job.id == 9002, deny: true}]`,
	})
	settings := silent.settings("silent")
	settings.Match = `job.id == 9003`
	f.create(project, projectID, settings)
	for id := 9001; id <= 9003; id++ {
		f.prepare(prepared(id, "docker"))
	}
	f.decided(9001)
	f.decided(9002)
	f.requireMetrics(
		`lockstep_admission_decisions_total{cause="",outcome="admitted"} 1`,
		`lockstep_admission_decisions_total{cause="admission_denied",outcome="rejected"} 1`,
		`lockstep_admission_waiting_jobs 1`,
	)
	close(release)
	f.decided(9003)
	f.requireMetrics(
		`lockstep_admission_decisions_total{cause="",outcome="admitted"} 2`,
		`lockstep_admission_request_seconds_count{result="answered"} 1`, `lockstep_admission_waiting_jobs 0`,
	)
}

// requireMetrics waits until the service reports all lines.
func (f *fixture) requireMetrics(lines ...string) {
	f.t.Helper()
	for _, line := range lines {
		require.Eventually(f.t, func() bool {
			request, err := http.NewRequestWithContext(f.t.Context(), http.MethodGet, f.ops+"/metrics", http.NoBody)
			require.NoError(f.t, err)
			request.Close = true
			response, err := http.DefaultClient.Do(request)
			require.NoError(f.t, err)
			defer response.Body.Close()
			body, err := io.ReadAll(response.Body)
			require.NoError(f.t, err)
			return strings.Contains("\n"+string(body), "\n"+line+"\n")
		}, soon, 100*time.Millisecond, line)
	}
}

package runnerreplay_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/tools/testkit/runnerreplay"
)

func TestServerThatFollowsTheContractPasses(t *testing.T) {
	t.Parallel()
	runnerreplay.Replay(t, newTarget(t, nil))
}

func TestServerWithoutRegistrationPasses(t *testing.T) {
	t.Parallel()
	target := newTarget(t, func(call string, w *httptest.ResponseRecorder) {
		if call == "POST /runners" {
			w.Code = http.StatusGone
		}
	})
	target.RegistrationToken = ""
	runnerreplay.Replay(t, target)
}

func TestRecordingIsComplete(t *testing.T) {
	t.Parallel()
	sent, jobs := 0, map[string]bool{}
	for _, e := range runnerreplay.Exchanges() {
		sent += max(e.Repeat, 1)
		require.NotContains(t, string(e.Body), `"{run}"`, e.Request)
		if len(e.Body) > 0 {
			require.True(t, json.Valid(e.Body))
		}
		if e.Replay.Offer {
			jobs[string(e.Answer.Body[:12])] = true
		}
	}
	require.Equal(t, 77, sent)
	require.Len(t, jobs, 8)
}

// TestLiesAreFound changes each kind of answer in ways that a runner would not accept.
func TestLiesAreFound(t *testing.T) {
	t.Parallel()
	status := func(code int) func(*httptest.ResponseRecorder) {
		return func(w *httptest.ResponseRecorder) { w.Code = code }
	}
	without := func(name string) func(*httptest.ResponseRecorder) {
		return func(w *httptest.ResponseRecorder) { w.Header().Del(name) }
	}
	with := func(name, value string) func(*httptest.ResponseRecorder) {
		return func(w *httptest.ResponseRecorder) { w.Header().Set(name, value) }
	}
	replace := func(before, after string) func(*httptest.ResponseRecorder) {
		return func(w *httptest.ResponseRecorder) {
			w.Body = bytes.NewBufferString(strings.ReplaceAll(w.Body.String(), before, after))
		}
	}
	for i, test := range []struct {
		call string
		// at is the status of the answers that are changed.
		at   int
		lie  func(*httptest.ResponseRecorder)
		want string
	}{
		{"POST /runners/verify", 200, status(403), "status 403 instead of [200]"},
		{"POST /runners/verify", 200, replace(`"id":7`, `"id":0`), "no id"},
		{"POST /runners/verify", 200, replace(`"token":`, `"other":`), "no token"},
		{"POST /runners/verify", 200, replace(`"token_expires_at"`, `"x"`), "no token_expires_at"},
		{"POST /runners/verify", 200, without("Content-Type"), "instead of application/json"},
		{"POST /runners", 201, status(410), "status 410 instead of [201]"},
		{"POST /jobs/request", 201, status(204), "status 204 instead of [201]"},
		{"POST /jobs/request", 201, replace(`{`, `x`), "decode the body"},
		{"POST /jobs/request", 201, replace(`"git_info"`, `"x"`), "no git_info"},
		{"POST /jobs/request", 201, replace(`"token":`, `"x":`), "no token"},
		{"POST /jobs/request", 201, replace(`job101`, `job100`), `is "job100"`},
		{"POST /jobs/request", 201, replace(`echo`, `cat`), "other steps"},
		{"POST /jobs/request", 201, replace(`"masked":true`, `"masked":false`), "no masked variable MYSECRET"},
		{"POST /jobs/request", 201, replace(`"archive"`, `"raw"`), "other artifacts"},
		{"POST /jobs/request", 201, replace(`"timeout":60`, `"timeout":61`), "timeout of 61"},
		{"POST /jobs/request", 201, replace(`glcbt-dependency`, ``), "invalid dependency"},
		{"POST /jobs/request", 204, without("X-GitLab-Last-Update"), "no X-GitLab-Last-Update"},
		{"POST /jobs/request", 204, status(403), "status 403 instead of [409 204]"},
		{"PATCH/trace", 202, status(404), "status 404"},
		{"PATCH/trace", 202, with("Range", "0-1954"), `Range is "0-1954" instead of "0-1955"`},
		{"PATCH/trace", 202, without("Job-Status"), `Job-Status is ""`},
		{"PATCH/trace", 202, without("X-GitLab-Trace-Update-Interval"), `Interval is ""`},
		{"PATCH/trace", 416, without("Range"), `Range is "" instead of "0-10"`},
		{"PATCH/trace", 403, status(202), "status 202 instead of [403]"},
		{"PATCH/trace", 403, with("Job-Status", "running"), `Job-Status is "running"`},
		{"PUT", 412, status(200), "status 200 instead of [412]"},
		{"PUT", 200, status(202), "status 202 instead of [200]"},
		{"PUT", 200, with("Job-Status", "running"), `Job-Status is "running"`},
		{"POST/artifacts", 201, status(503), "status 503 instead of [201]"},
		{"GET/artifacts", 200, replace("PK", "KP"), "differ from the uploaded"},
		{"GET/artifacts", 200, status(404), "status 404 instead of [200]"},
	} {
		t.Run(fmt.Sprint(i, " ", test.call), func(t *testing.T) {
			t.Parallel()
			err := runnerreplay.Run(t.Context(), newTarget(t, func(call string, w *httptest.ResponseRecorder) {
				if call == test.call && w.Code == test.at {
					test.lie(w)
				}
			}))
			require.ErrorContains(t, err, test.want)
		})
	}
}

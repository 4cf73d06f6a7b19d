package gitlab_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/runners/gitlab"
	"lockstep.internal/services/runners/wire"
	"lockstep.internal/tools/testkit/runnerreplay"
)

// TestBadInputChangesNothing sends requests that must be refused. Each error has a code and a message.
func TestBadInputChangesNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(cfg *gitlab.Config) { cfg.MaxTracePart = 100 })
	client := f.client(t)
	own := f.running(t, client, runnerreplay.Job{Name: "own", Script: []string{"x"}})
	other := f.running(t, client, runnerreplay.Job{Name: "other", Script: []string{"x"}})
	ended := f.running(t, client, runnerreplay.Job{Name: "ended", Script: []string{"x"}})
	require.NoError(t, f.end(wire.StatusCanceled)(t.Context(), ended.ID))
	require.NoError(t, f.offer(t.Context(), runnerreplay.Job{Name: "pending", Script: []string{"x"}}))
	before := f.snapshot()

	job := func(id int64, rest string) string { return fmt.Sprintf("/jobs/%d%s", id, rest) }
	with := func(token string, more ...string) map[string]string {
		h := map[string]string{"JOB-TOKEN": token, "Content-Type": "text/plain", "Content-Range": "0-2"}
		for i := 0; i < len(more); i += 2 {
			h[more[i]] = more[i+1]
		}
		return h
	}
	update := `{"token":%q,"state":"success"}`
	const form = "multipart/form-data; boundary=b"
	const denied, invalid = "permission_denied", "invalid_argument"
	ownForm := with(own.Token, "Content-Type", form)
	for name, test := range map[string]struct {
		method, path string
		header       map[string]string
		body         string
		status       int
		code         string
		jobStatus    string
	}{
		"unknown runner asks for a job": {"POST", "/jobs/request", nil, `{"token":"glrt-two"}`, 403, denied, ""},
		"no token":                      {"POST", "/jobs/request", nil, `{}`, 403, denied, ""},
		"header counts": {
			"POST", "/jobs/request", map[string]string{"RUNNER-TOKEN": "x"}, `{"token":"glrt-one"}`, 403, denied, "",
		},
		"long token in a header": {
			"POST", "/runners/verify",
			map[string]string{"RUNNER-TOKEN": strings.Repeat("x", 5000)},
			`{}`,
			403, denied, "",
		},
		"large body": {
			"POST", "/jobs/request", nil, `{"token":"` + strings.Repeat(" ", 33<<10) + `"}`, 413, "payload_too_large", "",
		},
		"malformed":            {"POST", "/jobs/request", nil, `{"token":`, 400, invalid, ""},
		"control characters":   {"POST", "/jobs/request", nil, `{"token":"glrt-one","system_id":"\n"}`, 400, invalid, ""},
		"unknown runner":       {"POST", "/runners/verify", nil, `{"token":"glrt-two"}`, 403, denied, ""},
		"unknown registration": {"POST", "/runners", nil, `{"token":"glrt-one"}`, 403, denied, ""},
		"reset of another":     {"POST", "/runners/reset_authentication_token", nil, `{"token":"x"}`, 403, denied, ""},
		"delete of another":    {"DELETE", "/runners", nil, `{"token":"x"}`, 403, denied, ""},
		"manager of another": {
			"DELETE", "/runners/managers", nil, `{"token":"glrt-one","system_id":"s_2"}`, 404, "not_found", "",
		},
		"discovery":           {"GET", "/runners/router/discovery", nil, ``, 501, "unimplemented", ""},
		"another job's token": {"PUT", job(own.ID, ""), nil, fmt.Sprintf(update, other.Token), 403, denied, ""},
		"runner's token":      {"PUT", job(own.ID, ""), nil, fmt.Sprintf(update, "glrt-one"), 403, denied, ""},
		"unknown job":         {"PUT", job(4, ""), nil, fmt.Sprintf(update, own.Token), 403, "not_found", ""},
		"unknown state":       {"PUT", job(own.ID, ""), nil, `{"state":"pending"}`, 400, invalid, ""},
		"wrong checksum": {
			"PUT", job(own.ID, ""), nil,
			fmt.Sprintf(`{"token":%q,"state":"success","checksum":"crc32:00000001"}`, own.Token), 412,
			"failed_precondition", "running",
		},
		"negative id":          {"PUT", "/jobs/-1", nil, fmt.Sprintf(update, own.Token), 400, invalid, ""},
		"trace of another":     {"PATCH", job(own.ID, "/trace"), with(other.Token), "abc", 403, denied, ""},
		"trace without token":  {"PATCH", job(own.ID, "/trace"), with(""), "abc", 403, denied, ""},
		"trace of unknown job": {"PATCH", job(4, "/trace"), with(own.Token), "abc", 403, "not_found", ""},
		"trace of ended job":   {"PATCH", job(ended.ID, "/trace"), with(ended.Token), "abc", 403, denied, "canceled"},
		"trace without range": {
			"PATCH", job(own.ID, "/trace"), with(own.Token, "Content-Range", ""), "abc", 400, invalid, "",
		},
		"trace with wrong size": {"PATCH", job(own.ID, "/trace"), with(own.Token), "ab", 400, invalid, "running"},
		"trace with more":       {"PATCH", job(own.ID, "/trace"), with(own.Token), "abcd", 400, invalid, "running"},
		"trace with a gap": {
			"PATCH", job(own.ID, "/trace"), with(own.Token, "Content-Range", "5-7"), "abc", 416, "failed_precondition",
			"running",
		},
		"large part": {
			"PATCH", job(own.ID, "/trace"), with(own.Token, "Content-Range", "0-100"), "abc", 403, "payload_too_large",
			"running",
		},
		"artifact of another": {
			"POST", job(own.ID, "/artifacts"), with(other.Token, "Content-Type", form), artifact("file", "a"), 403, denied,
			"",
		},
		"artifact after end": {
			"POST", job(ended.ID, "/artifacts"), with(ended.Token, "Content-Type", form), artifact("file", "a"), 403,
			denied, "canceled",
		},
		"artifact without form": {"POST", job(own.ID, "/artifacts"), with(own.Token), "abc", 400, invalid, "running"},
		"artifact without file": {"POST", job(own.ID, "/artifacts"), ownForm, artifact("x", "a"), 400, invalid, "running"},
		"artifact without name": {
			"POST", job(own.ID, "/artifacts"), ownForm, artifact("file", ""), 400, invalid, "running",
		},
		"artifact's name": {
			"POST", job(own.ID, "/artifacts"), ownForm, artifact("file", "a\tb"), 400, invalid, "running",
		},
		"artifact's end": {
			"POST", job(own.ID, "/artifacts"), ownForm,
			strings.TrimSuffix(artifact("file", "a"), "--b--\r\n"), 400, invalid, "running",
		},
		"artifact's format": {
			"POST", job(own.ID, "/artifacts?artifact_format=rar"), ownForm, artifact("file", "a"),
			400, invalid, "",
		},
		"artifact's type": {
			"POST", job(own.ID, "/artifacts?artifact_type=%07"), ownForm, artifact("file", "a"),
			400, invalid, "",
		},
		"large artifact": {
			"POST", job(own.ID, "/artifacts"), ownForm,
			artifact("file", "a", strings.Repeat("x", uploadLimit+1)), 413, "payload_too_large", "running",
		},
		"no artifacts":    {"GET", job(own.ID, "/artifacts"), with(own.Token), "", 404, "not_found", ""},
		"direct_download": {"GET", job(own.ID, "/artifacts?direct_download=x"), with(own.Token), "", 400, invalid, ""},
	} {
		t.Run(name, func(t *testing.T) {
			response, body := f.exchange(t, test.method, test.path, test.header, test.body)
			require.Equal(t, test.status, response.StatusCode, body)
			var e struct {
				Code    string `json:"code"`
				Message string `json:"message"`
			}
			require.NoError(t, json.Unmarshal([]byte(body), &e), body)
			require.Equal(t, test.code, e.Code)
			require.NotEmpty(t, e.Message)
			require.Equal(t, test.jobStatus, response.Header.Get("Job-Status"))
			require.Equal(t, before, f.snapshot())
		})
	}
	response, _ := f.exchange(t, http.MethodPatch, job(own.ID, "/trace"), with(own.Token, "Content-Range", "5-7"), "abc")
	require.Equal(t, "0-0", response.Header.Get("Range"))
}

// artifact returns a form with a file.
func artifact(name, filename string, content ...string) string {
	return fmt.Sprintf("--b\r\nContent-Disposition: form-data; name=%q; filename=\"%s\"\r\n\r\n%s\r\n--b--\r\n",
		name, filename, strings.Join(content, ""))
}

func TestUnknownPathsHaveErrorsWithJSON(t *testing.T) {
	t.Parallel()
	m := newMemory()
	h := gitlab.NewHandler(gitlab.Config{
		Runners: m, Queue: m, Jobs: m, Artifacts: m, Logger: slog.New(slog.DiscardHandler),
	})
	for _, path := range []string{"/api/v4/other", "/api/v4/jobs/1", "/api/v4/jobs/1/trace/x", "/api/v4/"} {
		recorder := httptest.NewRecorder()
		h.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody))
		require.Equal(t, http.StatusNotFound, recorder.Code)
		require.Contains(t, recorder.Body.String(), `{"code":"not_found"`)
	}
}

// FuzzHandler sends any request. None is an internal error.
func FuzzHandler(f *testing.F) {
	f.Add("PATCH", "jobs/500/trace", "glcbt-0123456789-500", "0-2", "text/plain", []byte("abc"))
	f.Add("PUT", "jobs/500", "glcbt-0123456789-500", "", "application/json", []byte(`{"state":"failed","exit_code":1}`))
	f.Add("POST", "jobs/request", "glrt-one", "", "application/json", []byte(`{"system_id":"s"}`))
	f.Add("POST", "jobs/500/artifacts?artifact_format=zip", "glcbt-0123456789-500", "", "multipart/form-data; boundary=b",
		[]byte(artifact("file", "a.zip")))
	f.Add("DELETE", "runners/managers?token=glrt-one", "", "", "", []byte{})
	f.Fuzz(func(t *testing.T, method, path, token, contentRange, contentType string, body []byte) {
		r, err := http.NewRequestWithContext(t.Context(), method, "http://x/api/v4/"+path, strings.NewReader(string(body)))
		if err != nil {
			t.Skip("no request")
		}
		for name, value := range map[string]string{
			"JOB-TOKEN": token, "RUNNER-TOKEN": token, "Content-Range": contentRange, "Content-Type": contentType,
		} {
			r.Header.Set(name, value)
		}
		m := newMemory()
		require.NoError(t, m.offer(t.Context(), runnerreplay.Job{Name: "a", Script: []string{"x"}}))
		m.give("glrt-one")
		recorder := httptest.NewRecorder()
		gitlab.NewHandler(gitlab.Config{
			Runners: m, Queue: m, Jobs: m, Artifacts: m, Hold: time.Microsecond, Logger: slog.New(slog.DiscardHandler),
		}).ServeHTTP(recorder, r)
		if recorder.Code != http.StatusNotImplemented {
			require.Less(t, recorder.Code, http.StatusInternalServerError, recorder.Body.String())
		}
	})
}

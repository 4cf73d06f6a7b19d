package openapi_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/runners/openapi"
	"lockstep.internal/services/runners/wire"
	"lockstep.internal/tools/testkit/runnerreplay"
)

func load(t *testing.T) *openapi.Contract {
	t.Helper()
	contract, err := openapi.Load(t.Context(), "../../..")
	require.NoError(t, err)
	return contract
}

func newRequest(t *testing.T, method, path, body string) *http.Request {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	return r
}

// TestRecordedExchangesConform is about the requests of a real runner, and the answers that it accepted.
func TestRecordedExchangesConform(t *testing.T) {
	t.Parallel()
	contract := load(t)
	seen := map[string]bool{}
	for _, e := range runnerreplay.Exchanges() {
		body := strings.NewReplacer("{job ", "{job", "{checksum}", "crc32:6673f471").Replace(string(e.Body))
		r := newRequest(t, e.Method(), e.Path(), body)
		r.Header.Del("Content-Type")
		for name, value := range e.Headers {
			r.Header.Set(name, value)
		}
		name, err := contract.Request(r, []byte(body))
		require.NoError(t, err, e.Request)
		seen[name] = true
		if e.Answer.Status >= http.StatusBadRequest {
			continue // errors have a body of this project
		}
		header := http.Header{}
		for name, value := range e.Answer.Headers {
			header.Set(name, value)
		}
		if e.Answer.Body != nil {
			header.Set("Content-Type", "application/json")
		}
		require.NoError(t, contract.Answer(r, e.Answer.Status, header, e.Answer.Body), e.Request)
	}
	require.Len(t, seen, 7)
	require.Len(t, contract.Operations(), 12)
}

// TestJobOfThisServiceConforms is about the smallest job and one with everything.
func TestJobOfThisServiceConforms(t *testing.T) {
	t.Parallel()
	contract := load(t)
	job := wire.NewJob(1, "t")
	job.RunnerInfo.Timeout = 60
	answer := func() error {
		raw, err := json.Marshal(job)
		require.NoError(t, err)
		r := newRequest(t, http.MethodPost, "/api/v4/jobs/request", `{}`)
		return contract.Answer(r, http.StatusCreated, http.Header{"Content-Type": {"application/json"}}, raw)
	}
	require.ErrorContains(t, answer(), "steps")
	job.Steps = append(job.Steps, wire.Step{
		Name: wire.StepScript, Script: []string{"make"}, Timeout: 60, When: wire.OnSuccess,
	})
	require.NoError(t, answer())
	job.Image = &wire.Image{Name: "debian:13", Entrypoint: []string{"sh"}}
	job.Services = []wire.Image{{Name: "postgres:17", Alias: "db", Command: []string{"-c"}}}
	job.Artifacts = append(job.Artifacts, wire.Artifact{
		Paths: []string{"out/"}, When: wire.Always, Type: "archive", Format: "zip", ExpireIn: "1 week",
	})
	job.Credentials = append(job.Credentials, wire.Credentials{Type: "registry"})
	job.Dependencies = append(job.Dependencies, wire.Dependency{ID: 2, Token: "t", ArtifactsFile: wire.ArtifactsFile{
		Filename: "a.zip", Size: 3,
	}})
	require.NoError(t, answer())
	job.Artifacts[0].When = "never"
	require.ErrorContains(t, answer(), "when")
}

// TestDocumentAndDecoderAgree sends the same bodies to both.
func TestDocumentAndDecoderAgree(t *testing.T) {
	t.Parallel()
	contract := load(t)
	long := strings.Repeat("x", 256)
	for _, test := range []struct {
		path, body string
		request    wire.Request
		valid      bool
	}{
		{"POST jobs/request", `{"token":"t","system_id":"s","new":[1],"session":{"url":"x"}}`, &wire.JobRequest{}, true},
		{"POST jobs/request", `{"token":"a b"}`, &wire.JobRequest{}, false},
		{"POST jobs/request", `{"token":7}`, &wire.JobRequest{}, false},
		{"POST jobs/request", `{"system_id":"` + long + `"}`, &wire.JobRequest{}, false},
		{"POST jobs/request", `{"info":{"name":"\u001b"}}`, &wire.JobRequest{}, false},
		{"POST jobs/request", `{"info":{"config":{"gpus":"` + long + `"}}}`, &wire.JobRequest{}, false},
		{"POST runners/verify", `{"token":"t","system_id":"s_1"}`, &wire.RunnerRequest{}, true},
		{"POST runners/verify", `{"system_id":" "}`, &wire.RunnerRequest{}, false},
		{"POST runners", `{"token":"t","tag_list":"a,b","locked":true}`, &wire.RegisterRequest{}, true},
		{"POST runners", `{"token":"t","tag_list":["a"],"maximum_timeout":600}`, &wire.RegisterRequest{}, true},
		{"POST runners", `{"tag_list":"a"}`, &wire.RegisterRequest{}, false},
		{"POST runners", `{"token":"t","maximum_timeout":-1}`, &wire.RegisterRequest{}, false},
		{"POST runners", `{"token":"t","access_level":"x"}`, &wire.RegisterRequest{}, false},
		{"POST runners", `{"token":"t","tag_list":["` + long + `"]}`, &wire.RegisterRequest{}, false},
		{"POST user/runners", `{"runner_type":"project_type","project_id":7}`, &wire.CreateRunnerRequest{}, true},
		{"POST user/runners", `{"runner_type":"other"}`, &wire.CreateRunnerRequest{}, false},
		{"POST user/runners", `{"runner_type":"project_type","project_id":0}`, &wire.CreateRunnerRequest{}, false},
		{"PUT jobs/7", `{"token":"t","state":"running"}`, &wire.UpdateRequest{}, true},
		{"PUT jobs/7", `{"state":"failed","checksum":"crc32:0000000a","exit_code":-1}`, &wire.UpdateRequest{}, true},
		{"PUT jobs/7", `{"state":"canceled"}`, &wire.UpdateRequest{}, false},
		{"PUT jobs/7", `{"token":"t"}`, &wire.UpdateRequest{}, false},
		{"PUT jobs/7", `{"state":"failed","checksum":"0000000a"}`, &wire.UpdateRequest{}, false},
		{"PUT jobs/7", `{"state":"failed","output":{"bytesize":-1}}`, &wire.UpdateRequest{}, false},
		{"PUT jobs/7", `{"state":"failed","failure_reason":"` + long + `"}`, &wire.UpdateRequest{}, false},
	} {
		method, path, _ := strings.Cut(test.path, " ")
		_, refused := contract.Request(newRequest(t, method, "/api/v4/"+path, test.body), []byte(test.body))
		err := wire.Unmarshal([]byte(test.body), test.request)
		if test.valid {
			require.NoError(t, refused, test.body)
			require.NoError(t, err, test.body)
			continue
		}
		require.Error(t, refused, test.body)
		require.Error(t, err, test.body)
	}
}

func TestHandlerReportsWhatTheDocumentDoesNotAllow(t *testing.T) {
	t.Parallel()
	contract := load(t)
	for name, test := range map[string]struct {
		request *http.Request
		serve   http.HandlerFunc
		want    string
	}{
		"fine": {
			newRequest(t, http.MethodPost, "/api/v4/runners/verify", `{"token":"t"}`),
			func(w http.ResponseWriter, _ *http.Request) {
				_ = wire.WriteJSON(w, http.StatusOK, wire.Runner{ID: 1, Token: "t"})
			}, "",
		},
		"accepted although invalid": {
			newRequest(t, http.MethodPost, "/api/v4/runners/verify", `{"token":" "}`),
			func(w http.ResponseWriter, _ *http.Request) {
				_ = wire.WriteJSON(w, http.StatusOK, wire.Runner{ID: 1, Token: "t"})
			}, "verifyRunner: request body",
		},
		"id is missing": {
			newRequest(t, http.MethodPost, "/api/v4/runners/verify", `{"token":"t"}`),
			func(w http.ResponseWriter, _ *http.Request) {
				_ = wire.WriteJSON(w, http.StatusOK, map[string]string{})
			},
			"verifyRunner: 200: response body",
		},
		"header is missing": {
			newRequest(t, http.MethodPut, "/api/v4/jobs/7", `{"state":"running"}`),
			func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }, "Job-Status",
		},
		"error is text": {
			newRequest(t, http.MethodPut, "/api/v4/jobs/7", `{"state":"running"}`),
			func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusForbidden) }, "not JSON",
		},
		"error without code": {
			newRequest(t, http.MethodPost, "/api/v4/jobs/request", `{}`),
			func(w http.ResponseWriter, _ *http.Request) {
				_ = wire.WriteJSON(w, http.StatusConflict, map[string]string{"message": "x"})
			}, "requestJob: 409",
		},
		"invalid header": {
			newRequest(t, http.MethodPut, "/api/v4/jobs/7", `{"state":"running"}`),
			func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set(wire.HeaderJobStatus, "waiting")
				w.WriteHeader(http.StatusOK)
			}, "Job-Status",
		},
		"unknown path": {
			newRequest(t, http.MethodGet, "/api/v4/other", ``),
			func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }, "/api/v4/other",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var faults []error
			recorder := httptest.NewRecorder()
			contract.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				test.serve(w, r)
			}), func(err error) { faults = append(faults, err) }).ServeHTTP(recorder, test.request)
			if test.want == "" {
				require.Empty(t, faults)
				require.Equal(t, http.StatusOK, recorder.Code)
				require.Contains(t, recorder.Body.String(), `"id":1`)
				return
			}
			require.Len(t, faults, 1)
			require.ErrorContains(t, faults[0], test.want)
		})
	}
}

package runnerreplay_test

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	"lockstep.internal/tools/testkit/leaktest"
	"lockstep.internal/tools/testkit/runnerreplay"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// server does the least that the contract asks for. Its job ids differ from the recorded ones.
type server struct {
	mu      sync.Mutex
	pending []runnerreplay.Job
	jobs    []*job
	// lie changes an answer before it is sent.
	lie func(call string, recorder *httptest.ResponseRecorder)
}

type job struct {
	runnerreplay.Job

	id       int
	trace    []byte
	status   string
	artifact []byte
}

// newTarget starts a server and returns it as the target of a replay.
func newTarget(t *testing.T, lie func(call string, recorder *httptest.ResponseRecorder)) runnerreplay.Target {
	t.Helper()
	s := &server{lie: lie}
	listener := httptest.NewServer(s)
	t.Cleanup(listener.Close)
	return runnerreplay.Target{
		URL: listener.URL, RunnerToken: `glrt-"one"`, RegistrationToken: "registration",
		Offer: func(_ context.Context, j runnerreplay.Job) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.pending = append(s.pending, j)
			return nil
		},
		Cancel: s.set("canceling"), End: s.set("failed"),
	}
}

func (s *server) set(status string) func(context.Context, int64) error {
	return func(_ context.Context, id int64) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.jobs[id-5000].status = status
		return nil
	}
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	recorder := httptest.NewRecorder()
	s.mu.Lock()
	defer s.mu.Unlock()
	call := s.serve(recorder, r, body)
	if s.lie != nil {
		s.lie(call, recorder)
	}
	maps.Copy(w.Header(), recorder.Header())
	w.WriteHeader(recorder.Code)
	_, _ = w.Write(recorder.Body.Bytes())
}

func (s *server) serve(w *httptest.ResponseRecorder, r *http.Request, body []byte) string {
	path := strings.TrimPrefix(r.URL.Path, "/api/v4")
	var id int
	if _, err := fmt.Sscanf(path, "/jobs/%d", &id); err == nil && id >= 5000 && id < 5000+len(s.jobs) {
		return s.serveJob(w, r, s.jobs[id-5000], body)
	}
	var request struct {
		Token string `json:"token"`
	}
	_ = json.Unmarshal(body, &request)
	switch call := r.Method + " " + path; {
	case request.Token != r.Header.Get("Private-Token"):
		w.WriteHeader(http.StatusForbidden)
	case call == "POST /runners/verify" && request.Token == `glrt-"one"`:
		answer(w, http.StatusOK, map[string]any{"id": 7, "token": request.Token, "token_expires_at": nil})
	case call == "POST /runners" && request.Token == "registration":
		answer(w, http.StatusCreated, map[string]any{"id": 8, "token": "glrt-two", "token_expires_at": nil})
	case call == "POST /jobs/request" && request.Token == `glrt-"one"`:
		s.request(w)
	default:
		w.WriteHeader(http.StatusForbidden)
	}
	return r.Method + " " + path
}

func (s *server) request(w http.ResponseWriter) {
	if len(s.pending) == 0 {
		w.Header().Set("X-Gitlab-Last-Update", "one/i/7")
		w.WriteHeader(http.StatusNoContent)
		return
	}
	j := &job{Job: s.pending[0], id: 5000 + len(s.jobs), status: "running"}
	s.pending, s.jobs = s.pending[1:], append(s.jobs, j)
	steps := []map[string]any{{"name": "script", "script": j.Script}}
	if len(j.AfterScript) > 0 {
		steps = append(steps, map[string]any{"name": "after_script", "script": j.AfterScript})
	}
	variables := []map[string]any{}
	for key, value := range j.Masked {
		variables = append(variables, map[string]any{"key": key, "value": value, "masked": true})
	}
	artifacts, dependencies := []map[string]any{}, []map[string]any{}
	if len(j.ArtifactPaths) > 0 {
		artifacts = append(artifacts, map[string]any{
			"paths": j.ArtifactPaths, "artifact_type": "archive", "artifact_format": "zip",
		})
	}
	for _, name := range j.Dependencies {
		for _, other := range s.jobs {
			if other.Name == name {
				dependencies = append(dependencies, map[string]any{
					"id": other.id, "name": name, "token": "glcbt-dependency", "artifacts_file": map[string]any{"filename": "a.zip"},
				})
			}
		}
	}
	answer(w, http.StatusCreated, map[string]any{
		"id": j.id, "token": "glcbt-" + strconv.Itoa(j.id), "job_info": map[string]any{"name": j.Name},
		"git_info": map[string]any{"repo_url": ""}, "runner_info": map[string]any{"timeout": j.TimeoutSeconds},
		"steps": steps, "variables": variables, "artifacts": artifacts, "dependencies": dependencies,
	})
}

func (s *server) serveJob(w *httptest.ResponseRecorder, r *http.Request, j *job, body []byte) string {
	call := r.Method + strings.TrimLeft(strings.TrimPrefix(r.URL.Path, "/api/v4/jobs/"), "0123456789")
	w.Header().Set("X-Gitlab-Trace-Update-Interval", "3")
	w.Header().Set("Job-Status", j.status)
	var update struct {
		Token    string `json:"token"`
		State    string `json:"state"`
		Checksum string `json:"checksum"`
	}
	_ = json.Unmarshal(body, &update)
	own := "glcbt-" + strconv.Itoa(j.id)
	switch {
	case call == "GET/artifacts" && r.Header.Get("Job-Token") == "glcbt-dependency":
		_, _ = w.Write(j.artifact)
	case r.Method == http.MethodPut && (r.Header.Get("Private-Token") != own || update.Token != own),
		r.Method != http.MethodPut && r.Header.Get("Job-Token") != own:
		w.WriteHeader(http.StatusForbidden)
	case call == "POST/artifacts":
		file, _, err := (&http.Request{
			Method: r.Method, Header: r.Header, Body: io.NopCloser(strings.NewReader(string(body))),
		}).FormFile("file")
		if err != nil || r.ContentLength >= 0 {
			w.WriteHeader(http.StatusBadRequest)
			break
		}
		j.artifact, _ = io.ReadAll(file)
		answer(w, http.StatusCreated, map[string]any{})
	case j.status == "failed" || r.Method == http.MethodPatch && j.status == "success":
		w.WriteHeader(http.StatusForbidden)
	case r.Method == http.MethodPatch:
		s.patch(w, r, j, body)
	case update.Checksum != fmt.Sprintf("crc32:%08x", crc32.ChecksumIEEE(j.trace)):
		j.trace = nil
		w.WriteHeader(http.StatusPreconditionFailed)
	default:
		j.status = map[bool]string{true: "canceled", false: update.State}[j.status == "canceling"]
		w.Header().Set("Job-Status", j.status)
		w.WriteHeader(http.StatusOK)
	}
	return call
}

func (s *server) patch(w http.ResponseWriter, r *http.Request, j *job, body []byte) {
	var start, end int
	_, err := fmt.Sscanf(r.Header.Get("Content-Range"), "%d-%d", &start, &end)
	status := http.StatusAccepted
	switch {
	case err != nil || end-start+1 != len(body):
		status = http.StatusBadRequest
	case start != len(j.trace):
		status = http.StatusRequestedRangeNotSatisfiable
	default:
		j.trace = append(j.trace, body...)
	}
	w.Header().Set("Range", fmt.Sprintf("0-%d", len(j.trace)))
	w.WriteHeader(status)
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	raw, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	_, _ = w.Write(raw)
}

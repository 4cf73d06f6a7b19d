package runnerclient_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/tools/testkit/leaktest"
	"lockstep.internal/tools/testkit/runnerclient"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// received is a request that the server has read.
type received struct {
	Call   string
	Header http.Header
	Query  string
	Body   []byte
	// JSON is the body, if it is an object.
	JSON map[string]any
}

// server answers as the servers in recorded exchanges do. It is no model of a real one: it believes everything.
type server struct {
	URL string

	mu       sync.Mutex
	requests []received
	// jobs that are given out, as JSON.
	jobs []string
	// replies are given instead of the usual answer, in order, to requests of that call.
	replies map[string][]reply
	traces  map[string][]byte
	states  map[string]string
	// status is the header Job-Status of each job.
	status    map[string]string
	artifacts map[string][]byte
}

// reply is an answer that a test prescribes.
type reply struct {
	status int
	header map[string]string
	body   string
	// before changes the server first.
	before func(*server)
	// usual gives the usual answer after before.
	usual bool
}

type fixture struct {
	*server

	client *runnerclient.Client
}

func newFixture(t *testing.T, change ...func(*runnerclient.Config)) *fixture {
	t.Helper()
	s := &server{
		replies: map[string][]reply{}, traces: map[string][]byte{}, states: map[string]string{},
		status: map[string]string{}, artifacts: map[string][]byte{},
	}
	listener := httptest.NewServer(s)
	t.Cleanup(listener.Close)
	s.URL = listener.URL
	cfg := runnerclient.Config{
		URL: listener.URL, Token: "glrt-one", SystemID: "s_1", MaxWait: 2 * time.Millisecond,
	}
	for _, c := range change {
		c(&cfg)
	}
	client := runnerclient.New(cfg)
	t.Cleanup(client.Close)
	return &fixture{s, client}
}

func before1711(cfg *runnerclient.Config) { cfg.Version = runnerclient.Before1711 }

// reply prescribes answers to requests of a call.
func (s *server) reply(call string, replies ...reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replies[call] = append(s.replies[call], replies...)
}

// received returns the requests of a call.
func (s *server) received(call string) []received {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []received
	for _, r := range s.requests {
		if r.Call == call {
			found = append(found, r)
		}
	}
	return found
}

// job returns a job with a script, as the client has it.
func (f *fixture) job(t *testing.T, more string) *runnerclient.Job {
	t.Helper()
	f.mu.Lock()
	id := 100 + len(f.jobs)
	f.jobs = append(f.jobs, fmt.Sprintf(
		`{"id":%d,"token":"glcbt-%d","job_info":{"name":"build"},"git_info":{"repo_url":""},
		"steps":[{"name":"script","script":["make"]},{"name":"after_script","script":["clean"],"when":"always"}],
		"features":{"failure_reasons":["script_failure","job_execution_timeout"]}%s}`, id, id, more,
	))
	f.mu.Unlock()
	job, err := f.client.RequestJob(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, id, job.ID)
	return job
}

// requireTrace requires that the server has the whole trace of the first job.
func (f *fixture) requireTrace(t *testing.T, result runnerclient.Result) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	require.Equal(t, string(result.Trace), string(f.traces["100"]))
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path, found := strings.CutPrefix(r.URL.Path, "/api/v4")
	if !found {
		http.NotFound(w, r)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	id, rest := "", ""
	if parts := strings.SplitN(path, "/", 4); len(parts) > 2 && parts[1] == "jobs" && parts[2] != "request" {
		id, path = parts[2], "/jobs/:id"
		if len(parts) > 3 {
			rest = "/" + parts[3]
		}
	}
	call := r.Method + " " + path + rest
	seen := received{Call: call, Header: r.Header, Query: r.URL.RawQuery, Body: body}
	_ = json.Unmarshal(body, &seen.JSON)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, seen)
	if waiting := s.replies[call]; len(waiting) > 0 {
		next := waiting[0]
		s.replies[call] = waiting[1:]
		if next.before != nil {
			next.before(s)
		}
		if !next.usual {
			for name, value := range next.header {
				w.Header().Set(name, value)
			}
			w.WriteHeader(next.status)
			_, _ = io.WriteString(w, next.body)
			return
		}
	}
	s.usual(w, r, call, id, seen)
}

func (s *server) usual(w http.ResponseWriter, r *http.Request, call, id string, seen received) {
	answer := func(status int, body string) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
	if id != "" {
		w.Header().Set("X-Gitlab-Trace-Update-Interval", "3")
		w.Header().Set("Job-Status", s.jobStatus(id))
	}
	switch call {
	case "POST /runners", "POST /runners/reset_authentication_token":
		answer(http.StatusCreated, `{"id":11,"token":"glrt-new","token_expires_at":null}`)
	case "POST /runners/verify":
		answer(http.StatusOK, `{"id":11,"token":"glrt-one","token_expires_at":"2030-01-02T03:04:05Z"}`)
	case "DELETE /runners", "DELETE /runners/managers":
		w.WriteHeader(http.StatusNoContent)
	case "POST /jobs/request":
		if len(s.jobs) == 0 || s.states[strconv.Itoa(99+len(s.jobs))] != "" {
			w.Header().Set("X-Gitlab-Last-Update", "one/i/7")
			w.WriteHeader(http.StatusNoContent)
			return
		}
		s.states[strconv.Itoa(99+len(s.jobs))] = "running"
		answer(http.StatusCreated, s.jobs[len(s.jobs)-1])
	case "PATCH /jobs/:id/trace":
		var start, end int
		_, err := fmt.Sscanf(r.Header.Get("Content-Range"), "%d-%d", &start, &end)
		status := http.StatusAccepted
		switch {
		case err != nil || end-start+1 != len(seen.Body):
			status = http.StatusBadRequest
		case start != len(s.traces[id]):
			status = http.StatusRequestedRangeNotSatisfiable
		default:
			s.traces[id] = append(s.traces[id], seen.Body...)
		}
		w.Header().Set("Range", fmt.Sprintf("0-%d", len(s.traces[id])))
		w.WriteHeader(status)
	case "PUT /jobs/:id":
		state, _ := seen.JSON["state"].(string)
		sum := fmt.Sprintf("crc32:%08x", crc32.ChecksumIEEE(s.traces[id]))
		if state != "running" && seen.JSON["checksum"] != sum {
			s.traces[id] = nil
			answer(http.StatusPreconditionFailed, `{}`)
			return
		}
		s.states[id] = state
		answer(http.StatusOK, `"200"`)
	case "POST /jobs/:id/artifacts":
		file, _, err := parse(seen).FormFile("file")
		if err != nil {
			answer(http.StatusBadRequest, `{"code":"invalid_argument","message":"no file"}`)
			return
		}
		s.artifacts[id], _ = io.ReadAll(file)
		answer(http.StatusCreated, `{"id":1}`)
	case "GET /jobs/:id/artifacts":
		_, _ = w.Write(s.artifacts[id])
	default:
		answer(http.StatusNotImplemented, `{}`)
	}
}

func (s *server) jobStatus(id string) string {
	if status := s.status[id]; status != "" {
		return status
	}
	return "running"
}

// parse returns a request whose body can be read again.
func parse(seen received) *http.Request {
	return &http.Request{
		Method: http.MethodPost, Header: seen.Header, Body: io.NopCloser(bytes.NewReader(seen.Body)),
	}
}

package runners_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"

	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	"lockstep.internal/tools/stack"
	"lockstep.internal/tools/testkit/runnerclient"
)

// lie is a request that a correct runner does not send.
type lie struct {
	method, path string
	header       map[string]string
	body         string
	status       int
	code         string
}

// TestLyingRunnerChangesNothing sends what a faulty or hostile runner might, and compares jobs before and after.
func TestLyingRunnerChangesNothing(t *testing.T) {
	t.Parallel()
	c := start(t, stack.Options{Router: true})
	client := c.client(c.RouterURL(), c.runner(untagged()), "s_1")
	stranger := c.client(c.RouterURL(), c.runner(untagged()), "s_2")

	p := c.pipeline(c.project, "work: {script: [make], parallel: 3, artifacts: {paths: [out/]}}\n")
	own, ended, other := c.take(client), c.take(client), c.take(stranger)
	const text = "the output of the job\n"
	for _, j := range []*runnerclient.Job{own, ended, other} {
		answer, err := client.PatchTrace(t.Context(), j, 0, []byte(text))
		require.NoError(t, err)
		require.Equal(t, http.StatusAccepted, answer.Status)
	}
	answer, err := client.UpdateJob(t.Context(), ended, runnerclient.Update{State: "success", Trace: []byte(text)})
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, answer.Status)

	jobs := []int64{own.ID, ended.ID, other.ID}
	before := c.snapshot(jobs...)
	for name, l := range lies(client.Token(), own, ended, other) {
		for _, url := range []string{c.RouterURL(), c.RunnersURL()} {
			status, body := l.send(t, url)
			require.Equal(t, l.status, status, "%s: %s", name, body)
			var answer struct {
				Code    string `json:"code"`
				Message string `json:"message"`
			}
			require.NoError(t, json.Unmarshal(body, &answer), "%s: %d: %s", name, status, body)
			require.Equal(t, l.code, answer.Code, "%s: %s", name, body)
			require.NotEmpty(t, answer.Message, name)
			require.Equal(t, before, c.snapshot(jobs...), name)
		}
	}

	// The last token of an ended job may repeat its update. The answer is the result that is stored.
	answer, err = client.UpdateJob(t.Context(), ended,
		runnerclient.Update{State: "failed", FailureReason: "script_failure", ExitCode: 1, Trace: []byte(text)})
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, answer.Status)
	require.Equal(t, "success", answer.JobStatus)
	// The checksum is of another output: the runner has to send its output again. Less of it replaces nothing.
	changed := runnerclient.Update{State: "success", Trace: []byte("other output\n")}
	answer, err = client.UpdateJob(t.Context(), own, changed)
	require.NoError(t, err)
	require.Equal(t, http.StatusPreconditionFailed, answer.Status)
	require.Equal(t, before, c.snapshot(jobs...))
	answer, err = client.PatchTrace(t.Context(), own, 0, []byte(text[:3]))
	require.NoError(t, err)
	require.Equal(t, http.StatusAccepted, answer.Status)
	require.Equal(t, before, c.snapshot(jobs...))

	// A runner whose job is canceled cannot make it a success.
	_, err = c.api.Jobs.CancelJob(t.Context(), connect.NewRequest(&runnersv1.CancelJobRequest{Id: own.ID}))
	require.NoError(t, err)
	answer, err = client.PatchTrace(t.Context(), own, 3, []byte(text[3:]))
	require.NoError(t, err)
	require.Equal(t, http.StatusAccepted, answer.Status)
	require.Equal(t, "canceling", answer.JobStatus)
	answer, err = client.UpdateJob(t.Context(), own, runnerclient.Update{State: "success", Trace: []byte(text)})
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, answer.Status)
	require.Equal(t, runnersv1.JobState_JOB_STATE_CANCELED, c.job(own.ID).GetState())

	// The jobs are as usable as before.
	answer, err = stranger.UpdateJob(t.Context(), other, runnerclient.Update{State: "success", Trace: []byte(text)})
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, answer.Status)
	require.Equal(t, runnersv1.PipelineState_PIPELINE_STATE_CANCELED, c.ended(p.GetId()).GetState())
	for _, id := range jobs {
		require.Equal(t, text, c.trace(id))
		require.True(t, c.job(id).GetTraceVerified())
	}
}

func lies(runner string, own, ended, other *runnerclient.Job) map[string]lie {
	const denied, invalid = "permission_denied", "invalid_argument"
	jobPath := func(j *runnerclient.Job, rest string) string { return "/jobs/" + strconv.FormatInt(j.ID, 10) + rest }
	as := func(j *runnerclient.Job, more ...string) map[string]string {
		header := map[string]string{"Job-Token": j.Token, "Content-Type": "application/json"}
		for i := 0; i < len(more); i += 2 {
			header[more[i]] = more[i+1]
		}
		return header
	}
	success := func(j *runnerclient.Job) string { return fmt.Sprintf(`{"token":%q,"state":"success"}`, j.Token) }
	const form = "multipart/form-data; boundary=b"
	file := "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"artifacts.zip\"\r\n\r\n%s\r\n--b--\r\n"
	return map[string]lie{
		"update with another job's token": {
			http.MethodPut, jobPath(own, ""), as(other), success(other), http.StatusForbidden, denied,
		},
		"trace with another job's token": {
			http.MethodPatch, jobPath(own, "/trace"), as(other, "Content-Range", "22-24"), "abc", http.StatusForbidden, denied,
		},
		"artifacts with another job's token": {
			http.MethodPost, jobPath(own, "/artifacts"), as(other, "Content-Type", form), fmt.Sprintf(file, "PK"),
			http.StatusForbidden, denied,
		},
		"shorter trace": {
			http.MethodPatch, jobPath(own, "/trace"), as(own, "Content-Range", "0-2"), "abc",
			http.StatusRequestedRangeNotSatisfiable, "failed_precondition",
		},
		"trace with a gap": {
			http.MethodPatch, jobPath(own, "/trace"), as(own, "Content-Range", "1000-1002"), "abc",
			http.StatusRequestedRangeNotSatisfiable, "failed_precondition",
		},
		"empty artifacts": {
			http.MethodPost, jobPath(own, "/artifacts?artifact_format=zip&artifact_type=archive"),
			as(own, "Content-Type", form), fmt.Sprintf(file, ""), http.StatusBadRequest, invalid,
		},
		"artifacts that are no archive": {
			http.MethodPost, jobPath(own, "/artifacts?artifact_format=zip&artifact_type=archive"),
			as(own, "Content-Type", form), fmt.Sprintf(file, "not a zip archive"), http.StatusBadRequest, invalid,
		},
		"trace of an ended job": {
			http.MethodPatch, jobPath(ended, "/trace"), as(ended, "Content-Range", "22-24"), "abc", http.StatusForbidden,
			denied,
		},
		"artifacts of an ended job": {
			http.MethodPost, jobPath(ended, "/artifacts"), as(ended, "Content-Type", form), fmt.Sprintf(file, "PK"),
			http.StatusForbidden, denied,
		},
		"unknown state": {
			http.MethodPut, jobPath(own, ""), as(own), fmt.Sprintf(`{"token":%q,"state":"pending"}`, own.Token),
			http.StatusBadRequest, invalid,
		},
		"large request for a job": {
			http.MethodPost, "/jobs/request",
			map[string]string{"Runner-Token": runner},
			`{"token":"` + strings.Repeat("x", 33<<10) + `"}`,
			http.StatusRequestEntityTooLarge, "payload_too_large",
		},
		"malformed request for a job": {
			http.MethodPost, "/jobs/request",
			map[string]string{"Runner-Token": runner},
			`{"token":`, http.StatusBadRequest,
			invalid,
		},
		"malformed update": {
			http.MethodPut, jobPath(own, ""), as(own), `{"state":`, http.StatusBadRequest, invalid,
		},
		"unknown token": {
			http.MethodPost, "/jobs/request",
			map[string]string{"Runner-Token": "glrt-unknown"},
			`{"token":"glrt-unknown"}`,
			http.StatusForbidden, denied,
		},
	}
}

// send returns the status and the body.
func (l lie) send(t testing.TB, url string) (int, []byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, l.method, url+"/api/v4"+l.path, bytes.NewReader([]byte(l.body)))
	require.NoError(t, err)
	request.Header.Set("Content-Type", "application/json")
	for name, value := range l.header {
		request.Header.Set(name, value)
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport}).Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	raw, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, raw
}

// snapshot returns all that people see of jobs.
func (c *cell) snapshot(jobs ...int64) []string {
	c.t.Helper()
	var all []string
	for _, id := range jobs {
		all = append(all, protojson.MarshalOptions{}.Format(c.job(id)), c.trace(id))
	}
	return all
}

package gitlab_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/gitlab"
	"lockstep.internal/services/runners/wire"
	"lockstep.internal/tools/testkit/runnerclient"
	"lockstep.internal/tools/testkit/runnerreplay"
)

// TestRecordedRunnerIsServed replays the requests of an unmodified runner.
func TestRecordedRunnerIsServed(t *testing.T) {
	t.Parallel()
	for name, token := range map[string]string{"with registration": registration, "without": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.off = token == ""
			runnerreplay.Replay(t, runnerreplay.Target{
				URL: f.url, RunnerToken: "glrt-one", RegistrationToken: token,
				Offer: f.offer, Cancel: f.end(wire.StatusCanceling), End: f.end(wire.StatusFailed),
			})
		})
	}
}

func TestRunnerOfEachVersionIsServed(t *testing.T) {
	t.Parallel()
	for _, version := range []runnerclient.Version{runnerclient.Since1711, runnerclient.Before1711} {
		t.Run(fmt.Sprint(version), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			client := f.client(t, func(cfg *runnerclient.Config) { cfg.Version, cfg.Unmasked = version, true })
			_, err := client.Register(t.Context(), runnerclient.Registration{Token: registration, TagList: "a,b"})
			require.NoError(t, err)
			runner, err := client.Verify(t.Context())
			require.NoError(t, err)
			require.EqualValues(t, 7, runner.ID)
			require.Equal(t, "s_1", f.runners["glrt-registered"])
			has, err := client.Discover(t.Context())
			require.NoError(t, err)
			require.False(t, has)

			f.askAgain = 2
			files := map[string][]byte{"out/a.txt": []byte("data"), "b": bytes.Repeat([]byte("x"), 200<<10)}
			build := f.running(t, client, runnerreplay.Job{
				Name: "build", Script: []string{"make"}, AfterScript: []string{"clean"}, ArtifactPaths: []string{"out/"},
				Masked: map[string]string{"SECRET": "sup3rs3cret"},
			})
			require.Equal(t, "one/i/8", client.LastUpdate())
			result, err := client.Execute(t.Context(), build, runnerclient.Script{
				Lines: []string{"value sup3rs3cret"}, After: []string{"after"}, Files: files,
			})
			require.NoError(t, err)
			require.Equal(t, "success", result.JobStatus)
			require.Contains(t, string(f.jobs[build.ID].stored), "value ***********\nafter")
			require.Equal(t, "default.zip", f.jobs[build.ID].upload.Filename)

			test := f.running(t, client, runnerreplay.Job{Name: "test", Script: []string{"x"}, Dependencies: []string{"build"}})
			result, err = client.Execute(t.Context(), test, runnerclient.Script{ExitCode: 3})
			require.NoError(t, err)
			require.Equal(t, "failed", result.JobStatus)
			got, err := runnerclient.Unzip(result.Dependencies["build"])
			require.NoError(t, err)
			require.Equal(t, files, got)

			canceled := f.running(t, client, runnerreplay.Job{Name: "canceled", Script: []string{"x"}})
			require.NoError(t, f.end(wire.StatusCanceling)(t.Context(), canceled.ID))
			result, err = client.Execute(t.Context(), canceled, runnerclient.Script{Wait: make(chan struct{})})
			require.NoError(t, err)
			require.True(t, result.Canceling)
			require.Equal(t, "canceled", result.JobStatus)

			old := client.Token()
			_, err = client.ResetToken(t.Context())
			require.NoError(t, err)
			_, err = client.Verify(t.Context())
			require.NoError(t, err)
			response, _ := f.exchange(t, http.MethodPost, "/runners/verify", nil, `{"token":"`+old+`"}`)
			require.Equal(t, http.StatusForbidden, response.StatusCode)
			require.NoError(t, client.UnregisterManager(t.Context()))
			require.NoError(t, client.Unregister(t.Context()))
			_, err = client.Verify(t.Context())
			require.Equal(t, http.StatusForbidden, runnerclient.StatusOf(err))
		})
	}
}

// TestTraceOverTheLimitEndsTheJob is about a runner that sends more than the limit.
func TestTraceOverTheLimitEndsTheJob(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	client := f.client(t)
	j := f.running(t, client, runnerreplay.Job{Name: "loud", Script: []string{"x"}})
	result, err := client.Execute(t.Context(), j, runnerclient.Script{Lines: []string{strings.Repeat("x", traceLimit)}})
	require.NoError(t, err)
	require.True(t, result.Aborted)
	require.LessOrEqual(t, len(f.jobs[j.ID].stored), traceLimit)
}

func TestDeleteWithoutBody(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	response, _ := f.exchange(t, http.MethodDelete, "/runners?token=glrt-one", nil, "")
	require.Equal(t, http.StatusNoContent, response.StatusCode)
	require.Empty(t, f.runners)
	response, _ = f.exchange(t, http.MethodDelete, "/runners", map[string]string{"RUNNER-TOKEN": "glrt-one"}, "")
	require.Equal(t, http.StatusForbidden, response.StatusCode)
	response, _ = f.exchange(t, http.MethodDelete, "/runners/managers?system_id=%00&token=t", nil, "")
	require.Equal(t, http.StatusBadRequest, response.StatusCode)
}

func TestUserCreatesRunner(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	user := map[string]string{"PRIVATE-TOKEN": "lsp_user"}
	response, body := f.exchange(t, http.MethodPost, "/user/runners", user, `{"runner_type":"instance_type"}`)
	require.Equal(t, http.StatusCreated, response.StatusCode)
	require.JSONEq(t, `{"id":9,"token":"glrt-instance_type","token_expires_at":"2030-01-01T00:00:00Z"}`, body)
	response, _ = f.exchange(t, http.MethodPost, "/user/runners", user, `{"runner_type":"x"}`)
	require.Equal(t, http.StatusBadRequest, response.StatusCode)
	response, _ = f.exchange(t, http.MethodPost, "/user/runners", nil, `{"runner_type":"instance_type"}`)
	require.Equal(t, http.StatusForbidden, response.StatusCode)
	user["PRIVATE-TOKEN"] = "other"
	response, body = f.exchange(t, http.MethodPost, "/user/runners", user, `{"runner_type":"instance_type"}`)
	require.Equal(t, http.StatusForbidden, response.StatusCode)
	require.Contains(t, body, `"code":"unauthenticated"`)
}

func TestWaitingRequestIsWokenByJob(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(cfg *gitlab.Config) { cfg.Hold = time.Minute })
	client := f.client(t)
	given := make(chan *runnerclient.Job, 1)
	go func() {
		j, err := client.RequestJob(t.Context())
		if err != nil {
			t.Error(err)
		}
		given <- j
	}()
	<-f.waiting
	require.NoError(t, f.offer(t.Context(), runnerreplay.Job{Name: "late", Script: []string{"x"}}))
	require.Equal(t, "late", (<-given).JobInfo.Name)
}

func TestWaitingRequestEndsWithTheDrain(t *testing.T) {
	t.Parallel()
	draining := make(chan struct{})
	f := newFixture(t, func(cfg *gitlab.Config) { cfg.Hold, cfg.Draining = time.Minute, draining })
	client := f.client(t)
	ended := make(chan error, 1)
	go func() {
		_, err := client.RequestJob(t.Context())
		ended <- err
	}()
	<-f.waiting
	close(draining)
	require.NoError(t, <-ended)
	require.Equal(t, "one/i/7", client.LastUpdate())
}

func TestWaitingRequestEndsWithItsConnection(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(cfg *gitlab.Config) { cfg.Hold, cfg.Draining = time.Minute, make(chan struct{}) })
	ctx, cancel := context.WithCancel(t.Context())
	client := f.client(t)
	ended := make(chan error, 1)
	go func() {
		_, err := client.RequestJob(ctx)
		ended <- err
	}()
	<-f.waiting
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	// The fixture's server closes only when its requests have ended.
}

// TestFailuresKeepTheirMeaning is about failures behind the handler.
func TestFailuresKeepTheirMeaning(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		err    error
		status int
	}{
		"conflict":        {fault.New(errcode.Conflict, "another runner was faster"), http.StatusConflict},
		"unavailable":     {fault.New(errcode.Unavailable, "the database is away"), http.StatusServiceUnavailable},
		"too many":        {fault.New(errcode.ResourceExhausted, "too many managers"), http.StatusTooManyRequests},
		"unauthenticated": {fault.New(errcode.Unauthenticated, "the token has expired"), http.StatusForbidden},
		"internal":        {errors.New("sesame"), http.StatusInternalServerError},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			for _, call := range []struct{ method, path, body string }{
				{http.MethodPost, "/jobs/request", `{"token":"glrt-one"}`},
				{http.MethodPost, "/runners/verify", `{"token":"glrt-one"}`},
				{http.MethodPost, "/runners/reset_authentication_token", `{"token":"glrt-one"}`},
				{http.MethodDelete, "/runners", `{"token":"glrt-one"}`},
				{http.MethodPut, "/jobs/7", `{"token":"t","state":"running"}`},
				{http.MethodGet, "/jobs/7/artifacts", ``},
			} {
				f.memory.mu.Lock()
				f.fail = test.err
				f.memory.mu.Unlock()
				response, body := f.exchange(t, call.method, call.path, map[string]string{"JOB-TOKEN": "t"}, call.body)
				require.Equal(t, test.status, response.StatusCode, call.path)
				require.NotContains(t, body, "sesame")
			}
		})
	}
}

func TestArtifactsMayBeElsewhere(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	client := f.client(t)
	j := f.running(t, client, runnerreplay.Job{Name: "build", Script: []string{"x"}, ArtifactPaths: []string{"out/"}})
	require.NoError(t, client.UploadArtifact(t.Context(), j, runnerclient.Upload{
		Filename: "../a.zip", Open: func() io.Reader { return strings.NewReader("content") },
	}))
	upload := f.jobs[j.ID].upload
	require.Equal(t, gitlab.Upload{Filename: "a.zip", Type: "archive", Format: "zip"}, upload)
	f.location = "https://store.example.com/a?signature=1"
	path := fmt.Sprintf("/jobs/%d/artifacts", j.ID)
	token := map[string]string{"JOB-TOKEN": j.Token}
	response, _ := f.exchange(t, http.MethodGet, path+"?direct_download=true", token, "")
	require.Equal(t, http.StatusFound, response.StatusCode)
	require.Equal(t, f.location, response.Header.Get("Location"))
	response, body := f.exchange(t, http.MethodGet, path, token, "")
	require.Equal(t, http.StatusOK, response.StatusCode)
	require.Equal(t, "content", body)
	require.Equal(t, `attachment; filename=a.zip`, response.Header.Get("Content-Disposition"))
}

// TestBrokenDownloadIsNoticed is about a store that fails after the headers were sent.
func TestBrokenDownloadIsNoticed(t *testing.T) {
	t.Parallel()
	m := newMemory()
	m.broken = true
	m.jobs[1] = &job{id: 1, artifact: make([]byte, 100<<10)}
	server := httptest.NewServer(gitlab.NewHandler(gitlab.Config{
		Runners: m, Queue: m, Jobs: m, Artifacts: m, Logger: slog.New(slog.DiscardHandler),
	}))
	defer server.Close()
	client := runnerclient.New(runnerclient.Config{URL: server.URL})
	defer client.Close()
	body, err := client.DownloadArtifact(t.Context(), runnerclient.Dependency{ID: 1, Token: "t"})
	require.NoError(t, err)
	_, err = io.ReadAll(body)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.NoError(t, body.Close())
}

// TestIncompleteArtifactIsNotStored cuts the connection in the middle of an upload.
func TestIncompleteArtifactIsNotStored(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	j := f.running(t, f.client(t), runnerreplay.Job{Name: "build", Script: []string{"x"}})
	before := f.snapshot()
	var dialer net.Dialer
	conn, err := dialer.DialContext(t.Context(), "tcp", strings.TrimPrefix(f.url, "http://"))
	require.NoError(t, err)
	part := "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.zip\"\r\n\r\nhalf of it"
	_, err = fmt.Fprintf(conn, "POST /api/v4/jobs/%d/artifacts HTTP/1.1\r\nHost: x\r\nJOB-TOKEN: %s\r\n"+
		"Content-Type: multipart/form-data; boundary=b\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n",
		j.ID, j.Token, len(part), part)
	require.NoError(t, err)
	require.NoError(t, conn.(*net.TCPConn).CloseWrite())
	answer, err := io.ReadAll(conn)
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	require.Contains(t, string(answer), "400 Bad Request")
	require.Contains(t, string(answer), "the artifact is not complete: send it again")
	require.Equal(t, before, f.snapshot())
}

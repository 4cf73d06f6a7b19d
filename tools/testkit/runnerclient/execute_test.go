package runnerclient_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/tools/testkit/runnerclient"
)

func TestTraceIsMaskedAndReportedWithItsChecksum(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	job := f.job(t, `,"variables":[{"key":"S","value":"sup3rs3cret","masked":true},{"key":"P","value":"plain"}]`)
	result, err := f.client.Execute(t.Context(), job, runnerclient.Script{
		Lines: []string{"a sup3rs3cret b", "plain", "sup3rs3", "cret"}, After: []string{"after script"},
	})
	require.NoError(t, err)
	require.Equal(t, "success", result.State)
	require.Equal(t, http.StatusOK, result.Status)
	require.Contains(t, string(result.Trace), "a [MASKED] b\nplain\nsup3rs3\ncret\nafter script\n")
	f.requireTrace(t, result)
	updates := f.received("PUT /jobs/:id")
	require.Equal(t, "running", updates[0].JSON["state"])
	require.Equal(t, "success", updates[len(updates)-1].JSON["state"])

	// The client may also lie, to test the server.
	g := newFixture(t, func(cfg *runnerclient.Config) { cfg.Unmasked = true })
	result, err = g.client.Execute(t.Context(),
		g.job(t, `,"variables":[{"key":"S","value":"sup3rs3cret","masked":true}]`),
		runnerclient.Script{Lines: []string{"a sup3rs3cret b"}})
	require.NoError(t, err)
	require.Contains(t, string(result.Trace), "sup3rs3cret")
}

func TestTraceIsSentWhileTheJobRuns(t *testing.T) {
	t.Parallel()
	f := newFixture(t, before1711)
	job := f.job(t, "")
	release := make(chan struct{})
	f.reply("PATCH /jobs/:id/trace", reply{usual: true}, reply{usual: true, before: func(*server) { close(release) }})
	second := make(chan struct{}) // closed when the job is reported as running, which happens without new output
	f.reply("PUT /jobs/:id", reply{usual: true, before: func(*server) { close(second) }})
	result, err := f.client.Execute(t.Context(), job, runnerclient.Script{
		Lines: []string{"first"}, Wait: second, Rest: []string{"second"},
	})
	require.NoError(t, err)
	<-release
	f.requireTrace(t, result)
	patches := f.received("PATCH /jobs/:id/trace")
	require.GreaterOrEqual(t, len(patches), 2)
	require.True(t, strings.HasPrefix(patches[0].Header.Get("Content-Range"), "0-"))
	require.NotContains(t, string(patches[0].Body), "second")
	require.Equal(t, "running", f.received("PUT /jobs/:id")[0].JSON["state"])
}

func TestTraceContinuesAfter416(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	job := f.job(t, "")
	lost := make(chan struct{})
	f.reply("PATCH /jobs/:id/trace", reply{usual: true}, reply{usual: true, before: func(s *server) {
		s.traces["100"] = s.traces["100"][:10] // the server has lost the rest
	}})
	f.reply("PUT /jobs/:id", reply{usual: true}, reply{usual: true, before: func(*server) { close(lost) }})
	result, err := f.client.Execute(t.Context(), job, runnerclient.Script{
		Lines: []string{"first"}, Wait: lost, Rest: []string{"second"},
	})
	require.NoError(t, err)
	require.Equal(t, 1, result.Resumed)
	f.requireTrace(t, result)
	patches := f.received("PATCH /jobs/:id/trace")
	require.True(t, strings.HasPrefix(patches[2].Header.Get("Content-Range"), "10-"))
}

func TestTraceIsSentAgainAfter412(t *testing.T) {
	t.Parallel()
	f := newFixture(t, before1711)
	job := f.job(t, "")
	f.reply("PUT /jobs/:id", reply{usual: true, before: func(s *server) { s.traces["100"][0]++ }})
	result, err := f.client.Execute(t.Context(), job, runnerclient.Script{Lines: []string{"x"}, ExitCode: 7})
	require.NoError(t, err)
	require.Equal(t, 1, result.Resent)
	require.Equal(t, http.StatusOK, result.Status)
	f.requireTrace(t, result)
	final := f.received("PUT /jobs/:id")[1].JSON
	require.Equal(t, "failed", final["state"])
	require.Equal(t, "script_failure", final["failure_reason"])
	require.EqualValues(t, 7, final["exit_code"])
	require.EqualValues(t, len(result.Trace), final["output"].(map[string]any)["bytesize"])
}

func TestReportIsRepeatedUntilTheServerHasIt(t *testing.T) {
	t.Parallel()
	f := newFixture(t, before1711)
	job := f.job(t, "")
	f.reply("PATCH /jobs/:id/trace", reply{status: http.StatusBadGateway})
	f.reply("PUT /jobs/:id", reply{status: http.StatusAccepted}, reply{status: http.StatusServiceUnavailable})
	result, err := f.client.Execute(t.Context(), job, runnerclient.Script{Lines: []string{"x"}})
	require.NoError(t, err)
	require.Equal(t, 2, result.Failures)
	require.Equal(t, http.StatusOK, result.Status)
	require.Len(t, f.received("PUT /jobs/:id"), 3)
	f.requireTrace(t, result)
}

func TestExecuteEndsWithItsContext(t *testing.T) {
	t.Parallel()
	f := newFixture(t, before1711)
	job := f.job(t, "")
	ctx, cancel := context.WithCancel(t.Context())
	f.reply("PATCH /jobs/:id/trace", reply{usual: true, before: func(*server) { cancel() }})
	_, err := f.client.Execute(ctx, job, runnerclient.Script{Lines: []string{"x"}, Wait: make(chan struct{})})
	require.ErrorIs(t, err, context.Canceled)
	require.Empty(t, f.received("PUT /jobs/:id"))
}

// TestCancelingRunsAfterScript is about a user who cancels the job.
func TestCancelingRunsAfterScript(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	job := f.job(t, "")
	f.reply("PATCH /jobs/:id/trace", reply{usual: true, before: func(s *server) { s.status["100"] = "canceling" }})
	result, err := f.client.Execute(t.Context(), job, runnerclient.Script{
		Lines: []string{"x"}, Wait: make(chan struct{}), Rest: []string{"never"}, After: []string{"after script"},
	})
	require.NoError(t, err)
	require.True(t, result.Canceling)
	require.False(t, result.Aborted)
	require.Equal(t, "failed", result.State)
	require.Equal(t, "unknown_failure", result.FailureReason)
	require.Contains(t, string(result.Trace), "after script")
	require.NotContains(t, string(result.Trace), "never")
	f.requireTrace(t, result)
}

func TestEndedJobIsAborted(t *testing.T) {
	t.Parallel()
	for name, answers := range map[string]reply{
		"403":      {status: http.StatusForbidden, header: map[string]string{"Job-Status": "canceled"}},
		"canceled": {usual: true, before: func(s *server) { s.status["100"] = "canceled" }},
		"failed":   {usual: true, before: func(s *server) { s.status["100"] = "failed" }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			job := f.job(t, "")
			f.reply("PATCH /jobs/:id/trace", answers)
			result, err := f.client.Execute(t.Context(), job, runnerclient.Script{
				Lines: []string{"x"}, Wait: make(chan struct{}), After: []string{"after script"},
			})
			require.NoError(t, err)
			require.True(t, result.Aborted)
			require.NotContains(t, string(result.Trace), "after script")
			require.Equal(t, "failed", result.State)
		})
	}
}

func TestJobEndsAtItsTimeout(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	started := time.Now()
	result, err := f.client.Execute(t.Context(), f.job(t, `,"runner_info":{"timeout":1}`), runnerclient.Script{
		Wait: make(chan struct{}),
	})
	require.NoError(t, err)
	require.GreaterOrEqual(t, time.Since(started), time.Second)
	require.Equal(t, "job_execution_timeout", result.FailureReason)
}

func TestReasonThatTheServerDoesNotKnowIsUnknown(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	result, err := f.client.Execute(t.Context(),
		f.job(t, `,"features":{"failure_reasons":[]}`), runnerclient.Script{ExitCode: 1})
	require.NoError(t, err)
	require.Equal(t, "unknown_failure", result.FailureReason)
}

func TestArtifactsArePassedOn(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	job := f.job(t, `,"artifacts":[{"name":"default","artifact_type":"archive","artifact_format":"zip","expire_in":"1 week"},
		{"name":"logs","when":"on_failure"}]`)
	files := map[string][]byte{"out/a.txt": []byte("data\n"), "b": make([]byte, 300<<10)}
	f.reply("POST /jobs/:id/artifacts", reply{status: http.StatusServiceUnavailable})
	_, err := f.client.Execute(t.Context(), job, runnerclient.Script{Files: files})
	require.NoError(t, err)
	uploads := f.received("POST /jobs/:id/artifacts")
	require.Len(t, uploads, 2) // the second is the repetition
	require.Equal(t, "artifact_format=zip&artifact_type=archive&expire_in=1+week", uploads[1].Query)
	require.Equal(t, "glcbt-100", uploads[1].Header.Get("Job-Token"))

	job = f.job(t, `,"dependencies":[{"id":100,"token":"glcbt-other","name":"build","artifacts_file":{"filename":"default.zip"}},
		{"id":98,"token":"x","name":"without artifacts"}]`)
	result, err := f.client.Execute(t.Context(), job, runnerclient.Script{})
	require.NoError(t, err)
	got, err := runnerclient.Unzip(result.Dependencies["build"])
	require.NoError(t, err)
	require.Equal(t, files, got)
	downloads := f.received("GET /jobs/:id/artifacts")
	require.Len(t, downloads, 1)
	require.Equal(t, "glcbt-other", downloads[0].Header.Get("Job-Token"))
}

func TestRefusedArtifactFailsTheJob(t *testing.T) {
	t.Parallel()
	for _, call := range []string{"POST /jobs/:id/artifacts", "GET /jobs/:id/artifacts"} {
		f := newFixture(t)
		job := f.job(t, `,"artifacts":[{}],"dependencies":[{"id":9,"token":"t","artifacts_file":{"filename":"a.zip"}}]`)
		f.reply(call, reply{
			status: http.StatusRequestEntityTooLarge, body: `{"code":"payload_too_large","message":"the artifact is too large"}`,
		})
		result, err := f.client.Execute(t.Context(), job, runnerclient.Script{Files: map[string][]byte{"a": nil}})
		require.NoError(t, err)
		require.Equal(t, "script_failure", result.FailureReason, call)
		require.Contains(t, string(result.Trace), "413 payload_too_large: the artifact is too large")
		require.Len(t, f.received(call), 1)
	}
}

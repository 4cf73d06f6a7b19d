package execution_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/runners/gitlab"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/wire"
	"lockstep.internal/tools/testkit/runnerclient"
)

// absent is the parts of the contract that these tests do not need.
type absent struct{ gitlab.Runners }

func (absent) Request(context.Context, wire.JobRequest) (*wire.Job, string, error) {
	return nil, "", errors.New("there is no queue")
}

// server sends the requests of a runner to two replicas in turn. One of drop requests is handled, and its answer lost.
func (f *fixture) server(s *storage, drop int64) string {
	f.t.Helper()
	handlers := make([]http.Handler, 2)
	for i, r := range []*replica{f.first, f.replica()} {
		handlers[i] = gitlab.NewHandler(gitlab.Config{
			Runners: absent{}, Queue: absent{}, Jobs: r.Jobs, Artifacts: s.serve(r.Jobs), Logger: slog.New(slog.DiscardHandler),
		})
	}
	var requests atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := requests.Add(1)
		if drop > 0 && n%drop == 0 && !strings.HasSuffix(r.URL.Path, "/artifacts") {
			handlers[n%2].ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		}
		handlers[n%2].ServeHTTP(w, r)
	}))
	f.t.Cleanup(server.Close)
	return server.URL
}

func (f *fixture) runner(url string, change ...func(*runnerclient.Config)) *runnerclient.Client {
	f.t.Helper()
	cfg := runnerclient.Config{URL: url, Token: "glrt-one", MaxWait: 2 * time.Millisecond}
	for _, c := range change {
		c(&cfg)
	}
	client := runnerclient.New(cfg)
	f.t.Cleanup(client.Close)
	return client
}

// given returns the job as its runner has it.
func given(ref gitlab.JobRef, needs ...int64) *runnerclient.Job {
	j := &runnerclient.Job{ID: ref.ID, Token: ref.Token}
	j.Steps = []runnerclient.Step{{Name: "script"}, {Name: "after_script"}}
	j.Artifacts = []runnerclient.Artifact{{Name: "out", When: "always", Type: "archive", Format: "zip"}}
	j.Features.FailureReasons = []string{"script_failure"}
	for _, id := range needs {
		d := runnerclient.Dependency{ID: id, Token: ref.Token, Name: "build"}
		d.ArtifactsFile.Filename = "out.zip"
		j.Dependencies = append(j.Dependencies, d)
	}
	return j
}

func TestRunnerExecutesJobsOnTwoReplicas(t *testing.T) {
	t.Parallel()
	for name, version := range map[string]runnerclient.Version{
		"since 17.11": runnerclient.Since1711, "before": runnerclient.Before1711,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			s := f.storage()
			client := f.runner(f.server(s, 3), func(cfg *runnerclient.Config) {
				cfg.Version, cfg.Unmasked = version, true
			})
			result, err := client.Execute(t.Context(), given(f.running(7)), runnerclient.Script{
				Lines: []string{"password swordfish"}, Files: map[string][]byte{"a": []byte("data")},
			})
			require.NoError(t, err)
			require.Equal(t, "success", result.JobStatus)
			require.Equal(t, job.Success, f.job(7).State)
			require.Equal(t, strings.Replace(string(result.Trace), "swordfish", "*********", 1), f.trace(7))

			result, err = client.Execute(t.Context(), given(f.running(8, 7), 7), runnerclient.Script{ExitCode: 3})
			require.NoError(t, err)
			require.Equal(t, "failed", result.JobStatus)
			files, err := runnerclient.Unzip(result.Dependencies["build"])
			require.NoError(t, err)
			require.Equal(t, map[string][]byte{"a": []byte("data")}, files)
			require.Equal(t, job.ScriptFailure, f.job(8).Reason)
			require.Equal(t, 3, f.job(8).ExitCode)
			require.Equal(t, map[int64]job.State{7: job.Success, 8: job.Failed}, f.followers.states())
		})
	}
}

func TestCanceledRunnerRunsAfterScriptAndTheJobIsCanceled(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	client := f.runner(f.server(f.storage(), 0))
	ref := f.running(7)
	f.cancel(7)
	result, err := client.Execute(t.Context(), given(ref), runnerclient.Script{
		Wait: make(chan struct{}), After: []string{"cleaned up"},
	})
	require.NoError(t, err)
	require.True(t, result.Canceling)
	require.Equal(t, "canceled", result.JobStatus)
	require.Equal(t, job.Canceled, f.job(7).State)
	require.Contains(t, f.trace(7), "cleaned up")
}

func TestRunnerOfAReleasedJobIsAborted(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	client := f.runner(f.server(f.storage(), 0))
	late := f.running(7)
	f.clock.pass(2 * time.Minute)
	require.NoError(t, f.maintenance().Once(t.Context()))
	second := f.take(7)
	result, err := client.Execute(t.Context(), given(late), runnerclient.Script{Wait: make(chan struct{})})
	require.NoError(t, err)
	require.True(t, result.Aborted)
	require.Equal(t, http.StatusForbidden, result.Status)
	result, err = client.Execute(t.Context(), given(second), runnerclient.Script{Lines: []string{"hello"}})
	require.NoError(t, err)
	require.Equal(t, "success", result.JobStatus)
	require.NotContains(t, f.trace(7), "ERROR")
}

package gitlab_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/routable"
	"lockstep.internal/services/runners/gitlab"
	"lockstep.internal/services/runners/trace"
	"lockstep.internal/services/runners/wire"
	"lockstep.internal/tools/testkit/runnerclient"
	"lockstep.internal/tools/testkit/runnerprogram"
	"lockstep.internal/tools/testkit/runnerreplay"
)

// TestRealRunnerIsServed lets the gitlab-runner program execute jobs. It takes a minute, since the program reports jobs
// without new output every 30 s only.
func TestRealRunnerIsServed(t *testing.T) {
	t.Parallel()
	program := runnerprogram.Find(t)
	f := newFixture(t, func(cfg *gitlab.Config) { cfg.Hold = time.Second })
	f.traceLimit, f.uploadLimit = 64<<10, 64<<20
	token, err := routable.New(routable.Runner, routable.Payload{Cell: "one"})
	require.NoError(t, err)
	delete(f.runners, "glrt-one")
	f.runners[token] = ""
	program.Register(t, f.url, token, 4)
	program.Verify(t)
	program.Start(t)

	build := f.run(t, runnerreplay.Job{
		Name: "build",
		Script: []string{
			"echo value $SECRET", "mkdir out", "head -c 20971520 /dev/urandom > out/large", "echo data > out/a.txt",
		},
		AfterScript: []string{"echo from after_script"}, Masked: map[string]string{"SECRET": "sup3rs3cretvalue"},
		ArtifactPaths: []string{"out/"},
	}, "success")
	require.Contains(t, string(build.stored), "from after_script")
	require.NotContains(t, string(build.stored), "sup3rs3cretvalue")
	require.Equal(t, "default.zip", build.upload.Filename)
	files, err := runnerclient.Unzip(build.artifact)
	require.NoError(t, err)
	require.Len(t, files["out/large"], 20<<20)

	passed := f.run(t, runnerreplay.Job{
		Name: "test", Script: []string{"cat out/a.txt", "wc -c < out/large"}, Dependencies: []string{"build"},
	}, "success")
	require.Contains(t, string(passed.stored), "\n20971520\n")

	failed := f.run(t, runnerreplay.Job{Name: "failing", Script: []string{"exit 7"}}, "failed")
	require.EqualValues(t, 7, *failed.final.ExitCode)
	require.Equal(t, "script_failure", failed.final.FailureReason)

	f.run(t, runnerreplay.Job{Name: "slow", Script: []string{"sleep 60"}, TimeoutSeconds: 2}, "failed")

	loud := f.run(t, runnerreplay.Job{Name: "loud", Script: []string{"seq 1 100000; sleep 60"}}, "failed")
	require.LessOrEqual(t, len(loud.stored), 64<<10)

	canceled := f.start(t, runnerreplay.Job{
		Name: "canceled", Script: []string{"echo begins", "sleep 60"}, AfterScript: []string{"echo from after_script"},
	})
	require.Eventually(t, func() bool { return f.has(canceled, "begins") }, time.Minute, 20*time.Millisecond)
	require.NoError(t, f.end(wire.StatusCanceling)(t.Context(), canceled.id))
	f.await(t, canceled, "canceled")
	require.Contains(t, string(canceled.stored), "from after_script")

	program.ResetToken(t)
	response, _ := f.exchange(t, http.MethodPost, "/runners/verify", nil, `{"token":"`+token+`"}`)
	require.Equal(t, http.StatusForbidden, response.StatusCode)
	program.Verify(t)
	require.Contains(t, f.snapshot(), "glrt-reset-0123456789-1=s_")
	program.Unregister(t) // of such a runner it deletes only the manager
	require.Contains(t, f.snapshot(), "glrt-reset-0123456789-1=;")
	require.Equal(t, trace.Held{}, build.trace.Held)
}

// start offers a job and returns it when the runner has it.
func (f *fixture) start(t *testing.T, j runnerreplay.Job) *job {
	t.Helper()
	require.NoError(t, f.offer(t.Context(), j))
	var given *job
	require.Eventually(t, func() bool {
		f.memory.mu.Lock()
		defer f.memory.mu.Unlock()
		for _, j2 := range f.jobs {
			if j2.Name == j.Name {
				given = j2
			}
		}
		return given != nil
	}, time.Minute, 20*time.Millisecond)
	return given
}

// run offers a job and returns it when it has ended.
func (f *fixture) run(t *testing.T, j runnerreplay.Job, status wire.JobStatus) *job {
	t.Helper()
	given := f.start(t, j)
	f.await(t, given, status)
	return given
}

func (f *fixture) await(t *testing.T, j *job, status wire.JobStatus) {
	t.Helper()
	require.Eventually(t, func() bool {
		f.memory.mu.Lock()
		defer f.memory.mu.Unlock()
		return j.ended()
	}, time.Minute, 20*time.Millisecond, j.Name)
	require.Equal(t, status, j.status, "%s: %s", j.Name, j.stored)
}

func (f *fixture) has(j *job, text string) bool {
	f.memory.mu.Lock()
	defer f.memory.mu.Unlock()
	return strings.Contains(string(j.stored), text)
}

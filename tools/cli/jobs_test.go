package cli

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
)

func TestJobCommands(t *testing.T) {
	t.Parallel()
	f := newFakeRunners(t)
	f.versions = []*runnersv1.Pipeline{shopPipeline(broken)}
	out, _ := f.runs("jobs", "list", "--state", "failed", "--pipeline", "42", "--retried")
	f.requireLast(&runnersv1.ListJobsRequest{
		PipelineId: 42, States: []runnersv1.JobState{runnersv1.JobState_JOB_STATE_FAILED}, Retried: true, PageSize: 100,
	})
	require.Regexp(t, `(?m)^71 +compile +build +success +1 +30s +12 +$`, out)
	out, _ = f.runs("jobs", "list", "--limit", "0", "-o", "yaml")
	f.requireLast(&runnersv1.ListJobsRequest{ProjectId: 3, PageSize: 500})
	require.Contains(t, out, "name: compile")

	out, _ = f.runs("jobs", "get", "unit: [linux]", "--pipeline", "42")
	for _, want := range []string{
		`job +72`, `project +acme/platform/web`, `state +failed`, `message +the script ended`, `exit code +3`, `tags +shell`,
		`needs +compile`, `attempt +2`, `retry of +70`, `duration +1m00s`,
	} {
		require.Regexp(t, `(?m)^`+want+`$`, out)
	}
	out, _ = f.runs("jobs", "get", "71")
	require.Regexp(t, `(?m)^output +7 B, checksum verified$`, out)
	require.Regexp(t, `(?m)^artifact archive +artifacts.zip, 3.0 MiB$`, out)
	out, _ = f.runs("jobs", "artifacts", "compile", "--pipeline", "42")
	require.Regexp(t, `(?s)archive +artifacts.zip +3.0 MiB +2025.*metadata +metadata.gz +120 B +never`, out)
	_, stderr := f.runs("jobs", "artifacts", "72")
	require.Equal(t, "nothing found\n", stderr)

	f.runs("jobs", "cancel", "72")
	f.requireLast(&runnersv1.CancelJobRequest{Id: 72})
	f.runs("jobs", "retry", "unit: [linux]", "--pipeline", "42")
	f.requireLast(&runnersv1.RetryJobRequest{Id: 72})
}

func TestJobWhyShowsTheRulesOfEachRunner(t *testing.T) {
	t.Parallel()
	f := newFakeRunners(t)
	f.explain = &runnersv1.ExplainJobResponse{
		Message: "No runner takes the job.",
		Runners: []*runnersv1.RunnerVerdict{
			{RunnerId: 12, Description: "build-host", Status: "offline", Obstacles: []*runnersv1.Obstacle{
				{Rule: "tags", Message: "it lacks the tag gpu"}, {Rule: "offline", Message: "it is offline"},
			}},
			{RunnerId: 13, Description: "other\x1b[2J", Status: "online", Matches: true},
			{RunnerId: 14, Status: "online", Obstacles: []*runnersv1.Obstacle{{Rule: "later", Message: "a new rule"}}},
		},
	}
	out, _ := f.runs("jobs", "why", "72")
	require.Equal(t, `No runner takes the job.

RUNNER   DESCRIPTION   STATUS    TAKES IT   OFFLINE   TAGS   LATER   BECAUSE
12       build-host    offline   no         ✗         ✗      ✓       it is offline; it lacks the tag gpu
13       other         online    yes        ✓         ✓      ✓       
14                     online    no         ✓         ✓      ✗       a new rule
`, out)
	out, _ = f.runs("jobs", "why", "72", "-o", "json")
	require.Contains(t, out, `"rule": "tags"`)
	f.explain = &runnersv1.ExplainJobResponse{
		Message: "The job waits for admission by \"zones\".", Prerequisites: []*runnersv1.Prerequisite{
			{
				ControllerId: 9, Name: "list", Level: "project", State: "accepted", DryRun: true, AddedTags: []string{"a"},
				RemovedTags: []string{"b"}, Reason: "it is\nlisted",
			},
			{ControllerId: 8, Name: "zones", Level: "group", State: "asked"},
		},
	}
	out, _ = f.runs("jobs", "why", "72")
	require.Equal(t, `The job waits for admission by "zones".

CONTROLLER   NAME    LEVEL     STATE                TAGS    REASON
9            list    project   accepted (dry run)   +a -b   it is listed
8            zones   group     asked                        
`, out)
	f.explain = &runnersv1.ExplainJobResponse{Message: "The job waits for compile."}
	out, _ = f.runs("jobs", "why", "72")
	require.Equal(t, "The job waits for compile.\n", out)
}

func TestJobTrace(t *testing.T) {
	t.Parallel()
	f := newFakeRunners(t)
	f.parts, f.end = []string{"one\ntwo", "\x1b[31m\x1b[2J\nlater"}, ""
	out, _ := f.runs("jobs", "trace", "71")
	require.Equal(t, "one\ntwo", out, "the output up to the size that the job has")
	_, stderr := f.runs("jobs", "trace", "72")
	require.Equal(t, "job 72 has no output yet; it is success\n", stderr)

	f.end = "success"
	out, _ = f.runs("jobs", "trace", "compile", "--pipeline", "42", "--follow", "--exit-status")
	require.Equal(t, "one\ntwo\nlater", out)
	out, _ = f.runs("jobs", "trace", "71", "-f", "--raw")
	require.Equal(t, strings.Join(f.parts, ""), out)

	f.end = "failed"
	code, _, stderr := f.run("jobs", "trace", "71", "-f", "--exit-status")
	require.Equal(t, 8, code)
	require.Equal(t, "lockstep: job 71 is failed: see `lockstep jobs get 71`\n", stderr)
	f.runs("jobs", "trace", "71", "-f")
}

func TestTraceContinuesWhereTheConnectionWasLost(t *testing.T) {
	t.Parallel()
	f := newFakeRunners(t)
	f.parts, f.end, f.cut = []string{"one\n", "two\n", "three\n"}, "success", 2
	out, stderr := f.runs("jobs", "trace", "71", "--follow")
	require.Equal(t, "one\ntwo\nthree\n", out)
	require.Equal(t, []string{"8"}, f.resumed)
	require.Equal(t, "lost the server; connecting again\nconnected to the server again\n", stderr)
}

func TestTraceEndsWithCtrlC(t *testing.T) {
	t.Parallel()
	f := newFakeRunners(t)
	f.parts = []string{"one\n"}
	ctx, cancel := context.WithCancel(t.Context())
	var out, notes output
	done := make(chan int, 1)
	go func() {
		done <- Run(ctx, append(f.flags, "jobs", "trace", "71", "-f", "--exit-status"), &out, &notes, "test")
	}()
	require.Eventually(t, func() bool { return out.String() == "one\n" }, processTimeout, time.Millisecond)
	cancel()
	require.Zero(t, <-done)
	require.Empty(t, notes.String())
}

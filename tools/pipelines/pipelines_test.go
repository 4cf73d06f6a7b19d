package pipelines_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	"lockstep.internal/tools/pipelines"
)

var update = flag.Bool("update", false, "write the golden files")

func begin() time.Time { return time.Date(2026, 3, 4, 5, 6, 0, 0, time.UTC) }

func after(seconds int) *timestamppb.Timestamp {
	return timestamppb.New(begin().Add(time.Duration(seconds) * time.Second))
}

const (
	created  = runnersv1.JobState_JOB_STATE_CREATED
	pending  = runnersv1.JobState_JOB_STATE_PENDING
	running  = runnersv1.JobState_JOB_STATE_RUNNING
	success  = runnersv1.JobState_JOB_STATE_SUCCESS
	failed   = runnersv1.JobState_JOB_STATE_FAILED
	canceled = runnersv1.JobState_JOB_STATE_CANCELED
	skipped  = runnersv1.JobState_JOB_STATE_SKIPPED
)

// job returns a job that started and ended at seconds; 0 for not yet.
func job(id int64, stage, name string, state runnersv1.JobState, started, ended int) *runnersv1.Job {
	j := &runnersv1.Job{Id: id, Stage: stage, Name: name, State: state, Attempt: 1}
	if started > 0 {
		j.StartedAt = after(started)
	}
	if ended > 0 {
		j.FinishedAt = after(ended)
	}
	return j
}

// live is a pipeline in its second stage.
func live() *runnersv1.Pipeline {
	flaky := job(14, "test", "flaky", failed, 30, 45)
	flaky.FailureAllowed, flaky.Attempt, flaky.Message = true, 2, "the script ended with exit code 3"
	return &runnersv1.Pipeline{
		Id: 7, Ref: "main", Protected: true, State: runnersv1.PipelineState_PIPELINE_STATE_RUNNING, Warnings: true,
		CreatedAt: after(0), Stages: []string{"build", "test", "deploy"},
		Jobs: []*runnersv1.Job{
			job(11, "build", "compile", success, 1, 28),
			job(12, "test", "unit: [linux, amd64]", running, 30, 0),
			job(13, "test", "unit: [linux, arm64]", pending, 0, 0),
			flaky,
			job(15, "deploy", "staging", created, 0, 0),
		},
	}
}

// done is the same pipeline at its end.
func done() *runnersv1.Pipeline {
	p := live()
	p.State, p.FinishedAt = runnersv1.PipelineState_PIPELINE_STATE_FAILED, after(3700)
	p.Jobs[1].State, p.Jobs[1].FinishedAt, p.Jobs[1].Reason = failed, after(3700), "script_failure"
	p.Jobs[2].State = canceled
	p.Jobs[4].State = skipped
	return p
}

func TestGoldenPages(t *testing.T) {
	t.Parallel()
	wide, names := live(), live()
	for i := range 30 {
		wide.Jobs = append(wide.Jobs, job(int64(100+i), "deploy", fmt.Sprintf("region %d", i), created, 0, 0))
	}
	names.Ref = "a\x1b[2Jb"
	names.Jobs[0].Name, names.Jobs[3].Message = "構築\n\x1b]0;title\x07", "\x1b[31mred\u202e text"
	succeeded := done()
	succeeded.State, succeeded.Jobs = runnersv1.PipelineState_PIPELINE_STATE_SUCCESS, succeeded.GetJobs()[:1]
	for name, tc := range map[string]struct {
		pipeline *runnersv1.Pipeline
		page     pipelines.Page
	}{
		"columns":   {live(), pipelines.Page{Width: 80, Height: 24}},
		"colours":   {live(), pipelines.Page{Width: 80, Height: 24, Colour: true}},
		"rows":      {live(), pipelines.Page{Width: 50, Height: 24}},
		"narrow":    {live(), pipelines.Page{Width: 16, Height: 24}},
		"low":       {live(), pipelines.Page{Width: 40, Height: 7}},
		"lower":     {live(), pipelines.Page{Width: 40, Height: 4}},
		"one line":  {live(), pipelines.Page{Width: 40, Height: 1}},
		"many jobs": {wide, pipelines.Page{Width: 80, Height: 12}},
		"done":      {done(), pipelines.Page{Width: 80, Height: 24}},
		"one stage": {succeeded, pipelines.Page{Width: 80, Height: 24}},
		"names":     {names, pipelines.Page{Width: 80, Height: 24, Colour: true}},
		"no jobs":   {&runnersv1.Pipeline{Id: 1}, pipelines.Page{Width: 80, Height: 24}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lines := pipelines.Lines(tc.pipeline, tc.page, begin().Add(75*time.Second))
			requireFits(t, tc.page, lines)
			shown := strings.Join(lines, "\n") + "\n"
			path := filepath.Join("testdata", strings.ReplaceAll(name, " ", "_")+".golden")
			if *update {
				require.NoError(t, os.MkdirAll("testdata", 0o750))
				require.NoError(t, os.WriteFile(path, []byte(shown), 0o600))
			}
			want, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, string(want), shown)
		})
	}
}

func requireFits(t *testing.T, page pipelines.Page, lines []string) {
	t.Helper()
	require.NotEmpty(t, lines)
	require.LessOrEqual(t, len(lines), max(1, page.Height))
	for _, line := range lines {
		require.LessOrEqual(t, ansi.StringWidth(line), max(0, page.Width), "%q", line)
		require.NotContains(t, line, "\n")
	}
}

func TestChanges(t *testing.T) {
	t.Parallel()
	retried := proto.CloneOf(done())
	retried.State, retried.FinishedAt = runnersv1.PipelineState_PIPELINE_STATE_PENDING, nil
	again := job(22, "test", "unit: [linux, amd64]", pending, 0, 0)
	again.Attempt = 2
	retried.Jobs[1] = again
	fresh := live()
	fresh.State, fresh.Jobs = runnersv1.PipelineState_PIPELINE_STATE_CREATED, fresh.GetJobs()[4:]
	for name, tc := range map[string]struct {
		before, after *runnersv1.Pipeline
		want          []string
	}{
		"the first version of a new pipeline": {nil, fresh, []string{"pipeline 7  created with warnings"}},
		"the first version of a running pipeline": {nil, live(), []string{
			"compile  success after 27s", "unit: [linux, amd64]  running", "unit: [linux, arm64]  pending",
			"flaky  failed (attempt 2) after 15s: the script ended with exit code 3 (allowed)",
			"pipeline 7  running with warnings",
		}},
		"nothing": {live(), live(), nil},
		"the end": {live(), done(), []string{
			"unit: [linux, amd64]  failed after 1h01m: script_failure", "unit: [linux, arm64]  canceled", "staging  skipped",
			"pipeline 7  failed with warnings after 1h01m",
		}},
		"a retry": {done(), retried, []string{
			"unit: [linux, amd64]  pending (attempt 2)", "pipeline 7  pending with warnings",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tc.want, pipelines.Changes(tc.before, tc.after))
		})
	}
}

func TestEnded(t *testing.T) {
	t.Parallel()
	ended := 0
	for value := range runnersv1.PipelineState_name {
		p := &runnersv1.Pipeline{State: runnersv1.PipelineState(value)}
		j := &runnersv1.Job{State: runnersv1.JobState(value)}
		require.Equal(t, strings.ToLower(pipelines.State(p)), pipelines.JobState(j), "both have the same states")
		require.Equal(t, pipelines.Ended(p), pipelines.JobEnded(j))
		if pipelines.Ended(p) {
			ended++
		}
	}
	require.Equal(t, 4, ended)
}

// FuzzLines checks that lines fit the page, whatever the names are, and that no control character is left in them.
func FuzzLines(f *testing.F) {
	f.Add("compile", "test", "it failed", 80, 24, uint8(3))
	f.Add("構築\x1b[2J", "a\nb", "\u202e", 9, 3, uint8(40))
	f.Add("", "", "", 0, 0, uint8(0))
	f.Fuzz(func(t *testing.T, name, stage, message string, width, height int, count uint8) {
		page := pipelines.Page{Width: width % 500, Height: height % 100}
		p := &runnersv1.Pipeline{
			Id: 1, Ref: name, CreatedAt: after(0), Stages: []string{"first", stage},
			State: runnersv1.PipelineState(count % 10),
		}
		for i := range int(count) {
			j := job(int64(i), []string{"first", stage, "last" + stage}[i%3], name, runnersv1.JobState(i%10), i%2, i%4)
			j.Message = message
			p.Jobs = append(p.Jobs, j)
		}
		plain := pipelines.Lines(p, page, begin())
		requireFits(t, page, plain)
		require.NotContains(t, strings.Join(plain, ""), "\x1b")
		page.Colour = true
		colours := pipelines.Lines(p, page, begin())
		requireFits(t, page, colours)
		require.Equal(t, plain, strings.Split(ansi.Strip(strings.Join(colours, "\n")), "\n"))
		require.NotEmpty(t, pipelines.Changes(nil, p))
	})
}

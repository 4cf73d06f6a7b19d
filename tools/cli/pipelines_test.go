package cli

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	"lockstep.internal/tools/pipelines"
)

const smallFile = "build:\n  script: make\n"

// pipelineFile returns the path of a file with smallFile.
func pipelineFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ci.yml")
	require.NoError(t, os.WriteFile(path, []byte(smallFile), 0o600))
	return path
}

func TestPipelineCreate(t *testing.T) {
	t.Setenv("DEPLOY_TOKEN", "from the environment")
	f := newFakeRunners(t)
	file, secret := pipelineFile(t), filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte("from a file\n"), 0o600))
	out, stderr := f.runs("pipelines", "create", "-f", file, "--project", "platform/web", "--ref", "main", "--protected",
		"--var", "LEVEL=a=b", "--masked-var", "DEPLOY_TOKEN", "--masked-var", "KEY="+secret, "--idempotency-key", "once")
	require.Empty(t, stderr)
	require.Regexp(t, `(?m)^42 +success +main +acme/platform/web +alice`, out)
	f.requireLast(&runnersv1.CreatePipelineRequest{
		ProjectId: 3, File: []byte(smallFile), FileName: file, Ref: "main", Protected: true, RequestId: "once",
		Variables: []*runnersv1.Variable{
			{Key: "LEVEL", Value: "a=b"},
			{Key: "DEPLOY_TOKEN", Value: "from the environment", Masked: true, Raw: true},
			{Key: "KEY", Value: "from a file", Masked: true, Raw: true},
		},
	})
	out, _ = f.runs("pipelines", "create", "-f", file, "-o", "json")
	require.Contains(t, out, `"project_id": "3"`)
}

func TestPipelineFileProblemsAreOneLineEach(t *testing.T) {
	t.Parallel()
	f := newFakeRunners(t)
	file := pipelineFile(t)
	f.problem = fault.New(errcode.InvalidArgument, "%s",
		file+":1:1: first\n"+file+":2:5: second\n"+file+": 3 more problems")
	code, out, stderr := f.run("pipelines", "create", "-f", file)
	require.Equal(t, 2, code)
	require.Empty(t, out)
	require.Equal(t, file+":1:1: first\n"+file+":2:5: second\n"+file+": 3 more problems\n"+
		"lockstep: the file is not valid, nothing was created\n", stderr)

	f.problem = fault.New(errcode.PermissionDenied, "%s:1:1: no", file)
	code, _, stderr = f.run("pipelines", "create", "-f", file)
	require.Equal(t, 4, code)
	require.Equal(t, "lockstep: "+file+":1:1: no\n", stderr)
	f.problem = fault.New(errcode.InvalidArgument, "ref is too long")
	code, _, stderr = f.run("pipelines", "create", "-f", file)
	require.Equal(t, 2, code)
	require.Equal(t, "lockstep: ref is too long\n", stderr)
}

func TestPipelineFromStandardInput(t *testing.T) {
	t.Parallel()
	c := &cobra.Command{}
	c.SetIn(strings.NewReader(smallFile))
	raw, err := readPipelineFile(c, "-")
	require.NoError(t, err)
	require.Equal(t, smallFile, string(raw))
	c.SetIn(strings.NewReader(strings.Repeat("x", maxPipelineFile+1)))
	_, err = readPipelineFile(c, "-")
	require.ErrorContains(t, err, "more than 256 KiB")

	v := pipelineVariables{masked: []string{"TOKEN=-"}}
	require.True(t, v.readsStdin())
	variables, err := v.message(strings.NewReader("secret value\r\n"))
	require.NoError(t, err)
	require.Equal(t, "secret value", variables[0].GetValue())
	v.masked = append(v.masked, "OTHER=-")
	_, err = v.message(strings.NewReader("x"))
	require.ErrorContains(t, err, "only one variable")
}

func TestPipelineUsage(t *testing.T) {
	t.Parallel()
	f := newFakeRunners(t)
	file := pipelineFile(t)
	for args, want := range map[string]string{
		"pipelines create":                                             "there is no .gitlab-ci.yml in this folder",
		"pipelines create -f none":                                     "no such file",
		"pipelines create -f - --masked-var A=-":                       "cannot be both",
		"pipelines create --timeout 1m":                                "--timeout needs --wait or --watch",
		"pipelines create --wait --timeout -1m":                        "must not be negative",
		"pipelines create -f " + file + " --var A":                     "must be NAME=VALUE",
		"pipelines create -f " + file + " --masked-var =x":             "must be NAME or NAME=FILE",
		"pipelines create -f " + file + " --masked-var LOCKSTEP_X_Y":   "the environment has no variable LOCKSTEP_X_Y",
		"pipelines create -f " + file + " --masked-var A=none":         "no such file",
		"pipelines list --state done":                                  "--state \"done\" must be created, preparing",
		"pipelines list --limit -1":                                    "must not be negative",
		"pipelines get main":                                           "PIPELINE \"main\" must be a positive number",
		"pipelines watch":                                              "want PIPELINE",
		"jobs get compile":                                             "JOB \"compile\" must be a positive number",
		"jobs list --pipeline 42 --project web":                        "either --pipeline or --project",
		"jobs trace 71 --exit-status":                                  "--exit-status needs --follow",
		"runners create":                                               "set --type, --group or --project",
		"runners create --type local":                                  "must be instance, group, project",
		"runners create --type group":                                  "needs --group",
		"runners create --type project":                                "needs --project",
		"runners create --type instance --project web":                 "this one is of type instance",
		"runners create --type project --project web --group platform": "this one is of type project",
		"runners create --project web --maximum-timeout -1h":           "must not be negative",
		"runners update 12":                                            "nothing to change, want one of --description,",
		"runners list --status asleep":                                 "must be online, offline, stale, never_contacted",
		"runners delete 12":                                            "--yes",
		"runners reset-token 12":                                       "--yes",
		"--runners-server x pipelines list":                            "runners server \"x\" must be a URL",
	} {
		code, out, stderr := f.run(strings.Fields(args)...)
		require.Equal(t, 2, code, "%s: %s", args, stderr)
		require.Contains(t, stderr, want, args)
		require.Empty(t, out)
	}
	code, _, stderr := run(t, "pipelines", "list")
	require.Equal(t, 2, code)
	require.Contains(t, stderr, "no runners service is configured: set --runners-server, LOCKSTEP_RUNNERS_SERVER")
	for args, want := range map[string]string{
		"pipelines get 9":              "pipeline 9 does not exist",
		"pipelines watch 9":            "pipeline 9 does not exist",
		"jobs trace 9":                 "job 9 does not exist",
		"jobs trace 9 -f":              "job 9 does not exist",
		"jobs get lint --pipeline 42":  `pipeline 42 has no job "lint": it has "compile", "unit: [linux]"`,
		"runners get 9":                "runner 9 does not exist",
		"runners get other":            `runner "other" does not exist, or you may not see it: you can see build-host (12)`,
		"pipelines list --project wep": `project "wep" does not exist`,
	} {
		code, _, stderr := f.run(strings.Fields(args)...)
		require.Equal(t, 5, code, "%s: %s", args, stderr)
		require.Contains(t, stderr, want, args)
	}
}

func TestPipelineListReadsPages(t *testing.T) {
	t.Parallel()
	f := newFakeRunners(t)
	out, _ := f.runs("pipelines", "list", "--limit", "0")
	require.Regexp(t, `(?s)^ID.*\n42 .*\n41 .*\n40 .*acme/platform/web +alice +\d+d +1m42s\n$`, out)
	out, _ = f.runs("pipelines", "list", "--project", "web", "--state", "failed,running", "--limit", "2")
	require.NotContains(t, out, "\n40 ")
	f.requireLast(&runnersv1.ListPipelinesRequest{
		ProjectId: 3, States: []runnersv1.PipelineState{broken, ongoing}, PageSize: 1, PageToken: "2",
	})
}

func TestPipelineGetCancelAndRetry(t *testing.T) {
	t.Parallel()
	f := newFakeRunners(t)
	f.versions = []*runnersv1.Pipeline{shopPipeline(broken)}
	out, _ := f.runs("pipelines", "get", "42")
	require.Regexp(t, `(?m)^state +failed\s+ref +main\s+created by +alice`, out)
	require.Regexp(t, `(?m)^72 +unit: \[linux\] +test +failed +2 +1m00s +script_failure$`, out)
	out, _ = f.runs("pipelines", "cancel", "42")
	require.Regexp(t, `(?m)^42 +canceled`, out)
	f.requireLast(&runnersv1.CancelPipelineRequest{Id: 42})
	out, _ = f.runs("pipelines", "retry", "42")
	require.Regexp(t, `(?m)^42 +running`, out)
	f.requireLast(&runnersv1.RetryPipelineRequest{Id: 42})
}

// lines removes the times of lines.
func lines(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(line[min(len(line), len("15:04:05.000  ")):])
	}
	return b.String()
}

func TestWaitShowsChangesAndEndsWithTheResult(t *testing.T) {
	t.Parallel()
	file := pipelineFile(t)
	for name, tc := range map[string]struct {
		state runnersv1.PipelineState
		code  int
		out   string
		err   string
	}{
		"success": {success, 0, "unit: [linux]  success (attempt 2) after 1m00s\npipeline 42  success after 1m42s\n", ""},
		"failed": {
			broken, 8, "unit: [linux]  failed (attempt 2) after 1m00s: the script ended\npipeline 42  failed after 1m42s\n",
			"lockstep: pipeline 42 failed: see `lockstep pipelines get 42`\n",
		},
		"canceled": {
			canceled, 8, "unit: [linux]  canceled (attempt 2) after 1m00s\npipeline 42  canceled after 1m42s\n",
			"lockstep: pipeline 42 was canceled\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFakeRunners(t)
			f.versions = []*runnersv1.Pipeline{shopPipeline(ongoing), shopPipeline(ongoing), shopPipeline(tc.state)}
			f.cut = 2
			first := "compile  success after 30s\nunit: [linux]  running (attempt 2)\npipeline 42  running\n"
			for _, args := range [][]string{
				{"create", "-f", file, "--wait"},
				{"create", "-f", file, "--watch", "--timeout", "1h"},
				{"retry", "42", "--wait"},
				{"watch", "42", "--exit-status"},
			} {
				code, out, stderr := f.run(append([]string{"pipelines"}, args...)...)
				require.Equal(t, tc.code, code, stderr)
				require.Equal(t, first+tc.out, lines(out))
				require.True(t, strings.HasSuffix(stderr, tc.err), stderr)
			}
			code, _, stderr := f.run("pipelines", "watch", "42")
			require.Zero(t, code, stderr)
		})
	}
}

func TestPipelineWatchContinuesWithAnotherConnection(t *testing.T) {
	t.Parallel()
	f := newFakeRunners(t)
	f.versions, f.cut = []*runnersv1.Pipeline{shopPipeline(ongoing), shopPipeline(success)}, 1
	out, stderr := f.runs("pipelines", "watch", "42", "-o", "json")
	require.Equal(t, "lost the server; connecting again\nconnected to the server again\n", stderr)
	require.Equal(t, 2, strings.Count(out, "\n"), "the same version is shown once: %s", out)
	require.Contains(t, out, `"state":"PIPELINE_STATE_SUCCESS"`)
}

func TestWaitEndsAtItsTimeoutOrWithCtrlC(t *testing.T) {
	t.Parallel()
	f := newFakeRunners(t)
	f.versions = []*runnersv1.Pipeline{shopPipeline(ongoing)}
	code, _, stderr := f.run("pipelines", "retry", "42", "--wait", "--timeout", "3s")
	require.Equal(t, 14, code)
	require.Equal(t, "lockstep: pipeline 42 has not ended after 3s, it is running: see `lockstep pipelines watch 42`\n",
		stderr)
	for command, want := range map[string]int{"retry 42 --wait": 130, "watch 42": 0} {
		ctx, cancel := context.WithCancel(t.Context())
		var out, notes output
		done := make(chan int, 1)
		args := append(append([]string{}, f.flags...), "pipelines")
		go func() { done <- Run(ctx, append(args, strings.Fields(command)...), &out, &notes, "test") }()
		require.Eventually(t, func() bool { return strings.Contains(out.String(), "pipeline 42  running") },
			processTimeout, time.Millisecond)
		cancel()
		require.Equal(t, want, <-done, command)
	}
}

func TestPipelineScreenRedrawsInPlace(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	s := &pipelineScreen{
		redrawn: redrawn{out: &out}, page: func() pipelines.Page { return pipelines.Page{Width: 60, Height: 20} },
	}
	p := shopPipeline(ongoing)
	now := p.GetCreatedAt().AsTime().Add(time.Minute)
	require.NoError(t, s.draw(p, now))
	first := out.String()
	require.Equal(t, hideCursor+clearBelow+strings.Join(pipelines.Lines(p, s.page(), now), "\n")+"\n", first)
	require.NoError(t, s.draw(p, now))
	require.Equal(t, first, out.String(), "nothing changed")
	s.note("lost the server")
	require.NoError(t, s.take(proto.CloneOf(p), shopPipeline(success)))
	require.Contains(t, out.String()[len(first):], "\x1b[3A\r"+clearBelow+"lost the server\n✓ pipeline 42  success")
	s.close()
	require.True(t, strings.HasSuffix(out.String(), showCursor))
}

func TestCompletionOfPipelinesJobsAndRunners(t *testing.T) {
	t.Parallel()
	f := newFakeRunners(t)
	for args, want := range map[string]string{
		"pipelines get ":                  "42\tsuccess acme/platform/web main\n",
		"pipelines list --project ":       "acme/platform/web\tproject 3",
		"pipelines list --state ":         "skipped\n",
		"jobs list --state ":              "pending\n",
		"jobs list --pipeline ":           "42\tsuccess",
		"jobs trace ":                     "72\tunit: [linux] success acme/platform/web",
		"jobs why --pipeline 42 ":         "compile\tsuccess\n",
		"runners get ":                    "12\tbuild-host never_contacted\n",
		"runners create --type ":          "instance\n",
		"runners create --group ":         "acme/platform\tgroup 2",
		"runners update 12 --serve-user ": "alice\tuser 4",
	} {
		_, out, stderr := f.run(append([]string{"__complete"}, strings.Split(args, " ")...)...)
		require.Contains(t, out, want, "%s: %s", args, stderr)
	}
}

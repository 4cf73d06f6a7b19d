// Package admission_test tests a cell with the services runners and admission: jobs, controllers and runners as users
// have them.
package admission_test

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/e2e/samples"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	admissionv1 "lockstep.internal/schemas/gen/lockstep/admission/v1"
	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/services/runners"
	"lockstep.internal/tools/client"
	"lockstep.internal/tools/stack"
	"lockstep.internal/tools/testkit/runnerclient"
)

func TestMain(m *testing.M) { os.Exit(fixture.Main(m, 4)) }

const soon = fixture.Timeout

// cell is a system without a cluster, with the services for CI jobs and admission.
type cell struct {
	*stack.Stack

	t         testing.TB
	state     *client.API
	runners   *client.Runners
	admission *client.Admission
	// project is the first project, group the one that contains it.
	project, group int64
	// natsURL is the address of NATS, natsDir the folder that natsauth.Init wrote.
	natsURL, natsDir string
}

func start(t testing.TB) *cell {
	t.Helper()
	return startWith(t, stack.Options{})
}

func startWith(t testing.TB, opts stack.Options) *cell {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	opts.WithoutCluster, opts.Runners, opts.Admission, opts.Progress = true, true, true, t.Output()
	opts.Configure = func(_ string, config any) {
		if cfg, is := config.(*runners.Config); is {
			cfg.Queue.Hold = time.Second
		}
	}
	running, err := stack.Start(ctx, opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, running.Stop(), "the system stops in order") })
	token, err := running.AdminToken()
	require.NoError(t, err)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	httpClient := &http.Client{Transport: transport}
	c := &cell{
		Stack: running, t: t, state: client.New(httpClient, running.APIURL(), token), natsURL: opts.NATSURL,
		natsDir: opts.NATSDir,
	}
	if opts.NATSURL == "" {
		c.natsURL, c.natsDir = running.NATS().ClientURL(), filepath.Join(running.Dir(), "nats")
	}
	c.runners = c.state.Runners(httpClient, running.RunnersURL())
	c.admission = c.state.Admission(httpClient, running.AdmissionURL())
	projects, err := c.state.Directory.ListProjects(ctx, connect.NewRequest(&statev1.ListProjectsRequest{}))
	require.NoError(t, err)
	require.NotEmpty(t, projects.Msg.GetProjects())
	c.project, c.group = projects.Msg.GetProjects()[0].GetId(), projects.Msg.GetProjects()[0].GetGroupId()
	c.awaitProject(c.project)
	return c
}

// awaitProject waits until the runners service has read the project from NATS. Then it reads the file, which is not
// valid.
func (c *cell) awaitProject(project int64) {
	c.t.Helper()
	require.Eventually(c.t, func() bool {
		_, err := c.runners.Pipelines.CreatePipeline(c.t.Context(),
			connect.NewRequest(&runnersv1.CreatePipelineRequest{ProjectId: project, File: []byte("[]")}))
		return fault.Is(err, errcode.InvalidArgument)
	}, soon, 10*time.Millisecond)
}

// runner creates a runner of the instance.
func (c *cell) runner(description string, tags ...string) *runnersv1.CreateRunnerResponse {
	c.t.Helper()
	created, err := c.runners.Runners.CreateRunner(c.t.Context(), connect.NewRequest(&runnersv1.CreateRunnerRequest{
		Type:     runnersv1.RunnerType_RUNNER_TYPE_INSTANCE,
		Settings: &runnersv1.RunnerSettings{Description: description, Tags: tags, RunUntagged: true},
	}))
	require.NoError(c.t, err)
	return created.Msg
}

// pipeline creates a pipeline with one job and returns both.
func (c *cell) pipeline(project int64, file string) (*runnersv1.Pipeline, *runnersv1.Job) {
	c.t.Helper()
	created, err := c.runners.Pipelines.CreatePipeline(c.t.Context(),
		connect.NewRequest(&runnersv1.CreatePipelineRequest{ProjectId: project, File: []byte(file), Ref: "main"}))
	require.NoError(c.t, err)
	require.Len(c.t, created.Msg.GetPipeline().GetJobs(), 1)
	return created.Msg.GetPipeline(), created.Msg.GetPipeline().GetJobs()[0]
}

// await returns a job once it has a state.
func (c *cell) await(id int64, state runnersv1.JobState) *runnersv1.Job {
	c.t.Helper()
	var found *runnersv1.Job
	require.Eventually(c.t, func() bool {
		got, err := c.runners.Jobs.GetJob(c.t.Context(), connect.NewRequest(&runnersv1.GetJobRequest{Id: id}))
		require.NoError(c.t, err)
		found = got.Msg.GetJob()
		return found.GetState() == state
	}, soon, 10*time.Millisecond, "job %d: %v", id, found)
	return found
}

// request asks once for a job as a runner.
func (c *cell) request(token string) *runnerclient.Job {
	c.t.Helper()
	r := runnerclient.New(runnerclient.Config{
		URL: c.RunnersURL(), Token: token, SystemID: "s_" + token[len(token)-6:], MaxWait: 100 * time.Millisecond,
	})
	defer r.Close()
	taken, err := r.RequestJob(c.t.Context())
	if err != nil {
		require.ErrorIs(c.t, err, runnerclient.ErrTryAgain)
	}
	return taken
}

// sample runs the sample controller in Go with rules, and creates a controller of the instance for it.
func (c *cell) sample(rules map[string]any) {
	c.t.Helper()
	t, is := c.t.(*testing.T)
	require.True(c.t, is)
	const secret = "whsec_c2FtcGxlIHNlY3JldCBvZiBhIHRlc3QgMzIgYnl0ZXM="
	raw, err := json.Marshal(rules)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "rules.json")
	require.NoError(t, os.WriteFile(path, raw, 0o600))
	program := exec.Command(samples.Go(t, "deploy/controllers/go"), path)
	program.Env = append(os.Environ(), "WEBHOOK_SECRET="+secret, "LISTEN=127.0.0.1:0")
	program.Stderr = t.Output()
	out, err := program.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, program.Start())
	t.Cleanup(func() {
		_ = program.Process.Signal(syscall.SIGTERM)
		_ = program.Wait()
	})
	first, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	_, url, found := strings.Cut(strings.TrimSpace(first), "listening on ")
	require.True(t, found, first)
	_, err = c.admission.Controllers.CreateController(t.Context(), connect.NewRequest(&admissionv1.CreateControllerRequest{
		Level: admissionv1.ControllerLevel_CONTROLLER_LEVEL_INSTANCE, Secret: secret,
		Settings: &admissionv1.ControllerSettings{
			Name: "sample", Mutating: true, Webhook: &admissionv1.Webhook{Url: url},
		},
	}))
	require.NoError(t, err)
}

const job = "test: {script: [make]}\n"

// user returns the user who creates pipelines, by a job that is admitted without a controller.
func (c *cell) user() int64 {
	c.t.Helper()
	p, j := c.pipeline(c.project, job)
	c.await(j.GetId(), runnersv1.JobState_JOB_STATE_PENDING)
	return p.GetCreatedBy()
}

// The first scenario: only listed projects may run jobs. The others are rejected with a reason, their tags untouched.
func TestOnlyListedProjectsMayRunJobs(t *testing.T) {
	t.Parallel()
	c := start(t)
	made, err := c.state.Directory.CreateProject(t.Context(),
		connect.NewRequest(&statev1.CreateProjectRequest{GroupId: c.group, Name: "other"}))
	require.NoError(t, err)
	other := made.Msg.GetProject().GetId()
	c.awaitProject(other)
	c.sample(map[string]any{"projects": []int64{c.project}})
	token := c.runner("docker host", "docker").GetToken()
	_, rejected := c.pipeline(other, "test: {script: [make], tags: [docker], allow_failure: {on_denied_admission: true}}\n")
	failed := c.await(rejected.GetId(), runnersv1.JobState_JOB_STATE_FAILED)
	require.Equal(t, []string{"docker"}, failed.GetTags())
	require.Contains(t, failed.GetAdmission().GetReason(), "project "+strconv.FormatInt(other, 10)+" is not on the list")
	require.Nil(t, c.request(token), "the runner got a job that was rejected")
	explained, err := c.admission.Decisions.ExplainJob(t.Context(),
		connect.NewRequest(&admissionv1.ExplainJobRequest{JobId: rejected.GetId()}))
	require.NoError(t, err)
	require.Equal(t, admissionv1.Outcome_OUTCOME_DENIED, explained.Msg.GetDecision().GetOutcome())
	pipeline, err := c.runners.Pipelines.GetPipeline(t.Context(),
		connect.NewRequest(&runnersv1.GetPipelineRequest{Id: rejected.GetPipelineId()}))
	require.NoError(t, err)
	require.Equal(t, runnersv1.PipelineState_PIPELINE_STATE_SUCCESS, pipeline.Msg.GetPipeline().GetState())
	_, admitted := c.pipeline(c.project, "test: {script: [make], tags: [docker]}\n")
	c.await(admitted.GetId(), runnersv1.JobState_JOB_STATE_PENDING)
	require.NotNil(t, c.request(token))
}

// The second scenario: users belong to zones. A job with the wrong tag is redirected, and does not fail.
func TestJobsAreRedirectedToTheZoneOfTheirUser(t *testing.T) {
	t.Parallel()
	c := start(t)
	user := strconv.FormatInt(c.user(), 10)
	zoneA, zoneB := c.runner("in zone a", "zone_a"), c.runner("in zone b", "zone_b")
	c.sample(map[string]any{"zones": map[string]string{user: "zone_a", "1000001": "zone_b"}})
	require.NotNil(t, c.request(zoneB.GetToken()), "the job that was admitted before has no tags")
	_, redirected := c.pipeline(c.project, "test: {script: [make], tags: [zone_b]}\n")
	pending := c.await(redirected.GetId(), runnersv1.JobState_JOB_STATE_PENDING)
	require.Equal(t, []string{"zone_a"}, pending.GetTags())
	require.Equal(t, []string{"zone_b"}, pending.GetAdmission().GetOriginalTags())
	require.Contains(t, pending.GetAdmission().GetReason(), "user "+user+" belongs to zone_a")
	require.Nil(t, c.request(zoneB.GetToken()), "the runner of the wrong zone got the job")
	require.NotNil(t, c.request(zoneA.GetToken()))
}

// The third scenario: each runner has its own users. With none left the job is rejected, with a reason.
func TestRunnersTakeJobsOfTheirUsersOnly(t *testing.T) {
	t.Parallel()
	c := start(t)
	user := c.user()
	discovery, nostromo := c.runner("DiscoveryOne"), c.runner("tugNostromo")
	require.NotNil(t, c.request(nostromo.GetToken()), "the job that was admitted before may run anywhere")
	id := func(r *runnersv1.CreateRunnerResponse) string { return strconv.FormatInt(r.GetRunner().GetId(), 10) }
	c.sample(map[string]any{"runners": map[string][]int64{id(discovery): {user}, id(nostromo): {1000001}}})
	_, filtered := c.pipeline(c.project, job)
	pending := c.await(filtered.GetId(), runnersv1.JobState_JOB_STATE_PENDING)
	require.Equal(t, []int64{discovery.GetRunner().GetId()}, pending.GetAdmission().GetAcceptedRunnerIds())
	require.Nil(t, c.request(nostromo.GetToken()), "the runner of another user got the job")
	require.NotNil(t, c.request(discovery.GetToken()))
}

// A built-in policy needs no web server: all runners are for other users, so the job is rejected.
func TestPolicyThatLeavesNoRunnerRejects(t *testing.T) {
	t.Parallel()
	c := start(t)
	r := c.runner("DiscoveryOne")
	request := &admissionv1.CreateControllerRequest{
		Level: admissionv1.ControllerLevel_CONTROLLER_LEVEL_PROJECT, OwnerId: c.project,
		Settings: &admissionv1.ControllerSettings{
			Name: "accounts", Mutating: true,
			Policy: "rules:\n  - {accept_runners_if: 'runner.description == \"tugNostromo\"', reason: accounts of the user}\n",
		},
	}
	_, err := c.admission.Controllers.CreateController(t.Context(), connect.NewRequest(request))
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, j := c.pipeline(c.project, job)
		failed := c.await(j.GetId(), runnersv1.JobState_JOB_STATE_FAILED)
		return strings.Contains(failed.GetAdmission().GetReason(), "the policy allows no runner for the job")
	}, soon, 10*time.Millisecond)
	require.Nil(t, c.request(r.GetToken()))
}

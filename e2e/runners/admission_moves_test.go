package runners_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/fixture"
	admissionv1 "lockstep.internal/schemas/gen/lockstep/admission/v1"
	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	"lockstep.internal/tools/stack"
	"lockstep.internal/tools/testkit/runnerclient"
)

// laterController is a web server that decides about jobs of all cells. It answers when the test calls back.
type laterController struct {
	server *httptest.Server
	http   *http.Client

	mu sync.Mutex
	// questions by jobs.
	questions map[int64][]laterQuestion
}

// laterQuestion is a request about a job: address and token for the answer.
type laterQuestion struct {
	job            int64
	address, token string
}

func newLaterController(t *testing.T) *laterController {
	t.Helper()
	transport := &http.Transport{}
	c := &laterController{http: &http.Client{Transport: transport}, questions: map[int64][]laterQuestion{}}
	c.server = httptest.NewServer(c)
	t.Cleanup(func() {
		c.server.Close()
		transport.CloseIdleConnections()
	})
	return c
}

// ServeHTTP implements [http.Handler].
func (c *laterController) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var jobs []struct {
		ID int64 `json:"id"`
	}
	if err := json.NewDecoder(r.Body).Decode(&jobs); err != nil || len(jobs) != 1 {
		http.Error(w, "not an array of one job", http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	c.questions[jobs[0].ID] = append(c.questions[jobs[0].ID], laterQuestion{
		jobs[0].ID, r.Header.Get("Lockstep-Callback-Url"), r.Header.Get("Lockstep-Callback-Token"),
	})
	c.mu.Unlock()
	w.WriteHeader(http.StatusAccepted)
}

// from returns the questions of a cell about a job.
func (c *laterController) from(cell *cell, job int64) []laterQuestion {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(c.questions[job]), func(q laterQuestion) bool {
		return !strings.HasPrefix(q.address, cell.AdmissionURL())
	})
}

// accept calls back, and returns the status of the response.
func (c *laterController) accept(ctx context.Context, q laterQuestion) (int, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, q.address,
		strings.NewReader(fmt.Sprintf(`[{"id": %d, "admission": "accepted"}]`, q.job)))
	if err != nil {
		return 0, fmt.Errorf("call back about job %d: %w", q.job, err)
	}
	request.Header.Set("Authorization", "Bearer "+q.token)
	request.Header.Set("Content-Type", "application/json")
	response, err := c.http.Do(request)
	if err != nil {
		return 0, fmt.Errorf("call back about job %d: %w", q.job, err)
	}
	return response.StatusCode, response.Body.Close()
}

// decidesIn lets the controller decide about all jobs of a cell.
func (c *laterController) decidesIn(cell *cell) {
	cell.t.Helper()
	transport := &http.Transport{}
	cell.t.Cleanup(transport.CloseIdleConnections)
	api := cell.state.Admission(&http.Client{Transport: transport}, cell.AdmissionURL())
	_, err := api.Controllers.CreateController(cell.t.Context(), connect.NewRequest(
		&admissionv1.CreateControllerRequest{
			Level: admissionv1.ControllerLevel_CONTROLLER_LEVEL_INSTANCE,
			Settings: &admissionv1.ControllerSettings{
				Name: "later", Webhook: &admissionv1.Webhook{Url: c.server.URL, Concurrency: 50},
			},
		}))
	require.NoError(cell.t, err)
}

// TestOrganizationMovesWhileItsJobsWaitForAdmission moves an organization whose jobs wait for a controller. Some of the
// callbacks to the first cell arrive while it moves, the others when it has moved: those count no more, and the second
// cell asks about their jobs anew.
func TestOrganizationMovesWhileItsJobsWaitForAdmission(t *testing.T) {
	t.Parallel()
	const jobs = 20
	one, two, secure := startMovable(t, stack.Options{Programs: fixture.BuildReleaseServices(t), Admission: true})
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	later := newLaterController(t)
	later.decidesIn(one)
	later.decidesIn(two)
	token := one.create(&runnersv1.CreateRunnerRequest{
		Type: runnersv1.RunnerType_RUNNER_TYPE_GROUP, GroupId: one.group, Settings: untagged(),
	})
	done := &executions{all: map[int64][]executed{}}
	runAs(t, runnerclient.Config{URL: one.RouterURL(), Token: token, SystemID: "s_1", MaxWait: 200 * time.Millisecond},
		runnerclient.Runs{
			Concurrency: 4,
			Script: func(j *runnerclient.Job) runnerclient.Script {
				return runnerclient.Script{Lines: []string{"begin of " + j.JobInfo.Name}}
			},
			Done: func(j *runnerclient.Job, r runnerclient.Result, err error) {
				if err == nil {
					done.add(j, r)
				} else if t.Context().Err() == nil {
					t.Errorf("job %d: %v", j.ID, err)
				}
			},
		})
	pipeline := one.pipeline(one.project, fmt.Sprintf("work: {script: [make], parallel: %d}\n", jobs))
	require.Len(t, pipeline.GetJobs(), jobs)
	asked := func(of *cell, j *runnersv1.Job) bool { return len(later.from(of, j.GetId())) > 0 }
	require.Eventually(t, func() bool {
		return !slices.ContainsFunc(pipeline.GetJobs(), func(j *runnersv1.Job) bool { return !asked(one, j) })
	}, soon, 10*time.Millisecond, "all jobs wait for the controller")

	command := one.startMove(two, secure)
	early, late := pipeline.GetJobs()[:jobs/2], pipeline.GetJobs()[jobs/2:]
	for _, j := range early {
		_, err := later.accept(ctx, later.from(one, j.GetId())[0])
		require.NoError(t, err)
	}
	one.awaitMove(runnersv1.MovePhase_MOVE_PHASE_DONE)
	command.AwaitLine("done")
	require.NoError(t, command.Cmd.Wait())
	cli, again := one.moveCommand(two, secure)
	code, _, stderr := cli.Run(again...)
	require.Zero(t, code, "the command can be repeated: %s", stderr)
	require.Contains(t, stderr, "done")
	moved := two.in(one)
	for _, j := range late {
		require.Eventually(t, func() bool { return asked(two, j) }, soon, 10*time.Millisecond,
			"the second cell asks about job %d", j.GetId())
		_, err := later.accept(ctx, later.from(one, j.GetId())[0])
		require.NoError(t, err)
	}
	for _, j := range late {
		require.Equal(t, runnersv1.JobState_JOB_STATE_PREPARING, moved.job(j.GetId()).GetState(),
			"a callback to the first cell admits no job of the second one")
		require.Empty(t, done.of(j.GetId()))
	}
	for _, j := range pipeline.GetJobs() {
		require.Eventually(t, func() bool {
			return asked(two, j) || moved.job(j.GetId()).GetState() != runnersv1.JobState_JOB_STATE_PREPARING
		}, soon, 10*time.Millisecond, "job %d is lost", j.GetId())
		questions := later.from(two, j.GetId())
		require.LessOrEqual(t, len(questions), 1, "job %d is asked about once", j.GetId())
		for _, q := range questions {
			status, err := later.accept(ctx, q)
			require.NoError(t, err)
			require.Equal(t, http.StatusNoContent, status, "job %d", j.GetId())
		}
	}
	ended := moved.ended(pipeline.GetId())
	require.Equal(t, runnersv1.PipelineState_PIPELINE_STATE_SUCCESS, ended.GetState(), ended)
	for _, j := range ended.GetJobs() {
		moved.requireExecutedOnce(j, done)
	}
}

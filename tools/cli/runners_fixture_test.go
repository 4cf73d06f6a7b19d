package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/lockstep/admission/v1/admissionv1connect"
	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	"lockstep.internal/schemas/gen/lockstep/runners/v1/runnersv1connect"
	"lockstep.internal/schemas/gen/lockstep/state/v1/statev1connect"
)

// fakeRunners is a fake of the Connect services and of the traces of the runners service: it answers with what a test
// stores, and records requests. The end-to-end tests use the real service.
type fakeRunners struct {
	runnersv1connect.UnimplementedPipelineServiceHandler
	runnersv1connect.UnimplementedJobServiceHandler
	runnersv1connect.UnimplementedRunnerServiceHandler
	runnersv1connect.UnimplementedMoveServiceHandler

	t     *testing.T
	flags []string

	mu sync.Mutex
	// versions are those that a watch sends. It sends cut of them, loses the connection, and sends all of them to the next
	// one. If the last one has not ended, the watch stays open.
	versions []*runnersv1.Pipeline
	cut      int
	// parts are those of a trace, in one event each; a connection loses after cut of them. end is the state of the job.
	parts []string
	end   string
	// resumed are the values of Last-Event-ID.
	resumed []string
	explain *runnersv1.ExplainJobResponse
	// problem is the error of CreatePipeline.
	problem error
	// phases are those of a move, one after the other.
	phases []*runnersv1.Move
	// last is the newest request that changes something.
	last proto.Message
}

func newFakeRunners(t *testing.T) *fakeRunners {
	t.Helper()
	f := &fakeRunners{t: t, versions: []*runnersv1.Pipeline{shopPipeline(success)}}
	faults := connect.WithInterceptors(fault.NewInterceptor(slog.New(slog.DiscardHandler)))
	mux := http.NewServeMux()
	mux.Handle(runnersv1connect.NewPipelineServiceHandler(f, faults))
	mux.Handle(runnersv1connect.NewJobServiceHandler(f, faults))
	mux.Handle(runnersv1connect.NewRunnerServiceHandler(f, faults))
	mux.Handle(runnersv1connect.NewMoveServiceHandler(f, faults))
	mux.Handle(admissionv1connect.NewControllerServiceHandler(fakeControllers{}, faults))
	mux.Handle("GET /api/v4/jobs/{id}/trace", fault.Handler(slog.New(slog.DiscardHandler), f.trace))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+accessToken {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		mux.ServeHTTP(w, r)
	}))
	directory := http.NewServeMux()
	directory.Handle(statev1connect.NewTokenServiceHandler(fakeTokens{}))
	directory.Handle(statev1connect.NewDirectoryServiceHandler(&fakeCell{}, faults))
	state := httptest.NewServer(directory)
	t.Cleanup(func() {
		closeIdle()
		server.CloseClientConnections()
		server.Close()
		state.Close()
	})
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte(personal+"\n"), 0o600))
	f.flags = []string{"--server", state.URL, "--runners-server", server.URL + "/", "--token-file", token}
	return f
}

// run executes a command.
func (f *fakeRunners) run(args ...string) (code int, stdout, stderr string) {
	f.t.Helper()
	return run(f.t, append(append([]string{}, f.flags...), args...)...)
}

// runs executes a command and requires success.
func (f *fakeRunners) runs(args ...string) (stdout, stderr string) {
	f.t.Helper()
	code, stdout, stderr := f.run(args...)
	require.Zero(f.t, code, stderr)
	return stdout, stderr
}

const (
	success  = runnersv1.PipelineState_PIPELINE_STATE_SUCCESS
	broken   = runnersv1.PipelineState_PIPELINE_STATE_FAILED
	canceled = runnersv1.PipelineState_PIPELINE_STATE_CANCELED
	ongoing  = runnersv1.PipelineState_PIPELINE_STATE_RUNNING
)

// shopPipeline is a pipeline of project 3, whose job test has the same state.
func shopPipeline(state runnersv1.PipelineState) *runnersv1.Pipeline {
	at := func(seconds int64) *timestamppb.Timestamp {
		return timestamppb.New(time.Unix(1_764_000_000+seconds, 0))
	}
	p := &runnersv1.Pipeline{
		Id: 42, ProjectId: 3, Ref: "main", State: state, CreatedBy: 4, CreatedAt: at(0), Stages: []string{"build", "test"},
		Jobs: []*runnersv1.Job{
			{
				Id: 71, PipelineId: 42, ProjectId: 3, Name: "compile", Stage: "build", Attempt: 1, RunnerId: 12,
				State: runnersv1.JobState_JOB_STATE_SUCCESS, StartedAt: at(1), FinishedAt: at(31), TraceSize: 7,
				TraceVerified: true, Artifacts: []*runnersv1.Artifact{
					{Type: "archive", Filename: "artifacts.zip", Size: 3 << 20, ExpiresAt: at(3600)},
					{Type: "metadata", Filename: "metadata.gz", Size: 120},
				},
			},
			{
				Id: 72, PipelineId: 42, ProjectId: 3, Name: "unit: [linux]", Stage: "test", Attempt: 2, RetryOf: 70,
				State: runnersv1.JobState(state), StartedAt: at(40), Needs: []string{"compile"}, Tags: []string{"shell"},
			},
		},
	}
	switch state {
	case broken:
		p.Jobs[1].Reason, p.Jobs[1].Message, p.Jobs[1].ExitCode = "script_failure", "the script\x1b[2J ended", 3
		fallthrough
	case success, canceled:
		p.FinishedAt, p.Jobs[1].FinishedAt = at(102), at(100)
	default:
	}
	return p
}

func (f *fakeRunners) pipeline() *runnersv1.Pipeline {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.versions[len(f.versions)-1]
}

func (f *fakeRunners) record(request proto.Message) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = request
}

func (f *fakeRunners) known(id int64) error {
	if id != f.pipeline().GetId() {
		return fault.New(errcode.NotFound, "pipeline %d does not exist", id)
	}
	return nil
}

func (f *fakeRunners) CreatePipeline(
	_ context.Context, r *connect.Request[runnersv1.CreatePipelineRequest],
) (*connect.Response[runnersv1.CreatePipelineResponse], error) {
	f.record(r.Msg)
	if f.problem != nil {
		return nil, f.problem
	}
	return connect.NewResponse(&runnersv1.CreatePipelineResponse{Pipeline: f.pipeline()}), nil
}

func (f *fakeRunners) GetPipeline(
	_ context.Context, r *connect.Request[runnersv1.GetPipelineRequest],
) (*connect.Response[runnersv1.GetPipelineResponse], error) {
	if err := f.known(r.Msg.GetId()); err != nil {
		return nil, err
	}
	return connect.NewResponse(&runnersv1.GetPipelineResponse{Pipeline: f.pipeline()}), nil
}

// ListPipelines has three pages of one pipeline.
func (f *fakeRunners) ListPipelines(
	_ context.Context, r *connect.Request[runnersv1.ListPipelinesRequest],
) (*connect.Response[runnersv1.ListPipelinesResponse], error) {
	f.record(r.Msg)
	page, next := 1, ""
	if r.Msg.GetPageToken() != "" {
		page, _ = strconv.Atoi(r.Msg.GetPageToken())
	}
	if page < 3 {
		next = strconv.Itoa(page + 1)
	}
	p := proto.CloneOf(f.pipeline())
	p.Id, p.Jobs, p.Stages = int64(43-page), nil, nil
	return connect.NewResponse(&runnersv1.ListPipelinesResponse{
		Pipelines: []*runnersv1.Pipeline{p}, NextPageToken: next,
	}), nil
}

func (f *fakeRunners) CancelPipeline(
	_ context.Context, r *connect.Request[runnersv1.CancelPipelineRequest],
) (*connect.Response[runnersv1.CancelPipelineResponse], error) {
	f.record(r.Msg)
	return connect.NewResponse(&runnersv1.CancelPipelineResponse{Pipeline: shopPipeline(canceled)}), nil
}

func (f *fakeRunners) RetryPipeline(
	_ context.Context, r *connect.Request[runnersv1.RetryPipelineRequest],
) (*connect.Response[runnersv1.RetryPipelineResponse], error) {
	f.record(r.Msg)
	return connect.NewResponse(&runnersv1.RetryPipelineResponse{Pipeline: shopPipeline(ongoing)}), nil
}

// take returns what the next connection sends, and whether it is lost then.
func take[T any](f *fakeRunners, items []T) ([]T, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cut == 0 {
		return items, false
	}
	items, f.cut = items[:f.cut], 0
	return items, true
}

func (f *fakeRunners) WatchPipeline(
	ctx context.Context, r *connect.Request[runnersv1.WatchPipelineRequest],
	stream *connect.ServerStream[runnersv1.WatchPipelineResponse],
) error {
	if err := f.known(r.Msg.GetId()); err != nil {
		return err
	}
	versions, lost := take(f, f.versions)
	for _, p := range versions {
		if err := stream.Send(&runnersv1.WatchPipelineResponse{Pipeline: p}); err != nil {
			return err
		}
	}
	if lost {
		return fault.New(errcode.Unavailable, "the service stops")
	}
	if versions[len(versions)-1].GetFinishedAt() == nil {
		<-ctx.Done()
	}
	return ctx.Err()
}

func (f *fakeRunners) job(id int64) (*runnersv1.Job, error) {
	for _, j := range f.pipeline().GetJobs() {
		if j.GetId() == id {
			return j, nil
		}
	}
	return nil, fault.New(errcode.NotFound, "job %d does not exist", id)
}

func (f *fakeRunners) ListJobs(
	_ context.Context, r *connect.Request[runnersv1.ListJobsRequest],
) (*connect.Response[runnersv1.ListJobsResponse], error) {
	f.record(r.Msg)
	return connect.NewResponse(&runnersv1.ListJobsResponse{Jobs: f.pipeline().GetJobs()}), nil
}

func (f *fakeRunners) GetJob(
	_ context.Context, r *connect.Request[runnersv1.GetJobRequest],
) (*connect.Response[runnersv1.GetJobResponse], error) {
	j, err := f.job(r.Msg.GetId())
	return connect.NewResponse(&runnersv1.GetJobResponse{Job: j}), err
}

func (f *fakeRunners) ExplainJob(
	_ context.Context, r *connect.Request[runnersv1.ExplainJobRequest],
) (*connect.Response[runnersv1.ExplainJobResponse], error) {
	if _, err := f.job(r.Msg.GetId()); err != nil {
		return nil, err
	}
	return connect.NewResponse(f.explain), nil
}

func (f *fakeRunners) CancelJob(
	_ context.Context, r *connect.Request[runnersv1.CancelJobRequest],
) (*connect.Response[runnersv1.CancelJobResponse], error) {
	f.record(r.Msg)
	j, err := f.job(r.Msg.GetId())
	return connect.NewResponse(&runnersv1.CancelJobResponse{Job: j}), err
}

func (f *fakeRunners) RetryJob(
	_ context.Context, r *connect.Request[runnersv1.RetryJobRequest],
) (*connect.Response[runnersv1.RetryJobResponse], error) {
	f.record(r.Msg)
	j, err := f.job(r.Msg.GetId())
	return connect.NewResponse(&runnersv1.RetryJobResponse{Job: j}), err
}

// trace sends the parts after Last-Event-ID, and the end of the job.
func (f *fakeRunners) trace(w http.ResponseWriter, r *http.Request) error {
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	if err != nil {
		return fault.New(errcode.InvalidArgument, "not an id")
	}
	if _, err := f.job(id); err != nil {
		return err
	}
	from := 0
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		f.mu.Lock()
		f.resumed = append(f.resumed, last)
		f.mu.Unlock()
		if from, err = strconv.Atoi(last); err != nil {
			return fault.New(errcode.InvalidArgument, "not an offset")
		}
	}
	if r.Header.Get("Accept") != "text/event-stream" {
		return fault.New(errcode.InvalidArgument, "not a request for events")
	}
	w.Header().Set("Content-Type", "text/event-stream")
	parts, lost := take(f, f.parts)
	offset := 0
	for _, part := range parts {
		end := offset + len(part)
		if offset >= from {
			raw, err := json.Marshal(map[string]any{"offset": offset, "text": part})
			if err != nil {
				return err
			}
			fmt.Fprintf(w, ": alive\n\nevent: trace\nid: %d\ndata: %s\n\n", end, raw)
		}
		offset = end
	}
	if lost {
		if err := http.NewResponseController(w).Flush(); err != nil {
			return errors.New("flush")
		}
		panic(http.ErrAbortHandler)
	}
	if f.end == "" {
		if err := http.NewResponseController(w).Flush(); err != nil {
			return errors.New("flush")
		}
		<-r.Context().Done()
		return nil
	}
	fmt.Fprintf(w, "event: later\ndata: x\n\nevent: end\ndata: {\"state\": %q}\n\n", f.end)
	return nil
}

func hostRunner() *runnersv1.Runner {
	return &runnersv1.Runner{
		Id: 12, Type: runnersv1.RunnerType_RUNNER_TYPE_PROJECT, Status: runnersv1.RunnerStatus_RUNNER_STATUS_NEVER_CONTACTED,
		CreatedBy: 4, Settings: &runnersv1.RunnerSettings{
			Description: "build-host", Tags: []string{"shell", "arm64"}, RunUntagged: true, ProjectIds: []int64{3},
		},
		Managers: []*runnersv1.Manager{{
			SystemId: "s_1", Version: "17.9.3", Platform: "linux", Architecture: "arm64", Executor: "shell",
			Status: runnersv1.RunnerStatus_RUNNER_STATUS_ONLINE,
		}},
	}
}

func (f *fakeRunners) CreateRunner(
	_ context.Context, r *connect.Request[runnersv1.CreateRunnerRequest],
) (*connect.Response[runnersv1.CreateRunnerResponse], error) {
	f.record(r.Msg)
	return connect.NewResponse(&runnersv1.CreateRunnerResponse{Runner: hostRunner(), Token: "glrt-secret"}), nil
}

func (f *fakeRunners) GetRunner(
	_ context.Context, r *connect.Request[runnersv1.GetRunnerRequest],
) (*connect.Response[runnersv1.GetRunnerResponse], error) {
	if r.Msg.GetId() != 12 {
		return nil, fault.New(errcode.NotFound, "runner %d does not exist", r.Msg.GetId())
	}
	return connect.NewResponse(&runnersv1.GetRunnerResponse{Runner: hostRunner()}), nil
}

func (f *fakeRunners) ListRunners(
	_ context.Context, r *connect.Request[runnersv1.ListRunnersRequest],
) (*connect.Response[runnersv1.ListRunnersResponse], error) {
	f.record(r.Msg)
	return connect.NewResponse(&runnersv1.ListRunnersResponse{Runners: []*runnersv1.Runner{hostRunner()}}), nil
}

func (f *fakeRunners) UpdateRunner(
	_ context.Context, r *connect.Request[runnersv1.UpdateRunnerRequest],
) (*connect.Response[runnersv1.UpdateRunnerResponse], error) {
	f.record(r.Msg)
	return connect.NewResponse(&runnersv1.UpdateRunnerResponse{Runner: hostRunner()}), nil
}

func (f *fakeRunners) DeleteRunner(
	_ context.Context, r *connect.Request[runnersv1.DeleteRunnerRequest],
) (*connect.Response[runnersv1.DeleteRunnerResponse], error) {
	f.record(r.Msg)
	return connect.NewResponse(&runnersv1.DeleteRunnerResponse{}), nil
}

func (f *fakeRunners) ResetRunnerToken(
	_ context.Context, r *connect.Request[runnersv1.ResetRunnerTokenRequest],
) (*connect.Response[runnersv1.ResetRunnerTokenResponse], error) {
	f.record(r.Msg)
	return connect.NewResponse(&runnersv1.ResetRunnerTokenResponse{Token: "glrt-other"}), nil
}

// requireLast requires the newest request that was recorded.
func (f *fakeRunners) requireLast(want proto.Message) {
	f.t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	require.True(f.t, proto.Equal(want, f.last), "%v", f.last)
}

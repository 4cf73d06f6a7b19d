package runners_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/services/router"
	"lockstep.internal/services/runners"
	"lockstep.internal/tools/client"
	"lockstep.internal/tools/stack"
	"lockstep.internal/tools/testkit/runnerclient"
)

func TestMain(m *testing.M) { os.Exit(fixture.Main(m, 4)) }

const soon = fixture.Timeout

// cell is a system without a cluster, with the services for CI jobs.
type cell struct {
	*stack.Stack

	t testing.TB
	// state calls the state service, and api the runners service, both as the administrator.
	state *client.API
	api   *client.Runners
	// project is the first project, with its group and organization.
	project, group, organization int64
}

// start starts a cell until the test ends. Requests for jobs are held for a second only.
func start(t testing.TB, opts stack.Options) *cell {
	t.Helper()
	opts.WithoutCluster, opts.Runners, opts.Progress = true, true, t.Output()
	configure := opts.Configure
	opts.Configure = func(service string, config any) {
		if cfg, is := config.(*runners.Config); is {
			cfg.Queue.Hold = time.Second
		}
		if cfg, is := config.(*router.Config); is {
			cfg.Cells.Breaker.Open = 50 * time.Millisecond
		}
		if configure != nil {
			configure(service, config)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	running, err := stack.Start(ctx, opts)
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			keepLog(t, running)
		}
		require.NoError(t, running.Stop(), "the system stops in order")
	})
	c := &cell{Stack: running, t: t}
	token, err := running.AdminToken()
	require.NoError(t, err)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	httpClient := &http.Client{Transport: transport}
	c.state = client.New(httpClient, running.APIURL(), token)
	c.api = c.state.Runners(httpClient, running.RunnersURL())
	projects, err := c.state.Directory.ListProjects(ctx, connect.NewRequest(&statev1.ListProjectsRequest{}))
	require.NoError(t, err)
	require.NotEmpty(t, projects.Msg.GetProjects())
	first := projects.Msg.GetProjects()[0]
	c.project, c.group, c.organization = first.GetId(), first.GetGroupId(), first.GetOrganizationId()
	c.awaitProject(c.project)
	return c
}

// keepLog copies the services' log to a file that outlives the system.
func keepLog(t testing.TB, s *stack.Stack) {
	t.Helper()
	raw, err := os.ReadFile(s.LogFile())
	if err != nil {
		t.Logf("the services' log: %v", err)
		return
	}
	//nolint:usetesting // it outlives the test
	kept, err := os.CreateTemp("", "lockstep-e2e-"+strings.ReplaceAll(t.Name(), "/", "_")+"-*.log")
	if err != nil {
		t.Logf("the services' log: %v", err)
		return
	}
	_, err = kept.Write(raw)
	if err := errors.Join(err, kept.Close()); err != nil {
		t.Logf("the services' log: %v", err)
		return
	}
	t.Logf("the services' log is kept in %s", kept.Name())
}

// runner creates a runner of the instance and returns its token.
func (c *cell) runner(settings *runnersv1.RunnerSettings) string {
	c.t.Helper()
	return c.create(&runnersv1.CreateRunnerRequest{Type: runnersv1.RunnerType_RUNNER_TYPE_INSTANCE, Settings: settings})
}

func (c *cell) create(request *runnersv1.CreateRunnerRequest) string {
	c.t.Helper()
	created, err := c.api.Runners.CreateRunner(c.t.Context(), connect.NewRequest(request))
	require.NoError(c.t, err)
	require.True(c.t, strings.HasPrefix(created.Msg.GetToken(), "glrt-"))
	return created.Msg.GetToken()
}

// untagged are the settings of a runner for all jobs.
func untagged() *runnersv1.RunnerSettings { return &runnersv1.RunnerSettings{RunUntagged: true} }

// awaitProject waits until the runners service has read the project from NATS. Then it reads the file, which is not
// valid.
func (c *cell) awaitProject(project int64) {
	c.t.Helper()
	require.Eventually(c.t, func() bool {
		_, err := c.api.Pipelines.CreatePipeline(c.t.Context(),
			connect.NewRequest(&runnersv1.CreatePipelineRequest{ProjectId: project, File: []byte("[]")}))
		return fault.Is(err, errcode.InvalidArgument)
	}, soon, 10*time.Millisecond)
}

// newProject creates a project in the group of the first one, and returns once the runners service knows it.
func (c *cell) newProject(name string) int64 {
	c.t.Helper()
	made, err := c.state.Directory.CreateProject(c.t.Context(),
		connect.NewRequest(&statev1.CreateProjectRequest{GroupId: c.group, Name: name}))
	require.NoError(c.t, err)
	return made.Msg.GetProject().GetId()
}

// pipeline creates a pipeline of a project.
func (c *cell) pipeline(project int64, file string) *runnersv1.Pipeline {
	c.t.Helper()
	created, err := c.api.Pipelines.CreatePipeline(c.t.Context(), connect.NewRequest(&runnersv1.CreatePipelineRequest{
		ProjectId: project, File: []byte(file), Ref: "main",
		Variables: []*runnersv1.Variable{{Key: "SECRET", Value: "sup3rs3cretvalue", Masked: true}},
	}))
	require.NoError(c.t, err)
	return created.Msg.GetPipeline()
}

// ended returns a pipeline after its end, by its watch.
func (c *cell) ended(id int64) *runnersv1.Pipeline {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), soon)
	defer cancel()
	stream, err := c.api.Pipelines.WatchPipeline(ctx, connect.NewRequest(&runnersv1.WatchPipelineRequest{Id: id}))
	require.NoError(c.t, err)
	defer stream.Close()
	var last *runnersv1.Pipeline
	for stream.Receive() {
		last = stream.Msg().GetPipeline()
	}
	require.NoError(c.t, stream.Err(), "last: %v", last)
	return last
}

// job returns a job of a pipeline by its name.
func job(t testing.TB, p *runnersv1.Pipeline, name string) *runnersv1.Job {
	t.Helper()
	for _, j := range p.GetJobs() {
		if j.GetName() == name {
			return j
		}
	}
	require.Failf(t, "no such job", "%s: %v", name, p)
	return nil
}

// run runs a runner at an address until the test ends.
func run(t testing.TB, url, token, system string, runs runnerclient.Runs) {
	t.Helper()
	runAs(t, runnerclient.Config{URL: url, Token: token, SystemID: system, MaxWait: 100 * time.Millisecond}, runs)
}

// runAs runs a runner until the test ends.
func runAs(t testing.TB, cfg runnerclient.Config, runs runnerclient.Runs) {
	t.Helper()
	c := runnerclient.New(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() {
		if err := c.Run(ctx, runs); err != nil {
			t.Errorf("runner %s: %v", cfg.SystemID, err)
		}
	})
	t.Cleanup(func() {
		cancel()
		group.Wait()
		c.Close()
	})
}

// client returns a runner that a test controls request by request.
func (c *cell) client(url, token, system string) *runnerclient.Client {
	client := runnerclient.New(
		runnerclient.Config{URL: url, Token: token, SystemID: system, MaxWait: 100 * time.Millisecond},
	)
	c.t.Cleanup(client.Close)
	return client
}

// take requests jobs until the runner has one.
func (c *cell) take(client *runnerclient.Client) *runnerclient.Job {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), soon)
	defer cancel()
	for {
		taken, err := client.RequestJob(ctx)
		if !errors.Is(err, runnerclient.ErrTryAgain) {
			require.NoError(c.t, err)
		}
		if taken != nil {
			return taken
		}
	}
}

// job returns a job.
func (c *cell) job(id int64) *runnersv1.Job {
	c.t.Helper()
	got, err := c.api.Jobs.GetJob(c.t.Context(), connect.NewRequest(&runnersv1.GetJobRequest{Id: id}))
	require.NoError(c.t, err)
	return got.Msg.GetJob()
}

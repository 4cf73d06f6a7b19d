package runners_test

import (
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/services/runners"
	"lockstep.internal/tools/client"
	"lockstep.internal/tools/stack"
	"lockstep.internal/tools/testkit/runnerclient"
)

// movedFile has jobs with artifacts, a job that runs until it is let go, one that is retried, and a later stage.
const movedFile = `
stages: [build, test]
build: {stage: build, script: [make], parallel: 2, artifacts: {paths: [out/]}}
slow-%d: {stage: build, script: [sleep]}
flaky: {stage: build, script: [make], retry: 1}
test: {stage: test, script: [make test]}
`

// refusals counts answers with which a server tells a runner to give up. It announces each request before it is sent.
type refusals struct {
	http.Transport

	begun chan struct{}
	count atomic.Int64
	last  atomic.Pointer[string]
}

// RoundTrip implements [http.RoundTripper].
func (r *refusals) RoundTrip(request *http.Request) (*http.Response, error) {
	select {
	case r.begun <- struct{}{}:
	default: // nobody waits
	}
	response, err := r.Transport.RoundTrip(request)
	if err == nil && response.StatusCode == http.StatusForbidden {
		r.count.Add(1)
		path := request.Method + " " + request.URL.Path
		r.last.Store(&path)
	}
	return response, err
}

// newOrganization creates an organization with a group and a project, which the cell has instead of its first ones.
func (c *cell) newOrganization(name string) {
	c.t.Helper()
	ctx := c.t.Context()
	o, err := c.state.Directory.CreateOrganization(ctx, connect.NewRequest(&statev1.CreateOrganizationRequest{Name: name}))
	require.NoError(c.t, err)
	c.organization = o.Msg.GetOrganization().GetId()
	g, err := c.state.Directory.CreateGroup(ctx, connect.NewRequest(&statev1.CreateGroupRequest{
		OrganizationId: c.organization, Name: "shop",
	}))
	require.NoError(c.t, err)
	c.group = g.Msg.GetGroup().GetId()
	c.project = c.newProject("web")
	c.awaitProject(c.project)
}

// token creates a personal access token of the administrator.
func (c *cell) token() string {
	c.t.Helper()
	created, err := c.state.Tokens.CreateToken(c.t.Context(), connect.NewRequest(&statev1.CreateTokenRequest{
		Name: "move", Scope: statev1.TokenScope_TOKEN_SCOPE_ADMIN,
	}))
	require.NoError(c.t, err)
	return created.Msg.GetValue()
}

// moveCommand is the command that moves the organization to the second cell.
func (c *cell) moveCommand(to *cell, address string) (cli fixture.CLI, command []string) {
	c.t.Helper()
	file := filepath.Join(c.t.TempDir(), "two.token")
	require.NoError(c.t, os.WriteFile(file, []byte(to.token()), 0o600))
	return fixture.NewCLI(c.t).With(client.Variable + "=" + c.ClientFile()),
		[]string{"cells", "move", "acme", "--to", "two", "--to-token-file", file, "--to-url", address, "--yes"}
}

// startMove starts a move with the command line, kills the command, and starts it again to follow the move. The address
// is that of the runners service of the other cell.
func (c *cell) startMove(to *cell, address string) *fixture.Process {
	c.t.Helper()
	cli, command := c.moveCommand(to, address)
	require.Contains(c.t, cli.OK(append(command, "--report")...), "move to cell two")
	require.Contains(c.t, cli.OK("cells", "list"), "two")
	killed := cli.Start(command...)
	killed.AwaitLine("They end here, and their pipelines follow them.")
	require.Eventually(c.t, func() bool {
		_, err := c.api.Moves.GetMove(c.t.Context(), connect.NewRequest(&runnersv1.GetMoveRequest{
			OrganizationId: c.organization,
		}))
		return err == nil
	}, soon, time.Millisecond, "the move starts")
	require.NoError(c.t, killed.Cmd.Process.Kill())
	return cli.Start(command...)
}

// awaitMove waits until the move of the organization has a phase.
func (c *cell) awaitMove(phase runnersv1.MovePhase) {
	c.t.Helper()
	var last *runnersv1.Move
	require.Eventually(c.t, func() bool {
		got, err := c.api.Moves.GetMove(c.t.Context(), connect.NewRequest(&runnersv1.GetMoveRequest{
			OrganizationId: c.organization,
		}))
		if err == nil {
			last = got.Msg.GetMove()
		}
		return last.GetPhase() == phase
	}, soon, 20*time.Millisecond, "the move does not become %s: %s", phase, lazy(func() string { return last.String() }))
}

// lazy is a text that is made when it is printed.
type lazy func() string

func (l lazy) String() string { return l() }

// startMovable starts two cells with these options beside their names and addresses, and creates an organization in the
// first one. secure is the HTTPS address of the second one's runners service, with a certificate that only the first
// cell trusts.
func startMovable(t *testing.T, opts stack.Options) (one, two *cell, secure string) {
	t.Helper()
	var address atomic.Pointer[url.URL]
	proxy := httptest.NewTLSServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(address.Load()) }, FlushInterval: -1,
		ErrorLog: log.New(io.Discard, "", 0),
	})
	t.Cleanup(proxy.Close)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{
		Type: "CERTIFICATE", Bytes: proxy.Certificate().Raw,
	}), 0o600))
	opts.Configure = func(_ string, config any) {
		if cfg, is := config.(*runners.Config); is {
			cfg.Queue.ConfirmTimeout = 5 * time.Second
			if cfg.Cell.Name == "one" {
				cfg.Move.CAFile = ca
			}
		}
	}
	source, target := opts, opts
	source.Cell, source.Router, source.MapCells = "one", true, []topology.Cell{"two"}
	one = start(t, source)
	target.Cell, target.CellNumber, target.MapNATS = "two", 1, one.NATS().ClientURL()
	target.MapSeedFile = natsauth.SeedFile(one.Dir()+"/nats", natsauth.CellWriter("two").Name)
	two = start(t, target)
	other := one.pipeline(one.project, "stays: {script: [echo]}\n")
	require.Len(t, other.GetJobs(), 1, "a job of another organization stays")
	one.newOrganization("acme")
	upstream, err := url.Parse(two.RunnersURL())
	require.NoError(t, err)
	address.Store(upstream)
	return one, two, proxy.URL
}

// variable returns the value of a variable of a job.
func variable(j *runnerclient.Job, key string) string {
	for _, v := range j.Variables {
		if v.Key == key {
			return v.Value
		}
	}
	return ""
}

// in returns the cell with the ids of the organization that came from another one.
func (c *cell) in(from *cell) *cell {
	moved := *c
	moved.organization, moved.group, moved.project = from.organization, from.group, from.project
	return &moved
}

// kill kills a runners service and starts it again.
func (c *cell) kill(ctx context.Context) {
	c.t.Helper()
	require.NoError(c.t, c.Kill(stack.Runners))
	require.NoError(c.t, c.StartService(ctx, stack.Runners))
}

// TestOrganizationMovesWhileItsRunnersPoll moves an organization with pipelines that wait, run and have ended, while
// its runners poll, and kills the runners services of both cells again and again.
func TestOrganizationMovesWhileItsRunnersPoll(t *testing.T) {
	t.Parallel()
	one, two, secure := startMovable(t, stack.Options{Programs: fixture.BuildReleaseServices(t)})
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	token := one.create(&runnersv1.CreateRunnerRequest{
		Type: runnersv1.RunnerType_RUNNER_TYPE_GROUP, GroupId: one.group, Settings: untagged(),
	})
	release, begun := make(chan struct{}), make(chan int64, 100)
	done, transport := &executions{all: map[int64][]executed{}}, &refusals{begun: make(chan struct{})}
	var failed sync.Map
	script := func(j *runnerclient.Job) runnerclient.Script {
		s := runnerclient.Script{Lines: []string{"begin of " + j.JobInfo.Name, strings.Repeat("line\n", 100)}}
		switch name := j.JobInfo.Name; {
		case strings.HasPrefix(name, "slow"):
			begun <- j.ID
			s.Wait, s.Rest = release, []string{"let go\n"}
		case strings.HasPrefix(name, "build"):
			s.Files = builtFiles(j.ID)
		case name == "flaky":
			if _, again := failed.LoadOrStore(variable(j, "CI_PIPELINE_ID"), true); !again {
				s.ExitCode = 1
			}
		}
		return s
	}
	for i := range 3 {
		runAs(t, runnerclient.Config{
			URL: one.RouterURL(), Token: token, SystemID: fmt.Sprintf("s_%d", i), MaxWait: 200 * time.Millisecond,
			HTTP: &http.Client{Transport: transport},
		}, runnerclient.Runs{
			Concurrency: 2, Script: script,
			Done: func(j *runnerclient.Job, r runnerclient.Result, err error) {
				if err == nil {
					done.add(j, r)
				} else if t.Context().Err() == nil {
					t.Errorf("job %d: %v", j.ID, err)
				}
			},
		})
	}
	var pipelines []int64
	for range 3 {
		p := one.pipeline(one.project, "build: {script: [make], artifacts: {paths: [out/]}}\n")
		pipelines = append(pipelines, one.ended(p.GetId()).GetId())
	}
	for i := range 6 {
		pipelines = append(pipelines, one.pipeline(one.project, fmt.Sprintf(movedFile, i)).GetId())
	}
	for range 3 {
		select {
		case <-begun:
		case <-ctx.Done():
			require.FailNow(t, "no slow job begins")
		}
	}
	command := one.startMove(two, secure)
	random := rand.New(rand.NewPCG(1, 9))
	killed := []*cell{one, two, one, two}
	for _, c := range killed {
		c.kill(ctx)
		for range random.IntN(10) {
			select {
			case <-transport.begun:
			case <-ctx.Done():
				require.FailNow(t, "the runners send no requests")
			}
		}
	}
	one.awaitMove(runnersv1.MovePhase_MOVE_PHASE_HANDING_OVER)
	one.kill(ctx)
	close(release)
	two.kill(ctx)
	one.kill(ctx)
	one.awaitMove(runnersv1.MovePhase_MOVE_PHASE_DONE)
	command.AwaitLine("done")
	require.NoError(t, command.Cmd.Wait())
	require.Eventually(t, func() bool {
		tokens, err := one.state.Tokens.ListTokens(ctx, connect.NewRequest(&statev1.ListTokensRequest{}))
		return err == nil && !slices.ContainsFunc(tokens.Msg.GetTokens(), func(token *statev1.Token) bool {
			return strings.HasPrefix(token.GetName(), "move of organization") && !token.GetRevoked()
		})
	}, soon, 20*time.Millisecond, "the tokens of the move are revoked")

	moved := two.in(one)
	for _, id := range pipelines {
		p := moved.ended(id)
		require.Equal(t, runnersv1.PipelineState_PIPELINE_STATE_SUCCESS, p.GetState(), p)
		for _, j := range p.GetJobs() {
			moved.requireExecutedOnce(j, done)
		}
	}
	if last := transport.last.Load(); last != nil {
		require.Zero(t, transport.count.Load(), "a runner was refused: %s", *last)
	}
	one.requireRebuildFindsNothing()
	moved.requireRebuildFindsNothing()

	// The organization works in its new cell, and not in the old one.
	again := moved.ended(moved.pipeline(moved.project, "again: {script: [echo]}\n").GetId())
	require.Equal(t, runnersv1.PipelineState_PIPELINE_STATE_SUCCESS, again.GetState())
	_, err := one.api.Pipelines.CreatePipeline(ctx, connect.NewRequest(&runnersv1.CreatePipelineRequest{
		ProjectId: one.project, File: []byte("a: {script: x}"),
	}))
	require.True(t, fault.Is(err, errcode.OrganizationMoving), "%v", err)
	_, err = one.client(one.RunnersURL(), token, "lost").Verify(ctx)
	require.Equal(t, http.StatusServiceUnavailable, runnerclient.StatusOf(err), "%v", err)
}

// TestCanceledMoveLeavesEverythingAsBefore cancels a move to a cell whose state service is down.
func TestCanceledMoveLeavesEverythingAsBefore(t *testing.T) {
	t.Parallel()
	one, two, secure := startMovable(t, stack.Options{Programs: fixture.BuildReleaseServices(t)})
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	token := one.create(&runnersv1.CreateRunnerRequest{
		Type: runnersv1.RunnerType_RUNNER_TYPE_GROUP, GroupId: one.group, Settings: untagged(),
	})
	waiting := one.pipeline(one.project, "work: {script: [echo]}\n")
	source, target := one.token(), two.token()
	report, err := one.api.Moves.ReportMove(ctx, connect.NewRequest(&runnersv1.ReportMoveRequest{
		OrganizationId: one.organization, ToCell: "two", ToUrl: secure, ToToken: target, Token: source,
	}))
	require.NoError(t, err)
	require.EqualValues(t, 1, report.Msg.GetWaitingJobs())
	require.EqualValues(t, 1, report.Msg.GetRunners())
	require.Zero(t, report.Msg.GetUnserved(), "its runner moves with it")
	require.Zero(t, report.Msg.GetAgents()+report.Msg.GetWorkspaces())
	_, err = two.api.Moves.ReportMove(ctx, connect.NewRequest(&runnersv1.ReportMoveRequest{
		OrganizationId: two.organization, ToCell: "one", ToUrl: secure, ToToken: source, Token: target,
	}))
	require.True(t, fault.Is(err, errcode.Unavailable), "a certificate that the cell does not trust: %v", err)
	require.NoError(t, two.Kill(stack.State))
	_, err = one.api.Moves.StartMove(ctx, connect.NewRequest(&runnersv1.StartMoveRequest{
		OrganizationId: one.organization, ToCell: "two", ToUrl: two.RunnersURL(), Token: source, ToToken: target,
	}))
	require.NoError(t, err)
	client := one.client(one.RouterURL(), token, "s_1")
	taken, err := client.RequestJob(ctx)
	require.NoError(t, err)
	require.Nil(t, taken, "no job is picked meanwhile")
	_, err = one.state.Directory.CreateProject(ctx, connect.NewRequest(&statev1.CreateProjectRequest{
		GroupId: one.group, Name: "late",
	}))
	require.True(t, fault.Is(err, errcode.OrganizationMoving), "%v", err)

	_, err = one.api.Moves.CancelMove(ctx, connect.NewRequest(&runnersv1.CancelMoveRequest{
		OrganizationId: one.organization,
	}))
	require.NoError(t, err)
	require.Equal(t, waiting.GetJobs()[0].GetId(), one.take(client).ID, "jobs are picked at once")
	require.NoError(t, two.StartService(ctx, stack.State))
	one.awaitMove(runnersv1.MovePhase_MOVE_PHASE_CANCELED)
	one.newProject("late")
	there, err := two.state.Directory.ListOrganizations(ctx, connect.NewRequest(&statev1.ListOrganizationsRequest{}))
	require.NoError(t, err)
	for _, o := range there.Msg.GetOrganizations() {
		require.NotEqual(t, one.organization, o.GetId())
	}
	found, err := two.api.Runners.ListRunners(ctx, connect.NewRequest(&runnersv1.ListRunnersRequest{}))
	require.NoError(t, err)
	require.Empty(t, found.Msg.GetRunners())
}

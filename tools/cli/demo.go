package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"connectrpc.com/connect"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/services/relay/agent"
	"lockstep.internal/tools/client"
	"lockstep.internal/tools/stack"
)

// Names of the workspace and of the relay target of the demo.
const (
	demoWorkspace = "hello"
	demoTarget    = "hello"
)

// demo is what `lockstep up --demo` adds to a system: a workspace, an HTTP server as a target of the agent, a runner of
// CI jobs, another one for a gitlab-runner, and a policy that redirects some jobs to them.
type demo struct {
	app     *app
	server  *http.Server
	address string
	// project is what the workspace clones; nil without a gateway or git. image is that of the workspace; empty for the
	// default.
	project *demoProject
	image   string
	// runner is nil before it was started.
	runner *demoRunner
	// token is that of a runner for a gitlab-runner of this machine; empty without the services for CI jobs.
	token string
}

// newDemo starts the HTTP server on a free port of 127.0.0.1. The caller closes it.
func (a *app) newDemo(ctx context.Context, opts stack.Options) (*demo, error) {
	var project *demoProject
	if opts.Gateway {
		var err error
		if project, err = newDemoProject(ctx); err != nil {
			return nil, err
		}
		if project == nil {
			if err := a.note("the program git was not found: workspace %q has no project", demoWorkspace); err != nil {
				return nil, err
			}
		}
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen for the target of the demo: %w", err), project.close())
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, "Hello from target %q, which only its agent can reach\n", demoTarget)
	})
	if project != nil {
		mux.Handle(demoProjectPath+"/", project.backend)
	}
	d := &demo{
		app: a, project: project, image: opts.Image, address: listener.Addr().String(),
		server: &http.Server{ReadHeaderTimeout: time.Minute, Handler: mux},
	}
	go func() { _ = d.server.Serve(listener) }() // until it is closed
	return d, nil
}

// close closes the target and the project. The runner is closed before.
func (d *demo) close() error {
	err := d.project.close()
	if closed := d.server.Close(); closed != nil {
		err = errors.Join(err, fmt.Errorf("close the target of the demo: %w", closed))
	}
	return err
}

// allow lets the relay agent connect to the target.
func (d *demo) allow(_ string, config any) {
	if cfg, is := config.(*agent.Config); is {
		cfg.Targets.AllowedAddresses = append(cfg.Targets.AllowedAddresses, d.address)
	}
}

// run configures the target, creates the workspace, and shows its states until it is Running. A system of an earlier
// run may be in any state, so what fails is noted, and the system stays up.
func (d *demo) run(ctx context.Context, s *stack.Stack) error {
	api, err := s.Client()
	if err != nil {
		return err
	}
	agent := s.Agents()[0]
	if s.RelayURL() != "" {
		err = d.configureTarget(ctx, api, agent)
	}
	if s.RunnersURL() != "" {
		err = errors.Join(err, d.createRunners(ctx, api.Runners(http.DefaultClient, s.RunnersURL()), s))
	}
	if s.AdmissionURL() != "" {
		err = errors.Join(err, createDemoPolicy(ctx, api, s, agent.ProjectID))
	}
	err = errors.Join(err, d.createWorkspace(ctx, api, agent))
	if err == nil || ctx.Err() != nil {
		return nil //nolint:nilerr // Ctrl-C
	}
	return d.app.note("%v", public(err))
}

// configureTarget adds the target to those of the agent. Its port is another one in each run.
func (d *demo) configureTarget(ctx context.Context, api *client.API, of stack.Agent) error {
	response, err := api.Agents.GetAgent(ctx, connect.NewRequest(&statev1.GetAgentRequest{Id: of.ID}))
	if err != nil {
		return err
	}
	targets := []*statev1.RelayTarget{{Name: demoTarget, Address: d.address}}
	for _, other := range response.Msg.GetAgent().GetConfiguration().GetRelayTargets().GetTargets() {
		if other.GetName() != demoTarget {
			targets = append(targets, other)
		}
	}
	_, err = api.Agents.ConfigureAgent(ctx, connect.NewRequest(&statev1.ConfigureAgentRequest{
		Id: of.ID, Configuration: &statev1.AgentConfiguration{RelayTargets: &statev1.RelayTargets{Targets: targets}},
	}))
	return err
}

// createRunners starts the runner of the demo, and creates one that waits for a gitlab-runner.
func (d *demo) createRunners(ctx context.Context, api *client.Runners, s *stack.Stack) (err error) {
	if d.runner, err = startDemoRunner(ctx, api, s); err != nil {
		return err
	}
	d.token, err = runnerToken(ctx, api, s, "gitlab-runner", "demo: for a gitlab-runner of this machine")
	return err
}

func (d *demo) createWorkspace(ctx context.Context, api *client.API, on stack.Agent) error {
	if err := d.app.write(
		fmt.Sprintf("\nCreating workspace %q; the cluster reports its states\n", demoWorkspace),
	); err != nil {
		return err
	}
	request := &statev1.CreateWorkspaceRequest{Name: demoWorkspace, ProjectId: on.ProjectID, AgentId: on.ID}
	if d.project != nil {
		request.Devfile = demoDevfile(d.image, d.address)
	}
	created, err := api.Workspaces.CreateWorkspace(ctx, connect.NewRequest(request))
	if err == nil {
		return d.app.wait(ctx, api, created.Msg.GetWorkspace(), defaultWaitTimeout)
	}
	if !fault.Is(err, errcode.AlreadyExists) {
		return err
	}
	earlier, err := api.Workspaces.GetWorkspace(ctx,
		connect.NewRequest(&statev1.GetWorkspaceRequest{Workspace: reference(demoWorkspace)}))
	if err != nil {
		return err
	}
	w := earlier.Msg.GetWorkspace()
	return d.app.note("workspace %q exists from an earlier run: actual state %s, desired state %s",
		demoWorkspace, actual(w), desired(w))
}

package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/stack"
)

const demoWorkspace = "hello"

func (a *app) up() *cobra.Command {
	var opts stack.Options
	var demo bool
	c := &cobra.Command{
		Use:   "up",
		Short: "Run a whole Lockstep system on this machine until Ctrl-C",
		Args:  exactly(),
		Long: `Run a whole Lockstep system on this machine until Ctrl-C: an embedded NATS, a private PostgreSQL, a
Kubernetes control plane (kubelab, built on first use), every service, and an agent. Without --data, nothing remains
afterwards. With --kubeconfig, use a real cluster instead of kubelab; no other kubeconfig is read or written. Repeat it
with the same --data: a cluster keeps the agents of one system apart from those of another.`,
		Example: "  lockstep up --demo\n  lockstep up --data ~/lockstep --kubeconfig ~/.kube/test-cluster",
		RunE: func(c *cobra.Command, _ []string) error {
			opts.Progress = a.stdout
			if opts.DatabaseURL == "" {
				opts.DatabaseURL = os.Getenv("DATABASE_URL")
			}
			return a.runStack(c.Context(), opts, demo)
		},
	}
	f := c.Flags()
	f.StringVar(&opts.Dir, "data", "", "folder of all data; default: a temporary one")
	f.StringVar(&opts.Kubeconfig, "kubeconfig", "", "kubeconfig of a cluster; default: kubelab")
	f.IntVar(&opts.Nodes, "nodes", 0, "number of nodes of kubelab; default 2")
	f.StringVar(&opts.DatabaseURL, "database-url", "",
		"URL of PostgreSQL; default: DATABASE_URL, or else a private server")
	f.StringVar(&opts.APIListen, "api-listen", "127.0.0.1:0", "address of the API; port 0 uses a free one")
	f.StringVar(&opts.DeploysListen, "deploys-listen", "127.0.0.1:0",
		"address of the API of the deploys service; port 0 uses a free one")
	f.IntVar(&opts.Relays, "relays", 1, "number of relays")
	f.StringVar(&opts.RelayListen, "relay-listen", "127.0.0.1:0",
		"address of the first relay for callers; port 0 uses a free one")
	f.IntVar(&opts.NATSPort, "nats-port", 0, "port of NATS on 127.0.0.1; 0 uses a free one")
	f.StringVar(&opts.Image, "image", "", "image of the template default")
	f.BoolVar(&opts.Workloads.Enabled, "workloads", true, "watch the rollouts of workloads in the cluster")
	f.StringSliceVar(&opts.Workloads.Namespaces, "workload-namespaces", nil, "namespaces of these workloads; default: all")
	f.StringVar(&opts.Workloads.Selector, "workload-selector", "", "label selector of these workloads; default: all")
	f.BoolVar(&demo, "demo", false, "create a workspace, and show its states until it is Running")
	return c
}

func (a *app) runStack(ctx context.Context, opts stack.Options, demo bool) (err error) {
	if err := a.write("Starting Lockstep on this machine\n"); err != nil {
		return err
	}
	s, err := stack.Start(ctx, opts)
	if err != nil {
		if ctx.Err() != nil {
			return fault.Wrap(err, errcode.Canceled, "stopped while starting")
		}
		return err
	}
	defer func() {
		_ = a.note("stopping …") // standard error may be closed
		err = errors.Join(err, s.Stop())
	}()
	if demo {
		if err := a.demo(ctx, s); err != nil || ctx.Err() != nil {
			return err
		}
	}
	if err := a.write(nextSteps(s, demo)); err != nil {
		return err
	}
	return s.Failed(ctx)
}

// demo creates a workspace and shows its states until it is Running.
func (a *app) demo(ctx context.Context, s *stack.Stack) error {
	api, err := s.Client()
	if err != nil {
		return err
	}
	if err := a.write(
		fmt.Sprintf("\nCreating workspace %q; the cluster reports its states\n", demoWorkspace),
	); err != nil {
		return err
	}
	response, err := api.Workspaces.CreateWorkspace(ctx,
		connect.NewRequest(&statev1.CreateWorkspaceRequest{Name: demoWorkspace}))
	if fault.Is(err, errcode.AlreadyExists) {
		return a.note("workspace %q exists from an earlier run", demoWorkspace)
	}
	if err != nil {
		return err
	}
	err = a.wait(ctx, api, response.Msg.GetWorkspace(), defaultWaitTimeout)
	if err != nil && ctx.Err() == nil {
		return a.note("%s", fault.From(err).Message) // the system runs all the same
	}
	return err
}

// nextSteps returns commands to try.
func nextSteps(s *stack.Stack, demo bool) string {
	program, err := os.Executable()
	if err != nil {
		program = "lockstep"
	}
	if dir, err := os.Getwd(); err == nil {
		if relative, err := filepath.Rel(dir, program); err == nil && !strings.HasPrefix(relative, "..") {
			program = "./" + relative
		}
	}
	workspace := demoWorkspace
	lines := []string{"", "Lockstep is running. In another terminal:", "", "  export LOCKSTEP_CLIENT=" + s.ClientFile()}
	if !demo {
		lines = append(lines, "  "+program+" ws create "+workspace+" --wait")
	}
	commands := []string{
		"ws list",
		"ws stop " + workspace,
		"ws events " + workspace,
		"events tail 'workspace.>'",
		"replay 'observed.>'",
	}
	if s.DeploysURL() != "" {
		commands = append(commands, "deploys watch", "deploys list", "deploys stats")
	}
	for _, command := range commands {
		lines = append(lines, "  "+program+" "+command)
	}
	kubectl := "  kubectl --kubeconfig " + s.Kubeconfig()
	if s.RelayURL() != "" {
		through := filepath.Join(s.Dir(), "relay.kubeconfig")
		lines = append(
			lines,
			"  "+program+" relay agents",
			"  "+program+" kube-config "+s.Agents()[0].Name+" --file "+through,
			"  kubectl --kubeconfig "+through+" get pods -A   # through the relay",
		)
	}
	lines = append(lines, kubectl+" get pods -A")
	if s.DeploysURL() != "" {
		lines = append(
			lines,
			"",
			"Deploy a workload, and watch it with `"+program+" deploys watch`:",
			"",
			kubectl+" create deployment web --image registry.example/web:1 --replicas 5",
			kubectl+" set image deployment/web web=registry.example/web:2",
		)
	}
	lines = append(lines, "", "The services' log is "+s.LogFile()+". Ctrl-C stops everything.", "")
	return strings.Join(lines, "\n")
}

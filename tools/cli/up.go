package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/workspaceagent"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/tools/stack"
)

func (a *app) up() *cobra.Command {
	var opts stack.Options
	var demo bool
	c := &cobra.Command{
		Use:   "up",
		Short: "Run a whole Lockstep system on this machine until Ctrl-C",
		Args:  exactly(),
		Long: `Run a whole Lockstep system on this machine until Ctrl-C: an embedded NATS, a private PostgreSQL, a
Kubernetes control plane (kubelab), every service, and an agent. Workspaces run their agent as a process of this
machine, as you, so that you can enter them. Without --data, nothing remains afterwards. With it,
the next start has the same data and ports. With --kubeconfig, use a real cluster instead of kubelab; no other
kubeconfig is read or written. Repeat it with the same --data: a cluster keeps the agents of one system apart from those
of another.

In a clone of the repository, kubelab is built on first use. Elsewhere it must be beside this program or in PATH.`,
		Example: "  lockstep up --demo\n  lockstep up --data ~/lockstep --kubeconfig ~/.kube/test-cluster",
		RunE: func(c *cobra.Command, _ []string) error {
			if err := checkUp(opts); err != nil {
				return err
			}
			opts.Progress, opts.Router = a.stdout, opts.Runners
			opts.Admission = opts.Admission && opts.Runners
			if opts.DatabaseURL == "" {
				opts.DatabaseURL = os.Getenv("DATABASE_URL")
			}
			if err := a.findWorkspaceAgent(&opts); err != nil {
				return err
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
	f.BoolVar(&opts.Gateway, "gateway", true,
		"run a gateway, through which people enter workspaces; only with kubelab, which runs their agents on this machine")
	f.StringVar(&opts.GatewayListen, "gateway-listen", "127.0.0.1:0",
		"address of the gateway for browsers; port 0 uses a free one")
	f.StringVar(&opts.GatewaySSHListen, "gateway-ssh-listen", "127.0.0.1:0",
		"address of the gateway for SSH; port 0 uses a free one")
	f.BoolVar(&opts.Runners, "ci", true, "run the services for CI jobs: runners and a router")
	f.BoolVar(&opts.Admission, "admission", true, "with --ci, also run the admission service, and let jobs wait for it")
	f.StringVar(&opts.AdmissionListen, "admission-listen", "127.0.0.1:0",
		"address of the admission service; port 0 uses a free one")
	f.StringVar(&opts.RunnersListen, "runners-listen", "127.0.0.1:0",
		"address of the runners service; port 0 uses a free one")
	f.StringVar(&opts.RouterListen, "router-listen", "127.0.0.1:0",
		"address of the router for GitLab runners; port 0 uses a free one")
	f.IntVar(&opts.NATSPort, "nats-port", 0, "port of NATS on 127.0.0.1; 0 uses a free one")
	f.StringVar(&opts.Image, "image", "", "image of the template default")
	f.BoolVar(&opts.Workloads.Enabled, "workloads", true, "watch the rollouts of workloads in the cluster")
	f.StringSliceVar(&opts.Workloads.Namespaces, "workload-namespaces", nil, "namespaces of these workloads; default: all")
	f.StringVar(&opts.Workloads.Selector, "workload-selector", "", "label selector of these workloads; default: all")
	f.BoolVar(&demo, "demo", false,
		"create a workspace and show its states until it is Running, and add a relay target, runners of CI jobs and a "+
			"policy of admission")
	return c
}

// checkUp returns an error for options that cannot work, before anything is started.
func checkUp(opts stack.Options) error {
	if opts.Nodes < 0 {
		return fault.New(errcode.InvalidArgument, "--nodes %d must not be negative", opts.Nodes)
	}
	if opts.Relays < 0 {
		return fault.New(errcode.InvalidArgument, "--relays %d must not be negative", opts.Relays)
	}
	if opts.Kubeconfig == "" {
		return nil
	}
	if _, err := clientcmd.LoadFromFile(opts.Kubeconfig); err != nil {
		return fault.Wrap(err, errcode.InvalidArgument, "--kubeconfig: %v", err)
	}
	return nil
}

// findWorkspaceAgent finds the program that runs in workspaces, beside this program or in PATH. Without it, or with
// a cluster that was given, there is no gateway.
func (a *app) findWorkspaceAgent(opts *stack.Options) error {
	if opts.Gateway = opts.Gateway && opts.Kubeconfig == ""; !opts.Gateway {
		return nil
	}
	if self, err := os.Executable(); err == nil {
		if path, err := exec.LookPath(filepath.Join(filepath.Dir(self), workspaceagent.Program)); err == nil {
			opts.WorkspaceAgent = path
			return nil
		}
	}
	path, err := exec.LookPath(workspaceagent.Program)
	if err != nil {
		opts.Gateway = false
		return a.note("the program %s is neither beside this program nor in PATH: nobody can enter workspaces",
			workspaceagent.Program)
	}
	if opts.WorkspaceAgent, err = filepath.Abs(path); err != nil {
		return fmt.Errorf("find the program %s: %w", workspaceagent.Program, err)
	}
	return nil
}

func (a *app) runStack(ctx context.Context, opts stack.Options, withDemo bool) (err error) {
	if err := a.write("Starting Lockstep on this machine\n"); err != nil {
		return err
	}
	var shown *demo
	if withDemo {
		if shown, err = a.newDemo(ctx, opts); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, shown.close()) }()
		opts.Configure = shown.allow
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
	if withDemo {
		// Before the router: it lets requests for jobs end, which wait for up to 50 s.
		defer func() { err = errors.Join(err, shown.runner.close()) }()
		if err := shown.run(ctx, s); err != nil || ctx.Err() != nil {
			return err
		}
	}
	if err := a.write(nextSteps(s, shown)); err != nil {
		return err
	}
	return s.Failed(ctx)
}

// command returns the path of a program as it is typed in the working directory.
func command(path string) string {
	if dir, err := os.Getwd(); err == nil {
		if relative, err := filepath.Rel(dir, path); err == nil && filepath.IsLocal(relative) {
			return "./" + relative
		}
	}
	return path
}

// kubectl returns the kubectl of this machine, or that of kubelab where there is none.
func kubectl(s *stack.Stack) string {
	if _, err := exec.LookPath("kubectl"); err == nil {
		return "kubectl"
	}
	words := s.Kubectl()
	words[0] = command(words[0])
	return strings.Join(words, " ")
}

// nextSteps returns commands to try. shown is nil without the demo.
func nextSteps(s *stack.Stack, shown *demo) string {
	program := "lockstep"
	if path, err := os.Executable(); err == nil {
		program = command(path)
	}
	agent, kubectl := s.Agents()[0].Name, kubectl(s)
	lines := []string{"", "Lockstep is running. In another terminal:", "", "  export LOCKSTEP_CLIENT=" + s.ClientFile()}
	if shown == nil {
		lines = append(lines, "  "+program+" ws create "+demoWorkspace+" --wait")
	}
	commands := []string{
		"ws list",
		"ws stop " + demoWorkspace,
		"ws events " + demoWorkspace,
		"events tail 'workspace.>'",
		"replay 'observed.>'",
	}
	if s.DeploysURL() != "" {
		commands = append(commands, "deploys watch", "deploys list", "deploys stats")
	}
	for _, command := range commands {
		lines = append(lines, "  "+program+" "+command)
	}
	if s.GatewayURL() != "" {
		lines = append(lines, "", "Enter the workspace; the browser warns about the certificate of this system:", "",
			"  "+program+" ws ssh "+demoWorkspace, "  "+program+" ws open "+demoWorkspace+"   # a terminal", "",
			"Look at the cluster:", "")
	}
	direct := "  " + kubectl + " --kubeconfig " + s.Kubeconfig()
	if s.RelayURL() != "" {
		through := filepath.Join(s.Dir(), "relay.kubeconfig")
		lines = append(
			lines,
			"  "+program+" relay agents",
			"  "+program+" kube-config "+agent+" --file "+through,
			"  "+kubectl+" --kubeconfig "+through+" get pods -A   # through the relay",
		)
	}
	lines = append(lines, direct+" get pods -A")
	if shown != nil && s.RelayURL() != "" {
		lines = append(
			lines,
			"",
			"Reach an HTTP server behind the agent through the relay:",
			"",
			"  "+program+" relay forward "+agent+" "+demoTarget+" --listen 127.0.0.1:8000",
			"  curl http://127.0.0.1:8000",
		)
	}
	if s.DeploysURL() != "" {
		lines = append(
			lines,
			"",
			"Deploy a workload, and watch it with `"+program+" deploys watch`:",
			"",
			direct+" create deployment web --image registry.example/web:1 --replicas 5",
			direct+" set image deployment/web web=registry.example/web:2",
		)
	}
	if s.RouterURL() != "" {
		lines = append(lines, ciSteps(program, s, shown)...)
	}
	lines = append(lines, "", "The services' log is "+s.LogFile()+". Ctrl-C stops everything.", "")
	return strings.Join(lines, "\n")
}

// ciSteps returns commands for CI jobs, with the token of a runner that the demo has created.
func ciSteps(program string, s *stack.Stack, shown *demo) []string {
	token := "$TOKEN"
	lines := []string{
		"", "Create a runner, and run CI jobs on it:", "",
		"  TOKEN=$(" + program + " runners create --type instance --tags shell --run-untagged)",
	}
	if shown != nil && shown.token != "" {
		token = shown.token
		lines = []string{
			"", "Run CI jobs; the runner of the demo prints their scripts:", "",
			"  " + program + " pipelines create -f deploy/examples/pipeline/.gitlab-ci.yml --watch",
		}
		if s.AdmissionURL() != "" {
			lines = append(lines, "  "+program+" admission decisions   # a policy redirects the stage release to "+demoZone)
		}
		lines = append(lines,
			"", "Execute them with a gitlab-runner of this machine, with the token of a runner of the instance:", "")
	}
	return append(lines,
		"  gitlab-runner register --non-interactive --url "+s.RouterURL()+" --token "+token+" --executor shell",
		"  gitlab-runner run",
	)
}

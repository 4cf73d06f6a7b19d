package cli

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/client"
)

func (a *app) workspaces() *cobra.Command {
	return group(
		"ws",
		"Create, list, start, stop, restart, delete, watch and enter workspaces",
		a.workspaceCreate(),
		a.workspaceList(),
		a.workspaceGet(),
		a.workspaceDesire("start", "Start a workspace", statev1.DesiredState_DESIRED_STATE_RUNNING, "Running"),
		a.workspaceDesire("stop", "Stop a workspace and keep its volume", statev1.DesiredState_DESIRED_STATE_STOPPED,
			"Stopped"),
		a.workspaceDesire("restart", "Stop a workspace and start it again",
			statev1.DesiredState_DESIRED_STATE_RESTART_REQUESTED, "Running again"),
		a.workspaceDelete(),
		a.workspaceUpdate(),
		a.workspaceExtend(),
		a.workspaceShare(),
		a.workspaceUnshare(),
		a.workspaceWatch(),
		a.workspaceEvents(),
		a.workspaceSSH(),
		a.workspaceSSHConfig(),
		a.workspaceCopy(),
		a.workspacePortForward(),
		a.workspaceOpen(),
		a.workspaceResetHostKey(),
		a.workspaceLogs(),
		a.workspaceOrphans(),
		a.workspaceAdopt(),
		a.workspaceDeleteOrphan(),
	)
}

// overrides are the flags that change the specification of a workspace.
type overrides struct {
	image, cpu, memory, volume string
	env, secretEnv, ports      []string
	secretFiles                []string
	command, args              []string
	stopAfterIdle              time.Duration
	idleCountsProcesses        bool
	// idleFlag and countsFlag are the flags of stopAfterIdle and idleCountsProcesses.
	idleFlag, countsFlag *pflag.Flag
}

func (o *overrides) flags(c *cobra.Command) {
	o.specFlags(c)
	f := c.Flags()
	f.StringArrayVar(&o.secretEnv, "secret-env", nil,
		"secret environment variable NAME=FILE with its value in a file; can be repeated")
	f.StringArrayVar(&o.secretFiles, "secret-file", nil,
		"secret file NAME=FILE below /run/secrets/workspace; can be repeated")
}

// specFlags adds the flags that a template has, too.
func (o *overrides) specFlags(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&o.image, "image", "", "container image")
	f.StringVar(&o.cpu, "cpu", "", "CPU, such as 500m")
	f.StringVar(&o.memory, "memory", "", "memory, such as 1Gi")
	f.StringVar(&o.volume, "volume", "", "size of the volume, such as 10Gi")
	f.StringArrayVar(&o.env, "env", nil, "environment variable NAME=VALUE; can be repeated")
	f.StringArrayVar(&o.ports, "port", nil, "port NAME=NUMBER of the workspace; can be repeated")
	f.StringArrayVar(&o.command, "command", nil, "word of the command instead of that of the image; can be repeated")
	f.StringArrayVar(&o.args, "arg", nil, "argument of the command; can be repeated")
	durationFlag(c, &o.stopAfterIdle, "stop-after-idle", 0,
		"time without activity after which the workspace is stopped, at least 2m; 0: by the policy of its agent")
	f.BoolVar(&o.idleCountsProcesses, idleCountsProcessesFlag, false,
		"programs that people have started keep it alive while they work; false: by the policy of its agent")
	o.idleFlag, o.countsFlag = f.Lookup("stop-after-idle"), f.Lookup(idleCountsProcessesFlag)
}

func (o *overrides) message() (*statev1.WorkspaceOverrides, error) {
	out := &statev1.WorkspaceOverrides{
		Image: o.image, Cpu: o.cpu, Memory: o.memory, VolumeSize: o.volume, Command: o.command, Args: o.args,
		Env: map[string]string{}, SecretEnv: map[string]string{}, SecretFiles: map[string][]byte{},
	}
	if o.idleFlag != nil && o.idleFlag.Changed {
		out.StopAfterIdle = durationpb.New(o.stopAfterIdle)
	}
	if o.countsFlag != nil && o.countsFlag.Changed {
		out.IdleCountsProcesses = &o.idleCountsProcesses
	}
	err := pairs("--env", o.env, func(name, value string) error { out.Env[name] = value; return nil })
	if err != nil {
		return nil, err
	}
	err = pairs("--secret-env", o.secretEnv, func(name, path string) error {
		raw, err := secretFile(path)
		out.SecretEnv[name] = strings.TrimRight(string(raw), "\r\n")
		return err
	})
	if err != nil {
		return nil, err
	}
	err = pairs("--secret-file", o.secretFiles, func(name, path string) error {
		raw, err := secretFile(path)
		out.SecretFiles[name] = raw
		return err
	})
	if err != nil {
		return nil, err
	}
	err = pairs("--port", o.ports, func(name, value string) error {
		number, err := strconv.ParseInt(value, 10, 32)
		if err != nil {
			return fault.New(errcode.InvalidArgument, "--port %s=%s: the port must be a number", name, value)
		}
		out.Ports = append(out.Ports, &statev1.Port{Name: name, Number: int32(number)})
		return nil
	})
	return out, err
}

func secretFile(path string) ([]byte, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fault.Wrap(err, errcode.InvalidArgument, "read the secret: %v", err)
	}
	return raw, nil
}

// pairs parses NAME=VALUE flags.
func pairs(flag string, given []string, take func(name, value string) error) error {
	for _, pair := range given {
		name, value, found := strings.Cut(pair, "=")
		if !found || name == "" {
			return fault.New(errcode.InvalidArgument, "%s %q must be NAME=VALUE", flag, pair)
		}
		if err := take(name, value); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) workspaceCreate() *cobra.Command {
	var o overrides
	var project, agent, template, file, key string
	var waiting waitFlags
	c := &cobra.Command{
		Use: "create [NAME]", Short: "Create a workspace", Args: atMost("NAME"),
		Long: `Create a workspace and return when it is stored. With --wait, show its states until it is Running. The
command fails with the reason when the workspace is Failed or Error; the system keeps trying.`,
		Example: `  lockstep ws create mine --project acme/platform/web
  lockstep ws create mine --project web --image registry.example/ide:9 --env EDITOR=vi --wait
  lockstep ws create --devfile devfile.yaml`,
		RunE: func(c *cobra.Command, args []string) error {
			if err := waiting.check(c); err != nil {
				return err
			}
			api, err := a.api()
			if err != nil {
				return err
			}
			changes, err := o.message()
			if err != nil {
				return err
			}
			text, err := devfile(file, c.InOrStdin())
			if err != nil {
				return err
			}
			names := a.names(c.Context(), api)
			projectID, err := names.projectID(project)
			if err != nil {
				return err
			}
			agentID, err := names.agentOf(projectID, agent)
			if err != nil {
				return err
			}
			request := &statev1.CreateWorkspaceRequest{
				ProjectId:      projectID,
				AgentId:        agentID,
				Template:       template,
				Devfile:        text,
				Overrides:      changes,
				IdempotencyKey: key,
			}
			if len(args) == 1 {
				request.Name = args[0]
			}
			response, err := api.Workspaces.CreateWorkspace(c.Context(), connect.NewRequest(request))
			if err != nil {
				return err
			}
			for _, warning := range response.Msg.GetWorkspace().GetSpec().GetWarnings() {
				if err := a.note("warning: %s", warning); err != nil {
					return err
				}
			}
			return a.printChanged(c.Context(), api, waiting, response.Msg, response.Msg.GetWorkspace())
		},
	}
	o.flags(c)
	f := c.Flags()
	a.projectFlag(c, &project, "project", "project of the workspace; default: the only one that you can see")
	a.agentFlag(c, &agent, "agent of the cluster; default: the only one of the project")
	f.StringVar(&template, "template", "", "template of the workspace; default: default")
	f.StringVar(&file, "devfile", "",
		"devfile (schema 2.0 to 2.3) instead of a template, - for standard input; the other flags override it")
	f.StringVar(&key, "idempotency-key", "", "key that makes a repeated command return the first workspace")
	waiting.flags(c, "Running")
	return c
}

func (a *app) workspaceUpdate() *cobra.Command {
	var o overrides
	var removedEnv, removedSecretEnv, removedSecretFiles []string
	var changing []string
	var waiting waitFlags
	c := &cobra.Command{
		Use:               "update WORKSPACE",
		Short:             "Change the specification of a workspace, such as its image",
		Args:              exactly("WORKSPACE"),
		ValidArgsFunction: a.completeWorkspaces,
		RunE: func(c *cobra.Command, args []string) error {
			if err := waiting.check(c); err != nil {
				return err
			}
			changes, err := o.message()
			if err != nil {
				return err
			}
			request := &statev1.UpdateWorkspaceRequest{
				Overrides: changes, RemovedEnv: removedEnv,
				RemovedSecretEnv: removedSecretEnv, RemovedSecretFiles: removedSecretFiles,
			}
			if proto.Equal(request, &statev1.UpdateWorkspaceRequest{Overrides: &statev1.WorkspaceOverrides{}}) {
				return usage(c, "nothing to change, want one of %s", strings.Join(changing, ", "))
			}
			request.Workspace = reference(args[0])
			api, err := a.api()
			if err != nil {
				return err
			}
			response, err := api.Workspaces.UpdateWorkspace(c.Context(), connect.NewRequest(request))
			if err != nil {
				return err
			}
			return a.printChanged(c.Context(), api, waiting, response.Msg, response.Msg.GetWorkspace())
		},
	}
	o.flags(c)
	f := c.Flags()
	f.StringArrayVar(&removedEnv, "remove-env", nil, "environment variable to remove; can be repeated")
	f.StringArrayVar(&removedSecretEnv, "remove-secret-env", nil, "secret environment variable to remove; can be repeated")
	f.StringArrayVar(&removedSecretFiles, "remove-secret-file", nil, "secret file to remove; can be repeated")
	f.VisitAll(func(one *pflag.Flag) { changing = append(changing, "--"+one.Name) })
	waiting.flags(c, "Running with the change, or Stopped if it is stopped")
	return c
}

func (a *app) workspaceGet() *cobra.Command {
	return &cobra.Command{
		Use:               "get WORKSPACE",
		Short:             "Show one workspace by name or id",
		Args:              exactly("WORKSPACE"),
		ValidArgsFunction: a.completeWorkspaces,
		RunE: func(c *cobra.Command, args []string) error {
			api, w, err := a.workspace(c.Context(), args[0])
			if err != nil {
				return err
			}
			shown, names := &statev1.GetWorkspaceResponse{Workspace: w}, a.names(c.Context(), api)
			rows := [][]string{
				{"name", w.GetName()},
				{"id", w.GetId()},
				{"actual state", freshOrStale(w)},
				{"desired state", desired(w)},
				{"message", w.GetMessage()},
				{"image", w.GetSpec().GetImage()},
				{"project", names.project(w.GetProjectId())},
				{"agent", names.agent(w.GetAgentId())},
				{"user", names.user(w.GetUserId())},
				{"namespace", w.GetNamespace()},
				{"storage class", cmp.Or(w.GetStorageClass(), "the cluster's default")},
				{"revision", fmt.Sprintf("%d desired, %d applied", w.GetDesiredRevision(), w.GetAppliedRevision())},
				{"created", age(w.GetCreatedAt()) + " ago"},
				{"expires", expiry(w, time.Now())},
				{"shared with", sharedWith(names, w.GetShares())},
			}
			rows = append(rows, idleState(w)...)
			for _, warning := range w.GetSpec().GetWarnings() {
				rows = append(rows, []string{"warning", warning})
			}
			return a.print(shown, table{header: []string{"FIELD", "VALUE"}, rows: rows})
		},
	}
}

func (a *app) workspaceList() *cobra.Command {
	var filter statev1.WorkspaceFilter
	var project, agent, user string
	c := &cobra.Command{
		Use: "list", Short: "List workspaces, newest first", Args: exactly(),
		Long: `List workspaces, newest first. The actual state of a workspace is stale if its agent is silent or
revoked: nothing has been reported since.`,
		RunE: func(c *cobra.Command, _ []string) error {
			api, err := a.api()
			if err != nil {
				return err
			}
			names := a.names(c.Context(), api)
			if filter.ProjectId, err = names.projectID(project); err != nil {
				return err
			}
			if filter.AgentId, err = names.agentID(agent); err != nil {
				return err
			}
			if filter.UserId, err = names.userID(user); err != nil {
				return err
			}
			all := &statev1.ListWorkspacesResponse{}
			for token := ""; ; {
				response, err := api.Workspaces.ListWorkspaces(c.Context(),
					connect.NewRequest(&statev1.ListWorkspacesRequest{Filter: &filter, PageToken: token}))
				if err != nil {
					return err
				}
				all.Workspaces = append(all.Workspaces, response.Msg.GetWorkspaces()...)
				if token = response.Msg.GetNextPageToken(); token == "" {
					return a.print(all, workspaceTable(names, all.GetWorkspaces()...))
				}
			}
		},
	}
	a.projectFlag(c, &project, "project", "only workspaces of this project")
	a.agentFlag(c, &agent, "only workspaces of this agent")
	a.userFlag(c, &user, "only workspaces of this user")
	c.Flags().BoolVar(&filter.IncludeTerminated, "terminated", false, "include terminated workspaces")
	return c
}

// workspaceDesire returns a command that sets a desired state. result is the actual state that follows.
func (a *app) workspaceDesire(use, short string, desired statev1.DesiredState, result string) *cobra.Command {
	var waiting waitFlags
	c := &cobra.Command{
		Use: use + " WORKSPACE", Short: short, Args: exactly("WORKSPACE"), ValidArgsFunction: a.completeWorkspaces,
		RunE: func(c *cobra.Command, args []string) error {
			if err := waiting.check(c); err != nil {
				return err
			}
			api, err := a.api()
			if err != nil {
				return err
			}
			response, err := api.Workspaces.SetDesiredState(c.Context(),
				connect.NewRequest(&statev1.SetDesiredStateRequest{Workspace: reference(args[0]), DesiredState: desired}))
			if err != nil {
				return err
			}
			return a.printChanged(c.Context(), api, waiting, response.Msg, response.Msg.GetWorkspace())
		},
	}
	waiting.flags(c, result)
	return c
}

func (a *app) workspaceDelete() *cobra.Command {
	c := a.workspaceDesire("delete", "Delete a workspace and its volume permanently",
		statev1.DesiredState_DESIRED_STATE_TERMINATED, "Terminated")
	set := c.RunE
	var yes bool
	c.RunE = func(c *cobra.Command, args []string) error {
		if !yes {
			_, w, err := a.workspace(c.Context(), args[0])
			if err != nil {
				return err
			}
			what := fmt.Sprintf("This deletes workspace %q and its volume permanently.", w.GetName())
			if err := a.confirm(c, what, w.GetName()); err != nil {
				return err
			}
		}
		return set(c, args)
	}
	yesFlag(c, &yes)
	return c
}

func (a *app) workspaceEvents() *cobra.Command {
	return &cobra.Command{
		Use:               "events WORKSPACE",
		Short:             "Show the history of one workspace, oldest first",
		Args:              exactly("WORKSPACE"),
		ValidArgsFunction: a.completeWorkspaces,
		RunE: func(c *cobra.Command, args []string) error {
			api, err := a.api()
			if err != nil {
				return err
			}
			all := &statev1.ListWorkspaceEventsResponse{}
			for token := ""; ; {
				response, err := api.Workspaces.ListWorkspaceEvents(c.Context(),
					connect.NewRequest(&statev1.ListWorkspaceEventsRequest{Workspace: reference(args[0]), PageToken: token}))
				if err != nil {
					return err
				}
				all.Events = append(all.Events, response.Msg.GetEvents()...)
				if token = response.Msg.GetNextPageToken(); token == "" {
					break
				}
			}
			t := table{header: []string{"TIME", "EVENT", "DETAILS"}}
			for _, e := range all.GetEvents() {
				t.rows = append(
					t.rows,
					[]string{
						e.GetTime().AsTime().Local().Format("2006-01-02 15:04:05.000"),
						shortType(e.GetType()),
						summary([]byte(e.GetCloudEvent())),
					},
				)
			}
			return a.print(all, t)
		},
	}
}

// workspace returns a client of the API, and a workspace by its name or id.
func (a *app) workspace(ctx context.Context, nameOrID string) (*client.API, *statev1.Workspace, error) {
	api, err := a.api()
	if err != nil {
		return nil, nil, err
	}
	response, err := api.Workspaces.GetWorkspace(ctx,
		connect.NewRequest(&statev1.GetWorkspaceRequest{Workspace: reference(nameOrID)}))
	if err != nil {
		return nil, nil, err
	}
	return api, response.Msg.GetWorkspace(), nil
}

// reference takes a UUID as an id and everything else as a name.
func reference(nameOrID string) *statev1.WorkspaceReference {
	if len(nameOrID) == 36 && strings.Count(nameOrID, "-") == 4 {
		return &statev1.WorkspaceReference{Reference: &statev1.WorkspaceReference_Id{Id: nameOrID}}
	}
	return &statev1.WorkspaceReference{Reference: &statev1.WorkspaceReference_Name{Name: nameOrID}}
}

func workspaceTable(names *names, workspaces ...*statev1.Workspace) table {
	t := table{header: []string{"NAME", "ACTUAL", "DESIRED", "PROJECT", "AGENT", "AGE", "MESSAGE"}}
	for _, w := range workspaces {
		t.rows = append(t.rows, []string{
			w.GetName(),
			freshOrStale(w),
			desired(w),
			names.project(w.GetProjectId()),
			names.agent(w.GetAgentId()),
			age(w.GetCreatedAt()),
			w.GetMessage(),
		})
	}
	return t
}

const actualStatePrefix = "ACTUAL_STATE_"

func actual(w *statev1.Workspace) string {
	return enumName(w.GetActualState().String(), actualStatePrefix)
}

// freshOrStale returns the actual state, and how old it is if the agent does not report.
func freshOrStale(w *statev1.Workspace) string {
	if w.GetStaleSince() == nil {
		return actual(w)
	}
	return fmt.Sprintf("%s (stale for %s)", actual(w), age(w.GetStaleSince()))
}

func desired(w *statev1.Workspace) string {
	return enumName(w.GetDesiredState().String(), "DESIRED_STATE_")
}

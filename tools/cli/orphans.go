package cli

import (
	"bufio"
	"strconv"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

func (a *app) workspaceOrphans() *cobra.Command {
	var agent int64
	c := &cobra.Command{
		Use: "orphans", Short: "List what clusters have of workspaces that are not known", Args: exactly(),
		Long: `List Deployments that bear an agent's label and name a workspace which is not known, such as those of a database that was lost. They are left alone
until you decide: lockstep ws adopt, or lockstep ws delete-orphan.`,
		RunE: func(c *cobra.Command, _ []string) error {
			api, err := a.api()
			if err != nil {
				return err
			}
			all := &statev1.ListOrphansResponse{}
			for token := ""; ; {
				response, err := api.Workspaces.ListOrphans(c.Context(), connect.NewRequest(&statev1.ListOrphansRequest{AgentId: agent, PageToken: token}))
				if err != nil {
					return err
				}
				all.Orphans = append(all.Orphans, response.Msg.GetOrphans()...)
				if token = response.Msg.GetNextPageToken(); token == "" {
					return a.print(all, orphanTable(all.GetOrphans()...))
				}
			}
		},
	}
	c.Flags().Int64Var(&agent, "agent", 0, "only those of this agent")
	return c
}

func (a *app) workspaceAdopt() *cobra.Command {
	var o overrides
	request := &statev1.AdoptOrphanRequest{}
	c := &cobra.Command{
		Use: "adopt AGENT/NAMESPACE/NAME", Short: "Make a workspace of an orphan", Args: exactly("AGENT/NAMESPACE/NAME"),
		Long: `Make a workspace of an orphan: with its name, in its namespace, running or stopped as it is. From then on it is applied and followed like any
other, from a template; without --template, from the template default with the orphan's own image. Its volume must not be made smaller: give --volume where it is larger
than the template's.`,
		Example: `  lockstep ws adopt 7/ws-7-mine/mine --user 9
  lockstep ws adopt 7/ws-7-mine/mine --template go --volume 50Gi`,
		RunE: func(c *cobra.Command, args []string) error {
			api, err := a.api()
			if err != nil {
				return err
			}
			if request.Orphan, err = orphanReference(args[0]); err != nil {
				return err
			}
			if request.Overrides, err = o.message(); err != nil {
				return err
			}
			response, err := api.Workspaces.AdoptOrphan(c.Context(), connect.NewRequest(request))
			if err != nil {
				return err
			}
			return a.print(response.Msg, workspaceTable(response.Msg.GetWorkspace()))
		},
	}
	o.flags(c)
	f := c.Flags()
	f.Int64Var(&request.ProjectId, "project", 0, "project that it belongs to from now on; default: its agent's")
	f.StringVar(&request.Template, "template", "", "template that it is applied from")
	f.Int64Var(&request.UserId, "user", 0, "user whose it is from now on; default: you")
	return c
}

func (a *app) workspaceDeleteOrphan() *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use: "delete-orphan AGENT/NAMESPACE/NAME", Short: "Delete an orphan from its cluster for ever, its volume included", Args: exactly("AGENT/NAMESPACE/NAME"),
		Long: `Delete an orphan from its cluster for ever: what bears its labels, its volume included, and its namespace where that is its own. It goes on in the
background; lockstep ws orphans shows it until it is gone, and why where it cannot be deleted.`,
		RunE: func(c *cobra.Command, args []string) error {
			api, err := a.api()
			if err != nil {
				return err
			}
			orphan, err := orphanReference(args[0])
			if err != nil {
				return err
			}
			if !yes {
				if err := a.confirm(c, "This deletes "+args[0]+" and its volume for ever.", orphan.GetName()); err != nil {
					return err
				}
			}
			response, err := api.Workspaces.DeleteOrphan(c.Context(), connect.NewRequest(&statev1.DeleteOrphanRequest{Orphan: orphan}))
			if err != nil {
				return err
			}
			return a.print(response.Msg, orphanTable(response.Msg.GetOrphan()))
		},
	}
	c.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return c
}

// confirm asks for a word to be typed.
func (a *app) confirm(c *cobra.Command, what, word string) error {
	if err := a.note("%s Type %q to go on:", what, word); err != nil {
		return err
	}
	typed, err := bufio.NewReader(c.InOrStdin()).ReadString('\n')
	if strings.TrimSpace(typed) != word || err != nil && typed == "" {
		return fault.New(errcode.InvalidArgument, "not confirmed, nothing is done; --yes does not ask")
	}
	return nil
}

// orphanReference reads AGENT/NAMESPACE/NAME.
func orphanReference(text string) (*statev1.OrphanReference, error) {
	parts := strings.Split(text, "/")
	if len(parts) != 3 || parts[1] == "" || parts[2] == "" {
		return nil, fault.New(errcode.InvalidArgument, "%q must be AGENT/NAMESPACE/NAME, as `lockstep ws orphans` shows it", text)
	}
	agent, err := number("AGENT", parts[0])
	if err != nil {
		return nil, err
	}
	return &statev1.OrphanReference{AgentId: agent, Namespace: parts[1], Name: parts[2]}, nil
}

func orphanTable(orphans ...*statev1.Orphan) table {
	t := table{header: []string{"ORPHAN", "IMAGE", "WORKSPACE", "SEEN", "STATE", "MESSAGE"}}
	for _, o := range orphans {
		state := "left alone"
		if o.GetDeleting() {
			state = "being deleted"
		}
		ref := o.GetReference()
		t.rows = append(t.rows, []string{
			strconv.FormatInt(ref.GetAgentId(), 10) + "/" + ref.GetNamespace() + "/" + ref.GetName(), o.GetImage(), o.GetWorkspaceId(), age(o.GetSeenAt()), state, o.GetMessage(),
		})
	}
	return t
}

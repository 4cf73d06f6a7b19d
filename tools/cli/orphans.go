package cli

import (
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

func (a *app) workspaceOrphans() *cobra.Command {
	var agent string
	c := &cobra.Command{
		Use:   "orphans",
		Short: "List orphans: Deployments of unknown workspaces",
		Args:  exactly(),
		Long: `List Deployments with the label of an agent and of a workspace that the database does not have, for
example after its loss. They stay unchanged until lockstep ws adopt or lockstep ws delete-orphan.`,
		RunE: func(c *cobra.Command, _ []string) error {
			api, err := a.api()
			if err != nil {
				return err
			}
			names := a.names(c.Context(), api)
			agentID, err := names.agentID(agent)
			if err != nil {
				return err
			}
			all := &statev1.ListOrphansResponse{}
			for token := ""; ; {
				response, err := api.Workspaces.ListOrphans(c.Context(),
					connect.NewRequest(&statev1.ListOrphansRequest{AgentId: agentID, PageToken: token}))
				if err != nil {
					return err
				}
				all.Orphans = append(all.Orphans, response.Msg.GetOrphans()...)
				if token = response.Msg.GetNextPageToken(); token == "" {
					return a.print(all, orphanTable(names, all.GetOrphans()...))
				}
			}
		},
	}
	a.agentFlag(c, &agent, "only orphans of this agent")
	return c
}

func (a *app) workspaceAdopt() *cobra.Command {
	var o overrides
	var project, user string
	request := &statev1.AdoptOrphanRequest{}
	c := &cobra.Command{
		Use:   "adopt AGENT/NAMESPACE/NAME",
		Short: "Make an orphan a workspace",
		Args:  exactly("AGENT/NAMESPACE/NAME"),
		Long: `Make an orphan a workspace with its name, namespace and current state. The workspace uses a template;
without --template, the template default with the image of the orphan. A volume cannot shrink: set --volume when it is
larger than that of the template.`,
		Example: `  lockstep ws adopt east/ws-7-mine/mine --user alice
  lockstep ws adopt east/ws-7-mine/mine --template go --volume 50Gi`,
		RunE: func(c *cobra.Command, args []string) error {
			api, err := a.api()
			if err != nil {
				return err
			}
			names := a.names(c.Context(), api)
			if request.Orphan, err = orphanReference(names, args[0]); err != nil {
				return err
			}
			if request.ProjectId, err = names.projectID(project); err != nil {
				return err
			}
			if request.UserId, err = names.userID(user); err != nil {
				return err
			}
			if request.Overrides, err = o.message(); err != nil {
				return err
			}
			response, err := api.Workspaces.AdoptOrphan(c.Context(), connect.NewRequest(request))
			if err != nil {
				return withoutOrphan(err, args[0])
			}
			return a.print(response.Msg, workspaceTable(names, response.Msg.GetWorkspace()))
		},
	}
	o.flags(c)
	f := c.Flags()
	a.projectFlag(c, &project, "project", "project of the workspace; default: that of the agent")
	f.StringVar(&request.Template, "template", "", "template of the workspace")
	a.userFlag(c, &user, "user of the workspace; default: you")
	return c
}

// withoutOrphan names an orphan that does not exist as the user did.
func withoutOrphan(err error, orphan string) error {
	if f := fault.From(err); f.Code != errcode.NotFound || !strings.HasPrefix(f.Message, "orphan ") {
		return err
	}
	return fault.Wrap(err, errcode.NotFound, "orphan %q does not exist: see `lockstep ws orphans`", orphan)
}

func (a *app) workspaceDeleteOrphan() *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use:   "delete-orphan AGENT/NAMESPACE/NAME",
		Short: "Delete an orphan and its volume permanently",
		Args:  exactly("AGENT/NAMESPACE/NAME"),
		Long: `Delete the objects of an orphan permanently, with its volume, and with its namespace when no other
workspace uses it. The deletion continues in the background; lockstep ws orphans shows the orphan until it is deleted,
and the error if there is one.`,
		RunE: func(c *cobra.Command, args []string) error {
			api, err := a.api()
			if err != nil {
				return err
			}
			names := a.names(c.Context(), api)
			orphan, err := orphanReference(names, args[0])
			if err != nil {
				return err
			}
			if !yes {
				if err := a.confirm(c, "This deletes "+args[0]+" and its volume permanently.", orphan.GetName()); err != nil {
					return err
				}
			}
			response, err := api.Workspaces.DeleteOrphan(c.Context(),
				connect.NewRequest(&statev1.DeleteOrphanRequest{Orphan: orphan}))
			if err != nil {
				return withoutOrphan(err, args[0])
			}
			return a.print(response.Msg, orphanTable(names, response.Msg.GetOrphan()))
		},
	}
	yesFlag(c, &yes)
	return c
}

// orphanReference parses AGENT/NAMESPACE/NAME.
func orphanReference(names *names, text string) (*statev1.OrphanReference, error) {
	parts := strings.Split(text, "/")
	if len(parts) != 3 || parts[0] == "" || parts[1] == "" || parts[2] == "" {
		return nil, fault.New(errcode.InvalidArgument, "%q must be AGENT/NAMESPACE/NAME from `lockstep ws orphans`", text)
	}
	agent, err := names.agentID(parts[0])
	if err != nil {
		return nil, err
	}
	return &statev1.OrphanReference{AgentId: agent, Namespace: parts[1], Name: parts[2]}, nil
}

func orphanTable(names *names, orphans ...*statev1.Orphan) table {
	t := table{header: []string{"ORPHAN", "IMAGE", "WORKSPACE", "LAST SEEN", "STATE", "MESSAGE"}}
	for _, o := range orphans {
		state := "unchanged"
		if o.GetDeleting() {
			state = "deleting"
		}
		ref := o.GetReference()
		t.rows = append(t.rows, []string{
			names.agent(ref.GetAgentId()) + "/" + ref.GetNamespace() + "/" + ref.GetName(),
			o.GetImage(),
			o.GetWorkspaceId(),
			age(o.GetSeenAt()),
			state,
			o.GetMessage(),
		})
	}
	return t
}

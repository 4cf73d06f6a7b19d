package cli

import (
	"strconv"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/client"
)

func (a *app) workspaceShare() *cobra.Command {
	return a.shareCommand("share NAME", "Let another person of the project enter a workspace of yours",
		"port that the person may open; default: everything, terminals and SSH included",
		func(c *cobra.Command, api *client.API, w string, with person, port int32) ([]*statev1.WorkspaceShare, error) {
			r, err := api.Shares.ShareWorkspace(c.Context(), connect.NewRequest(&statev1.ShareWorkspaceRequest{
				Workspace: byName(w), UserId: with.id, Username: with.name, Port: port,
			}))
			if err != nil {
				return nil, err
			}
			return r.Msg.GetShares(), nil
		})
}

func (a *app) workspaceUnshare() *cobra.Command {
	return a.shareCommand("unshare NAME", "End that another person may enter a workspace; open connections end",
		"end the share of this port only; default: all shares of the person",
		func(c *cobra.Command, api *client.API, w string, with person, port int32) ([]*statev1.WorkspaceShare, error) {
			r, err := api.Shares.UnshareWorkspace(c.Context(), connect.NewRequest(&statev1.UnshareWorkspaceRequest{
				Workspace: byName(w), UserId: with.id, Username: with.name, Port: port,
			}))
			if err != nil {
				return nil, err
			}
			return r.Msg.GetShares(), nil
		})
}

// person is an id or a username: developers cannot look other users up.
type person struct {
	id   int64
	name string
}

func parsePerson(text string) person {
	if id, err := strconv.ParseInt(text, 10, 64); err == nil {
		return person{id: id}
	}
	return person{name: text}
}

type changeShares func(
	c *cobra.Command, api *client.API, workspace string, with person, port int32,
) ([]*statev1.WorkspaceShare, error)

// shareCommand is a command that changes the shares of a workspace, and prints those that remain.
func (a *app) shareCommand(use, short, portHelp string, change changeShares) *cobra.Command {
	var with string
	var port int32
	c := &cobra.Command{
		Use: use, Short: short, Args: exactly("NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			api, err := a.api()
			if err != nil {
				return err
			}
			left, err := change(c, api, args[0], parsePerson(with), port)
			if err != nil {
				return err
			}
			names := a.names(c.Context(), api)
			t := table{header: []string{"USER", "PORT"}}
			for _, s := range left {
				t.rows = append(t.rows, []string{names.user(s.GetUserId()), sharedPort(s.GetPort())})
			}
			return a.print(&statev1.ListSharesResponse{Shares: left}, t)
		},
	}
	c.Flags().StringVar(&with, "with", "", "the person: id or username")
	_ = c.MarkFlagRequired("with")
	c.Flags().Int32Var(&port, "port", 0, portHelp)
	return c
}

func byName(name string) *statev1.WorkspaceReference {
	return &statev1.WorkspaceReference{Reference: &statev1.WorkspaceReference_Name{Name: name}}
}

func sharedPort(port int32) string {
	if port == 0 {
		return "everything"
	}
	return strconv.Itoa(int(port))
}

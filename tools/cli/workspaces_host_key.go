package cli

import (
	"github.com/spf13/cobra"

	"lockstep.internal/tools/client"
)

func (a *app) workspaceResetHostKey() *cobra.Command {
	return &cobra.Command{
		Use:               "reset-host-key WORKSPACE",
		Short:             "Let the gateway accept a new host key of a workspace",
		Args:              exactly("WORKSPACE"),
		ValidArgsFunction: a.completeWorkspaces,
		Long: `Let the gateway accept the next host key that your workspace shows. The gateway knows each workspace by the
key of its first connection, which is on the volume of the workspace, in .lockstep. It refuses another key: somebody
may be between the gateway and the workspace. Use this after you have replaced that folder or the volume, and only
then.`,
		RunE: func(c *cobra.Command, args []string) error {
			api, w, err := a.workspace(c.Context(), args[0])
			if err != nil {
				return err
			}
			gateway, err := a.gateway(c.Context(), api)
			if err != nil {
				return err
			}
			defer gateway.Close()
			token, err := api.AccessToken(c.Context(), client.GatewayAudience)
			if err != nil {
				return err
			}
			if err := gateway.ResetHostKey(c.Context(), token.Value, w.GetName()); err != nil {
				return err
			}
			return a.note("the gateway accepts the next host key of workspace %s", w.GetName())
		},
	}
}

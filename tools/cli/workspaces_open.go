package cli

import (
	"github.com/spf13/cobra"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/tools/client"
)

func (a *app) workspaceOpen() *cobra.Command {
	var port uint16
	var noBrowser, editor bool
	c := &cobra.Command{
		Use:               "open WORKSPACE",
		Short:             "Open a terminal, the editor or a port of a workspace in the browser",
		Args:              exactly("WORKSPACE"),
		ValidArgsFunction: a.completeWorkspaces,
		Long: `Print a link that opens a terminal in a workspace, or a port of it, and open it in the browser of this
machine. The link signs you in, works once, and expires after a minute: give it to nobody.

The page of a workspace that does not run has a button that starts it.`,
		Example: `  lockstep ws open mine
  lockstep ws open mine --editor
  lockstep ws open mine --port 3000 --no-browser`,
		RunE: func(c *cobra.Command, args []string) error {
			api, w, err := a.workspace(c.Context(), args[0])
			if err != nil {
				return err
			}
			if editor {
				number := w.GetSpec().GetEditor().GetPort()
				if number == 0 {
					return fault.New(errcode.FailedPrecondition, "workspace %s has no editor: its template or devfile names none",
						w.GetName())
				}
				port = uint16(number)
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
			link, err := gateway.SessionLink(c.Context(), token.Value, w.GetName(), int(port))
			if err != nil {
				return err
			}
			if err := a.write(link + "\n"); err != nil || noBrowser {
				return err
			}
			if err := openBrowser(c.Context(), link); err != nil {
				return a.note("open the link in a browser: %v", public(err))
			}
			return nil
		},
	}
	c.Flags().Uint16Var(&port, "port", 0, "port of the workspace; default: a terminal")
	c.Flags().BoolVar(&editor, "editor", false, "open the editor of the workspace")
	c.MarkFlagsMutuallyExclusive("port", "editor")
	c.Flags().BoolVar(&noBrowser, "no-browser", false, "only print the link")
	return c
}

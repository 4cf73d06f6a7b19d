package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"lockstep.internal/tools/stack"
)

func (a *app) gatewayCommands() *cobra.Command {
	c := &cobra.Command{Use: "gateway", Short: "Set up the gateway, through which people enter workspaces"}
	c.AddCommand(a.gatewayInit())
	return c
}

func (a *app) gatewayInit() *cobra.Command {
	var dir string
	c := &cobra.Command{
		Use:   "init --dir DIR",
		Short: "Create the keys of the gateway",
		Args:  exactly(),
		Long: `Create the keys of the gateway, of which all replicas need the same ones: authority.key
(workspaces.authority_key_file), host.key (ssh.host_key_file), person.key (sign_in.person_key_file) and cookies.key
(sign_in.keys_file). Print the public keys that the state service needs. A second run replaces no file.`,
		RunE: func(*cobra.Command, []string) error {
			keys, created, err := stack.InitGateway(dir)
			if err != nil {
				return err
			}
			if err := a.printTable(createdFiles(created)); err != nil {
				return err
			}
			for _, public := range []struct{ use, file string }{
				{"workspace.ssh_authorities of state", keys.AuthorityFile}, {"gateway.public_keys of state", keys.PersonFile},
			} {
				line, err := stack.PublicKey(public.file)
				if err != nil {
					return err
				}
				if _, err := fmt.Fprintf(a.stdout, "%s: %s\n", public.use, line); err != nil {
					return fmt.Errorf("write the public keys: %w", err)
				}
			}
			return nil
		},
	}
	c.Flags().StringVar(&dir, "dir", "gateway", "folder to write")
	return c
}

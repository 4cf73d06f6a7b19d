package cli

import (
	"github.com/spf13/cobra"

	"lockstep.internal/tools/stack"
)

func (a *app) relayInit() *cobra.Command {
	var dir string
	var hosts []string
	var caFile string
	c := &cobra.Command{
		Use:   "init --dir DIR",
		Short: "Create the shared secret of relays, and a certificate",
		Args:  exactly(),
		Long: `Create the files of relays: relay.secret, which all relays of a cell share and nobody else may have,
and relay.crt with relay.key, a self-signed certificate for systems without a CA. A second run creates missing files
and replaces none.`,
		RunE: func(*cobra.Command, []string) error {
			keys, created, err := stack.InitRelay(dir, hosts...)
			if err != nil {
				return err
			}
			if caFile != "" {
				if created[caFile], err = keys.PublishCA(caFile); err != nil {
					return err
				}
			}
			return a.printTable(createdFiles(created))
		},
	}
	c.Flags().StringVar(&dir, "dir", "relay", "folder to write")
	c.Flags().StringVar(&caFile, "ca-file", "", "write the certificate to this file, too, for callers and agents")
	c.Flags().
		StringSliceVar(&hosts, "host", nil, "names and addresses of relays in the certificate, besides those "+
			"of this machine")
	return c
}

package cli

import (
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"lockstep.internal/tools/stack"
)

func (a *app) relayInit() *cobra.Command {
	var dir string
	var hosts []string
	var caFile string
	c := &cobra.Command{
		Use: "init --dir DIR", Short: "Make the secret that relays share, and a certificate", Args: exactly(),
		Long: `Make the files that relays need: relay.secret, which all relays of a cell share and nobody else has; and relay.crt with relay.key, a certificate that vouches for itself, with
which callers and agents can be sure of their relay where there is no authority of your own. Running it again makes what is missing and replaces nothing.`,
		RunE: func(*cobra.Command, []string) error {
			keys, made, err := stack.InitRelay(dir, hosts...)
			if err != nil {
				return err
			}
			if caFile != "" {
				if made[caFile], err = keys.PublishCA(caFile); err != nil {
					return err
				}
			}
			t := table{header: []string{"FILE", "CHANGE"}}
			for _, path := range slices.Sorted(maps.Keys(made)) {
				change := "kept"
				if made[path] {
					change = "created"
				}
				t.rows = append(t.rows, []string{path, change})
			}
			return a.printTable(t)
		},
	}
	c.Flags().StringVar(&dir, "dir", "relay", "folder to write to")
	c.Flags().StringVar(&caFile, "ca-file", "", "write the certificate to this file, too: for callers and agents, from whom the folder is kept")
	c.Flags().StringSliceVar(&hosts, "host", nil, "names and addresses of relays that the certificate is for, besides this machine's own")
	return c
}

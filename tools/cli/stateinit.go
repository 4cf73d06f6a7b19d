package cli

import (
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"lockstep.internal/tools/stack"
)

func (a *app) stateCommands() *cobra.Command {
	return group("state", "The state service's keys", a.stateInit())
}

func (a *app) stateInit() *cobra.Command {
	var dir string
	c := &cobra.Command{
		Use: "init --dir DIR", Short: "Make the state service's keys and the first administrator's token", Args: exactly(),
		Long: `Make the files that the state service needs: seal.seed and digest.key, with which it keeps secret values, and admin.token, the personal
access token of the user admin. Running it again makes what is missing and replaces nothing. Losing seal.seed loses the secret values: back it up.`,
		RunE: func(*cobra.Command, []string) error {
			_, made, err := stack.InitKeys(dir)
			if err != nil {
				return err
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
	c.Flags().StringVar(&dir, "dir", "state", "folder to write to")
	return c
}

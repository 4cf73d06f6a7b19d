package cli

import (
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"lockstep.internal/tools/stack"
)

func (a *app) stateCommands() *cobra.Command {
	return group("state", "Create the keys of the state service", a.stateInit())
}

func (a *app) stateInit() *cobra.Command {
	var dir, tokenFile string
	c := &cobra.Command{
		Use:   "init --dir DIR",
		Short: "Create the keys of the state service and the token of the first administrator",
		Args:  exactly(),
		Long: `Create the files of the state service: seal.seed and digest.key, which protect secret values, and
admin.token, the personal access token of the user admin. A second run creates missing files and replaces none. Back
up seal.seed: without it all secret values are lost.`,
		RunE: func(*cobra.Command, []string) error {
			keys, created, err := stack.InitKeys(dir)
			if err != nil {
				return err
			}
			if tokenFile != "" {
				if created[tokenFile], err = keys.CopyAdminToken(tokenFile); err != nil {
					return err
				}
			}
			return a.printTable(createdFiles(created))
		},
	}
	c.Flags().StringVar(&dir, "dir", "state", "folder to write")
	c.Flags().StringVar(&tokenFile, "admin-token-file", "", "write the token to this file, too, for the command line")
	return c
}

// createdFiles returns the table of files that a command has created, or kept because they exist.
func createdFiles(created map[string]bool) table {
	t := table{header: []string{"FILE", "CHANGE"}}
	for _, path := range slices.Sorted(maps.Keys(created)) {
		change := "kept"
		if created[path] {
			change = "created"
		}
		t.rows = append(t.rows, []string{path, change})
	}
	return t
}

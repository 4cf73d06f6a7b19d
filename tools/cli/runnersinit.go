package cli

import (
	"github.com/spf13/cobra"

	"lockstep.internal/tools/stack"
)

func (a *app) runnersInit() *cobra.Command {
	var dir string
	c := &cobra.Command{
		Use:   "init --dir DIR",
		Short: "Create the key of the runners service",
		Args:  exactly(),
		Long: `Create signing.seed, the file of the setting signing.key_file: it seals the keys of job tokens in the
database. All replicas of the service runners need the same file. A second run replaces no file. A lost file is no loss
of data: with a new one, the service creates new keys and still accepts the tokens of running jobs.`,
		RunE: func(*cobra.Command, []string) error {
			path, created, err := stack.InitRunners(dir)
			if err != nil {
				return err
			}
			return a.printTable(createdFiles(map[string]bool{path: created}))
		},
	}
	c.Flags().StringVar(&dir, "dir", "runners", "folder to write")
	return c
}

package cli

import (
	"github.com/spf13/cobra"

	"lockstep.internal/tools/stack"
)

func (a *app) admissionInit() *cobra.Command {
	var dir string
	c := &cobra.Command{
		Use:   "init --dir DIR",
		Short: "Create the key of the admission service",
		Args:  exactly(),
		Long: `Create controllers.seed, the file of the setting secrets.key_file: it seals the signing secrets of controllers
in the database. All replicas of the service admission need the same file. A second run replaces no file. Keep a copy
with the backups of the database: without it, each webhook must be created again.`,
		RunE: func(*cobra.Command, []string) error {
			path, created, err := stack.InitAdmission(dir)
			if err != nil {
				return err
			}
			return a.printTable(createdFiles(map[string]bool{path: created}))
		},
	}
	c.Flags().StringVar(&dir, "dir", "admission", "folder to write")
	return c
}

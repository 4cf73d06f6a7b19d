package cli

import (
	"strconv"

	"github.com/spf13/cobra"

	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

func (a *app) projects() *cobra.Command {
	return group("project", "Create and list projects, which have workspaces and agents",
		a.projectCreate(), a.projectList())
}

func (a *app) projectCreate() *cobra.Command {
	return &cobra.Command{
		Use:     "create ORGANIZATION/GROUP/PROJECT",
		Short:   "Create a project with its missing organization and groups",
		Args:    exactly("ORGANIZATION/GROUP/PROJECT"),
		Example: "  lockstep project create acme/platform/workspaces",
		RunE: func(c *cobra.Command, args []string) error {
			api, err := a.api()
			if err != nil {
				return err
			}
			p, err := api.EnsureProject(c.Context(), args[0])
			if err != nil {
				return err
			}
			return a.print(p, projectTable(p))
		},
	}
}

func (a *app) projectList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List your projects, by path", Args: exactly(),
		RunE: func(c *cobra.Command, _ []string) error {
			api, err := a.api()
			if err != nil {
				return err
			}
			found, err := api.Projects(c.Context())
			if err != nil {
				return err
			}
			return a.print(&statev1.ListProjectsResponse{Projects: found}, projectTable(found...))
		},
	}
}

func projectTable(projects ...*statev1.Project) table {
	t := table{header: []string{"ID", "PATH"}}
	for _, p := range projects {
		t.rows = append(t.rows, []string{strconv.FormatInt(p.GetId(), 10), p.GetPath()})
	}
	return t
}

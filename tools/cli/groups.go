package cli

import (
	"strconv"

	"github.com/spf13/cobra"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

func (a *app) groups() *cobra.Command {
	return group("group", "Create and list groups, which have projects", a.groupCreate(), a.groupList())
}

func (a *app) groupCreate() *cobra.Command {
	return &cobra.Command{
		Use: "create ORGANIZATION/GROUP", Short: "Create a group with its missing organization and groups",
		Args:    exactly("ORGANIZATION/GROUP"),
		Example: "  lockstep group create acme/platform\n  lockstep group create acme/platform/backend",
		RunE: func(c *cobra.Command, args []string) error {
			api, err := a.api()
			if err != nil {
				return err
			}
			g, err := api.EnsureGroup(c.Context(), args[0])
			if err != nil {
				return err
			}
			return a.print(g, groupTable([]named{{id: g.GetId(), path: args[0]}}))
		},
	}
}

func (a *app) groupList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the groups that you can see, by path", Args: exactly(),
		RunE: func(c *cobra.Command, _ []string) error {
			api, err := a.api()
			if err != nil {
				return err
			}
			if a.output == outputTable {
				all, err := a.names(c.Context(), api).readGroups()
				if err != nil {
					return err
				}
				return a.printTable(groupTable(all))
			}
			organizations, err := api.Organizations(c.Context())
			if err != nil {
				return err
			}
			all := &statev1.ListGroupsResponse{}
			for _, o := range organizations {
				groups, err := api.Groups(c.Context(), o.GetId())
				if err != nil && !fault.Is(err, errcode.NotFound) { // the caller may read only a part of it
					return err
				}
				all.Groups = append(all.Groups, groups...)
			}
			return a.print(all, table{})
		},
	}
}

func groupTable(groups []named) table {
	t := table{header: []string{"ID", "PATH"}}
	for _, g := range groups {
		t.rows = append(t.rows, []string{strconv.FormatInt(g.id, 10), g.path})
	}
	return t
}

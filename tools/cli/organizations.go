package cli

import (
	"strconv"

	"github.com/spf13/cobra"

	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

func (a *app) organizations() *cobra.Command {
	return group("organization", "List organizations, which have groups", a.organizationList())
}

func (a *app) organizationList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the organizations that you can see, and in which cell each is", Args: exactly(),
		Long: `List the organizations that you can see. The column CELL is empty for an organization in this cell. Nothing
of an organization can be changed here while it is leaving or arriving, and when it is in another cell.`,
		RunE: func(c *cobra.Command, _ []string) error {
			api, err := a.api()
			if err != nil {
				return err
			}
			all, err := api.Organizations(c.Context())
			if err != nil {
				return err
			}
			return a.print(&statev1.ListOrganizationsResponse{Organizations: all}, organizationTable(all))
		},
	}
}

func organizationTable(organizations []*statev1.Organization) table {
	t := table{header: []string{"ID", "NAME", "CELL"}}
	for _, o := range organizations {
		t.rows = append(t.rows, []string{strconv.FormatInt(o.GetId(), 10), o.GetName(), residence(o)})
	}
	return t
}

// residence returns where an organization is, for people.
func residence(o *statev1.Organization) string {
	switch o.GetResidence() {
	case statev1.Residence_RESIDENCE_LEAVING:
		return "leaving to " + o.GetOtherCell()
	case statev1.Residence_RESIDENCE_ARRIVING:
		return "arriving from " + o.GetOtherCell()
	case statev1.Residence_RESIDENCE_AWAY:
		return "in " + o.GetOtherCell()
	default: // in this cell, or a service that does not say it
		return ""
	}
}

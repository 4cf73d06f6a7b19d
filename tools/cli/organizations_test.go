package cli

import (
	"testing"

	"github.com/stretchr/testify/require"

	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

func TestOrganizationsShowTheirCell(t *testing.T) {
	t.Parallel()
	organization := func(id int64, residence statev1.Residence, cell string) *statev1.Organization {
		return &statev1.Organization{Id: id, Name: "acme", Residence: residence, OtherCell: cell}
	}
	got := organizationTable([]*statev1.Organization{
		organization(1, statev1.Residence_RESIDENCE_HERE, ""),
		organization(2, statev1.Residence_RESIDENCE_LEAVING, "eu-2"),
		organization(3, statev1.Residence_RESIDENCE_ARRIVING, "eu-2"),
		organization(4, statev1.Residence_RESIDENCE_AWAY, "eu-2"),
		organization(5, statev1.Residence_RESIDENCE_UNSPECIFIED, ""),
	})
	require.Equal(t, [][]string{
		{"1", "acme", ""},
		{"2", "acme", "leaving to eu-2"},
		{"3", "acme", "arriving from eu-2"},
		{"4", "acme", "in eu-2"},
		{"5", "acme", ""},
	}, got.rows)
}

package directory

import (
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
)

// Residence is where an organization is.
type Residence string

// Residences of an organization.
const (
	// ResidenceHere is in this cell.
	ResidenceHere Residence = "here"
	// ResidenceLeaving is in this cell, and on its way to another one.
	ResidenceLeaving Residence = "leaving"
	// ResidenceArriving is on its way from another cell to this one.
	ResidenceArriving Residence = "arriving"
	// ResidenceAway is in another cell.
	ResidenceAway Residence = "away"
)

// At returns the organization with a residence. cell is the other cell, empty for [ResidenceHere].
func (o Organization) At(residence Residence, cell topology.Cell) Organization {
	o.Residence, o.OtherCell = residence, cell
	return o
}

// Changeable returns nil if this cell may change the organization and what is in it. It returns the fault
// organization_moving during a move, and failed_precondition if the organization is in another cell.
func (o Organization) Changeable() error {
	switch o.Residence {
	case ResidenceLeaving:
		return fault.New(errcode.OrganizationMoving,
			"organization %s (%d) is being moved to cell %s: try again in some minutes", o.Name, o.ID, o.OtherCell)
	case ResidenceArriving:
		return fault.New(errcode.OrganizationMoving,
			"organization %s (%d) is being moved here from cell %s: try again in some minutes", o.Name, o.ID, o.OtherCell)
	case ResidenceAway:
		return fault.New(errcode.FailedPrecondition,
			"organization %s (%d) is in cell %s: use that cell", o.Name, o.ID, o.OtherCell)
	case ResidenceHere:
		return nil
	default:
		return fault.New(errcode.Internal, "organization %s (%d) has the unknown residence %q", o.Name, o.ID, o.Residence)
	}
}

package cellmap

import "lockstep.internal/libs/topology"

// Move is the entry with which a cell announces where an organization went that it had.
type Move struct {
	From         topology.Cell
	Organization int64
	// To is the cell that it was moved to.
	To topology.Cell
	// Number is larger than that of every earlier move of the organization.
	Number int64
}

// maxMoves is how many moves of an organization are followed at most.
const maxMoves = 8

// Follow returns the cell that an organization was moved to, directly or through others, from the cell that its
// requests reach. A cell redirects only what reaches it, and only with a later move than the one before: so no cell
// takes an organization from another one, and nothing goes round in circles. moved is [Map.Moved].
func Follow(
	moved func(from topology.Cell, organization int64) (Move, bool), from topology.Cell, organization int64,
) topology.Cell {
	last := int64(0)
	for range maxMoves {
		next, found := moved(from, organization)
		if !found || next.Number <= last {
			return from
		}
		from, last = next.To, next.Number
	}
	return from
}

package route

import (
	"crypto/ed25519"
	"errors"

	"lockstep.internal/libs/cellmap"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/jobtoken"
	"lockstep.internal/libs/routable"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
)

// Map is the cell map; a [cellmap.Map].
type Map interface {
	// Cell returns a cell, and false when the map has none of this name.
	Cell(name topology.Cell) (cellmap.Cell, bool)
	// CellDeleted reports whether an administrator removed the cell.
	CellDeleted(name topology.Cell) bool
	Organization(id int64) (topology.Cell, bool)
	Moved(from topology.Cell, organization int64) (cellmap.Move, bool)
	Legacy() (topology.Cell, bool)
	Key(cell topology.Cell, id string) (ed25519.PublicKey, bool)
}

// Table decides with the present content of a map. It is safe for concurrent use if the map is.
type Table struct{ cells Map }

// NewTable returns a table.
func NewTable(cells Map) *Table { return &Table{cells} }

// Decide returns the cell that gets a request with the token. current means that the map was read and that nothing is
// known to be missing in it.
//
// Its faults are permission_denied, if it is certain that no cell would accept the token, and unavailable. The cell has
// a name also in faults about a cell in the map.
func (t *Table) Decide(token string, current bool) (cellmap.Cell, error) {
	name, err := t.name(token, current)
	if err != nil {
		return cellmap.Cell{}, err
	}
	cell, found := t.cells.Cell(name)
	if !found {
		return cellmap.Cell{}, t.absent(name, current)
	}
	if cell.State == cellmap.Maintenance {
		return cell, fault.New(errcode.Unavailable, "cell %s is in maintenance: try again later", name)
	}
	return cell, nil
}

// name returns the cell that a token belongs to.
func (t *Table) name(token string, current bool) (topology.Cell, error) {
	if jobtoken.Is(token) {
		return t.ofJob(token, current)
	}
	parsed, err := routable.Parse(token)
	if err != nil {
		return t.legacy(token, current)
	}
	organization, name := parsed.Payload.Organization, parsed.Payload.Cell
	if organization == 0 {
		if name == "" {
			return t.legacy(token, current)
		}
		return name, nil
	}
	if assigned, found := t.cells.Organization(organization); found {
		name = assigned
	}
	if name == "" {
		return t.legacy(token, current)
	}
	return cellmap.Follow(t.cells.Moved, name, organization), nil
}

// ofJob returns the cell that signed the token of a job.
func (t *Table) ofJob(token string, current bool) (topology.Cell, error) {
	var claimed topology.Cell
	verifier := jobtoken.NewVerifier(func(cell topology.Cell, keyID string) (ed25519.PublicKey, bool) {
		claimed = cell
		return t.cells.Key(cell, keyID)
	}, nil)
	claims, err := verifier.Authentic(token)
	switch {
	case err == nil:
		return claims.Cell, nil
	case errors.Is(err, jobtoken.ErrForged):
		return "", fault.Wrap(err, errcode.PermissionDenied, "the signature of the job's token is wrong")
	case !errors.Is(err, jobtoken.ErrUnknownKey) || claimed == "":
		return t.legacy(token, current)
	}
	if _, found := t.cells.Cell(claimed); !found {
		return "", t.absent(claimed, current)
	}
	return "", uncertain(current,
		fault.Wrap(err, errcode.PermissionDenied, "cell %s has no key for the job's token", claimed))
}

// legacy returns the cell of tokens that name none.
func (t *Table) legacy(token string, current bool) (topology.Cell, error) {
	if name, found := t.cells.Legacy(); found {
		return name, nil
	}
	if token == "" {
		return "", uncertain(current, fault.New(errcode.PermissionDenied,
			"the request has no token: send RUNNER-TOKEN, JOB-TOKEN or PRIVATE-TOKEN"))
	}
	return "", uncertain(current, fault.New(errcode.PermissionDenied,
		"the token is unknown: check that it was copied completely"))
}

// absent is the error about a cell that the map does not have. A map that was lost gets its cells back after a while.
func (t *Table) absent(name topology.Cell, current bool) error {
	return uncertain(current && t.cells.CellDeleted(name),
		fault.New(errcode.PermissionDenied, "cell %s does not exist any more", name))
}

// uncertain returns the refusal if it is certain.
func uncertain(certain bool, refusal *fault.Error) error {
	if certain {
		return refusal
	}
	return fault.Wrap(refusal, errcode.Unavailable, "the cell of the token is not known at the moment: try again later")
}

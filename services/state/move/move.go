package move

import (
	"regexp"
	"slices"
	"time"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/directory"
)

// Direction is the side of a move that a cell is.
type Direction string

// Directions.
const (
	// DirectionNone is that of a move that was canceled before it began.
	DirectionNone Direction = ""
	// DirectionOut is the side of the source.
	DirectionOut Direction = "out"
	// DirectionIn is the side of the target.
	DirectionIn Direction = "in"
)

// Outcome is how a move ended.
type Outcome string

// Outcomes.
const (
	// OutcomeNone means that the move goes on.
	OutcomeNone     Outcome = ""
	OutcomeMoved    Outcome = "moved"
	OutcomeCanceled Outcome = "canceled"
)

// Move is what a cell knows of a move.
type Move struct {
	// ID was chosen by the mover.
	ID             string
	OrganizationID int64
	Direction      Direction
	// OtherCell is the target at the source, and the source at the target.
	OtherCell topology.Cell
	Outcome   Outcome
	BegunAt   time.Time
	// EndedAt is zero while the move goes on.
	EndedAt time.Time
	// Imported is what an import has stored.
	Imported Imported
}

// Imported is what an import has stored.
type Imported struct {
	// Records of the import, and how many tokens of them were left out.
	Records       int `json:"records"`
	TokensLeftOut int `json:"tokens_left_out"`
	// AwayIn is the cell in which the organization was, if it has come back.
	AwayIn topology.Cell `json:"away_in,omitempty"`
	// Groups, Projects, Users and Memberships that the import created. It created the organization, too, if AwayIn is
	// empty.
	Groups      []int64                `json:"groups,omitempty"`
	Projects    []int64                `json:"projects,omitempty"`
	Users       []int64                `json:"users,omitempty"`
	Memberships []directory.Membership `json:"memberships,omitempty"`
	// CreatedTokens are those that the import created. Tokens also has those that the cell had.
	CreatedTokens []int64 `json:"created_tokens,omitempty"`
	Tokens        []int64 `json:"tokens,omitempty"`
}

var idForm = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]{0,62}[A-Za-z0-9])?$`)

// Validate returns the fault invalid_argument if a request for the move, in the cell own, is malformed.
func (m Move) Validate(own topology.Cell) error {
	if err := ValidateID(m.ID, m.OrganizationID); err != nil {
		return err
	}
	field := "to_cell"
	if m.Direction == DirectionIn {
		field = "from_cell"
	}
	if err := topology.ValidateCell(string(m.OtherCell)); err != nil {
		return fault.Wrap(err, errcode.InvalidArgument, "%s: %v", field, err).With("field", field)
	}
	if m.OtherCell == own {
		return fault.New(errcode.InvalidArgument, "%s %s is this cell: give another one", field, own).With("field", field)
	}
	return nil
}

// ValidateID returns the fault invalid_argument if the id of a move or of its organization is malformed.
func ValidateID(id string, organizationID int64) error {
	if organizationID <= 0 {
		return fault.New(errcode.InvalidArgument, "organization_id is missing: give a positive id").
			With("field", "organization_id")
	}
	if !idForm.MatchString(id) {
		return fault.New(errcode.InvalidArgument, "move_id must be 1 to 64 characters of A-Z, a-z, 0-9 and inner -").
			With("field", "move_id")
	}
	return nil
}

// Repeats returns nil if a request for the move repeats the one that the cell knows. Otherwise it returns the fault
// failed_precondition.
func (m Move) Repeats(known Move) error {
	switch {
	case known.Outcome == OutcomeCanceled:
		return fault.New(errcode.FailedPrecondition, "move %s was canceled: begin a new one", m.ID)
	case known.OrganizationID != m.OrganizationID || known.Direction != m.Direction || known.OtherCell != m.OtherCell:
		return fault.New(errcode.FailedPrecondition,
			"move %s is another one, of organization %d: choose another move_id", m.ID, known.OrganizationID)
	default:
		return nil
	}
}

// Contents is what an organization has that cannot move.
type Contents struct{ Agents, Workspaces int }

// Begin returns the organization after the begin of its move to another cell. It returns the fault failed_precondition
// if the organization cannot move.
func Begin(o directory.Organization, to topology.Cell, contents Contents) (directory.Organization, error) {
	if err := o.Changeable(); err != nil {
		return o, err
	}
	if contents != (Contents{}) {
		return o, fault.New(errcode.FailedPrecondition,
			"organization %s (%d) has %d agents and %d workspaces, which cannot move: terminate the workspaces and revoke "+
				"the agents first (lockstep ws list, ws terminate, agent revoke)", o.Name, o.ID,
			contents.Agents, contents.Workspaces)
	}
	return o.At(directory.ResidenceLeaving, to), nil
}

// Exportable returns nil if the organization may be exported for the move.
func (m Move) Exportable(organizationID int64) error {
	if m.Direction != DirectionOut || m.OrganizationID != organizationID {
		return fault.New(errcode.FailedPrecondition, "organization %d has no move %s from this cell: begin it first",
			organizationID, m.ID)
	}
	if m.Outcome != OutcomeNone {
		return fault.New(errcode.FailedPrecondition, "move %s has ended: %s", m.ID, m.Outcome)
	}
	return nil
}

// End returns the move after its end. It returns false if it has ended so before.
func (m Move) End(organizationID int64, outcome Outcome, at time.Time) (Move, bool, error) {
	switch {
	case m.OrganizationID != organizationID:
		return m, false, fault.New(errcode.FailedPrecondition, "move %s is one of organization %d: end that one",
			m.ID, m.OrganizationID)
	case m.Outcome == outcome:
		return m, false, nil
	case m.Outcome != OutcomeNone:
		return m, false, fault.New(errcode.FailedPrecondition, "move %s of organization %d has ended: %s, not %s",
			m.ID, m.OrganizationID, m.Outcome, outcome)
	}
	m.Outcome, m.EndedAt = outcome, at
	return m, true, nil
}

// Settle returns the organization after the end of its move.
func (m Move) Settle(o directory.Organization) directory.Organization {
	moved := m.Outcome == OutcomeMoved
	switch {
	case m.Direction == DirectionOut && moved:
		return o.At(directory.ResidenceAway, m.OtherCell)
	case m.Direction == DirectionIn && !moved && m.Imported.AwayIn != "":
		return o.At(directory.ResidenceAway, m.Imported.AwayIn)
	default:
		return o.At(directory.ResidenceHere, "")
	}
}

// AccessChanges are the tokens that were revoked and the users that were blocked in the source during a move.
type AccessChanges struct{ RevokedTokens, BlockedUsers []int64 }

// Accept returns the changes that concern what the import has stored: the source decides on nothing else here.
func (m Move) Accept(c AccessChanges) AccessChanges {
	within := func(ids, known []int64) []int64 {
		accepted := map[int64]bool{}
		for _, id := range known {
			accepted[id] = true
		}
		return slices.DeleteFunc(slices.Clone(ids), func(id int64) bool { return !accepted[id] })
	}
	return AccessChanges{within(c.RevokedTokens, m.Imported.Tokens), within(c.BlockedUsers, m.Imported.Users)}
}

// Compact returns an ended move without what only its end needed.
func (m Move) Compact() Move {
	m.Imported = Imported{Records: m.Imported.Records, TokensLeftOut: m.Imported.TokensLeftOut}
	return m
}

// RemovesOrganization reports whether the end of the move removes the organization, since the import created it.
func (m Move) RemovesOrganization() bool {
	return m.Direction == DirectionIn && m.Outcome == OutcomeCanceled && m.Imported.AwayIn == ""
}

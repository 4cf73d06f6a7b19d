package move_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/directory"
	"lockstep.internal/services/state/move"
)

func codeOf(err error) fault.Code { return fault.CodeOf(err) }

func TestOrganizationLeavesIfNothingStaysBehind(t *testing.T) {
	t.Parallel()
	o := directory.Organization{ID: 7, Name: "acme", Residence: directory.ResidenceHere}
	got, err := move.Begin(o, "eu-2", move.Contents{})
	require.NoError(t, err)
	require.Equal(t, o.At(directory.ResidenceLeaving, "eu-2"), got)
	for name, c := range map[string]struct {
		o        directory.Organization
		contents move.Contents
		code     fault.Code
		message  string
	}{
		"agents": {o, move.Contents{Agents: 2}, errcode.FailedPrecondition, "has 2 agents and 0 workspaces, which"},
		"workspaces": {
			o, move.Contents{Workspaces: 3}, errcode.FailedPrecondition, "has 0 agents and 3 workspaces, which cannot move",
		},
		"leaving": {
			o.At(directory.ResidenceLeaving, "eu-3"),
			move.Contents{},
			errcode.OrganizationMoving,
			"organization acme (7) is being moved to cell eu-3: try again in some minutes",
		},
		"arriving": {
			o.At(directory.ResidenceArriving, "eu-3"),
			move.Contents{},
			errcode.OrganizationMoving,
			"organization acme (7) is being moved here from cell eu-3: try again in some minutes",
		},
		"away": {
			o.At(directory.ResidenceAway, "eu-3"),
			move.Contents{},
			errcode.FailedPrecondition,
			"organization acme (7) is in cell eu-3: use that cell",
		},
		"unknown": {o.At("lost", ""), move.Contents{}, errcode.Internal, `unknown residence "lost"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			unchanged, err := move.Begin(c.o, "eu-2", c.contents)
			require.Equal(t, c.code, codeOf(err))
			require.ErrorContains(t, err, c.message)
			require.Equal(t, c.o, unchanged)
		})
	}
}

func TestEndDecidesWhereTheOrganizationIs(t *testing.T) {
	t.Parallel()
	at := now().Add(time.Hour)
	first, back := move.Imported{}, move.Imported{AwayIn: "us-1"}
	for name, c := range map[string]struct {
		direction move.Direction
		imported  move.Imported
		outcome   move.Outcome
		residence directory.Residence
		cell      topology.Cell
		removed   bool
	}{
		"left":                     {move.DirectionOut, first, move.OutcomeMoved, directory.ResidenceAway, "eu-2", false},
		"stayed":                   {move.DirectionOut, first, move.OutcomeCanceled, directory.ResidenceHere, "", false},
		"arrived":                  {move.DirectionIn, first, move.OutcomeMoved, directory.ResidenceHere, "", false},
		"came back":                {move.DirectionIn, back, move.OutcomeMoved, directory.ResidenceHere, "", false},
		"did not arrive":           {move.DirectionIn, first, move.OutcomeCanceled, directory.ResidenceHere, "", true},
		"did not come back":        {move.DirectionIn, back, move.OutcomeCanceled, directory.ResidenceAway, "us-1", false},
		"canceled before it began": {move.DirectionNone, first, move.OutcomeCanceled, directory.ResidenceHere, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := move.Move{ID: "m1", OrganizationID: 7, Direction: c.direction, OtherCell: "eu-2", Imported: c.imported}
			ended, ends, err := m.End(7, c.outcome, at)
			require.NoError(t, err)
			require.True(t, ends)
			require.Equal(t, at, ended.EndedAt)
			o := directory.Organization{ID: 7, Name: "acme"}
			require.Equal(t, o.At(c.residence, c.cell), ended.Settle(o.At(directory.ResidenceLeaving, "eu-2")))
			require.Equal(t, c.removed, ended.RemovesOrganization())

			again, ends, err := ended.End(7, c.outcome, at.Add(time.Hour))
			require.NoError(t, err)
			require.False(t, ends)
			require.Equal(t, ended, again)
			other := move.OutcomeMoved
			if c.outcome == other {
				other = move.OutcomeCanceled
			}
			_, _, err = ended.End(7, other, at)
			requireFault(t, err, errcode.FailedPrecondition, "has ended: "+string(c.outcome))
			_, _, err = m.End(8, c.outcome, at)
			requireFault(t, err, errcode.FailedPrecondition, "is one of organization 7")
		})
	}
}

func TestRepeatedRequestIsTheSameMove(t *testing.T) {
	t.Parallel()
	m := move.Move{ID: "m1", OrganizationID: 7, Direction: move.DirectionOut, OtherCell: "eu-2"}
	require.NoError(t, m.Repeats(m))
	ended := m
	ended.Outcome = move.OutcomeMoved
	require.NoError(t, m.Repeats(ended))
	ended.Outcome = move.OutcomeCanceled
	requireFault(t, m.Repeats(ended), errcode.FailedPrecondition, "was canceled")
	for _, change := range []func(m *move.Move){
		func(m *move.Move) { m.OrganizationID = 8 }, func(m *move.Move) { m.OtherCell = "eu-3" },
		func(m *move.Move) { m.Direction = move.DirectionIn },
	} {
		other := m
		change(&other)
		requireFault(t, m.Repeats(other), errcode.FailedPrecondition, "is another one")
	}
	require.NoError(t, m.Exportable(7))
	requireFault(t, m.Exportable(8), errcode.FailedPrecondition, "has no move m1")
	requireFault(t, ended.Exportable(7), errcode.FailedPrecondition, "has ended: canceled")
}

func TestRequestForAMoveIsValidated(t *testing.T) {
	t.Parallel()
	valid := move.Move{ID: "m1", OrganizationID: 7, Direction: move.DirectionOut, OtherCell: "eu-2"}
	require.NoError(t, valid.Validate("eu-1"))
	for message, change := range map[string]func(m *move.Move){
		"organization_id is missing": func(m *move.Move) { m.OrganizationID = 0 },
		"move_id must be":            func(m *move.Move) { m.ID = "a b" },
		"to_cell: ":                  func(m *move.Move) { m.OtherCell = "E.U" },
		"to_cell eu-1 is this cell":  func(m *move.Move) { m.OtherCell = "eu-1" },
		"from_cell: ":                func(m *move.Move) { m.Direction, m.OtherCell = move.DirectionIn, "" },
	} {
		m := valid
		change(&m)
		requireFault(t, m.Validate("eu-1"), errcode.InvalidArgument, message)
	}
}

func TestSourceChangesOnlyTheAccessThatItImported(t *testing.T) {
	t.Parallel()
	m := move.Move{Imported: move.Imported{Tokens: []int64{1, 2}, Users: []int64{3}}}
	require.Equal(t, move.AccessChanges{RevokedTokens: []int64{2}, BlockedUsers: []int64{3}},
		m.Accept(move.AccessChanges{RevokedTokens: []int64{2, 9}, BlockedUsers: []int64{3, 9}}))
}

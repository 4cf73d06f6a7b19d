package postgres_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/idrange"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/directory"
	"lockstep.internal/services/state/move"
	"lockstep.internal/services/state/postgres"
)

func TestOrganizationMovesAndComesBack(t *testing.T) {
	t.Parallel()
	a, b := newCell(t, 0), newCell(t, 1)
	o := a.organization("acme")
	before := a.rows()
	require.NoError(t, a.move("m1", o.Organization, b, 1))
	a.requireChangeable(o, errcode.OrganizationMoving)
	b.requireChangeable(o, errcode.OrganizationMoving)
	require.Equal(t, o.At(directory.ResidenceLeaving, "eu-2"), a.residence(o.ID))
	require.Equal(t, o.At(directory.ResidenceArriving, "eu-1"), b.residence(o.ID))
	a.end("m1", o.Organization, b, move.OutcomeMoved)
	a.requireChangeable(o, errcode.FailedPrecondition)
	require.Equal(t, o.At(directory.ResidenceAway, "eu-2"), a.residence(o.ID))
	require.Equal(t, before, b.rows(), "everything is in the target")
	u, err := b.owner("acme-laptop")
	require.NoError(t, err)
	require.Equal(t, o.ada, u)

	// In the target, ben leaves, cleo comes, and ada replaces her token.
	b.requireChangeable(o, "")
	_, err = b.pool.Exec(t.Context(), `update agents set revoked_at = now()`)
	require.NoError(t, err)
	cleo, err := b.directory().CreateUser(t.Context(), "cleo", false)
	require.NoError(t, err)
	b.put(cleo.ID, directory.ScopeGroup, o.group.ID, directory.RoleMaintainer)
	b.newToken(cleo.ID, "cleos")
	b.newToken(o.ada.ID, "second")
	_, err = b.directory().RevokeToken(t.Context(), o.token, postgres.Spare{})
	require.NoError(t, err)
	a.outbox()
	require.NoError(t, b.move("m2", o.Organization, a, 0))
	b.end("m2", o.Organization, a, move.OutcomeMoved)
	a.requireChangeable(o, "")
	b.requireChangeable(o, errcode.FailedPrecondition)
	for _, token := range []string{"cleos", "second"} {
		_, err := a.owner(token)
		require.NoError(t, err, token)
	}
	_, err = a.owner("acme-laptop")
	require.Equal(t, errcode.NotFound, fault.CodeOf(err), "it was revoked in the other cell")
	role, err := a.directory().Role(t.Context(), cleo.ID, directory.Scope{Kind: directory.ScopeProject, ID: o.project.ID})
	require.NoError(t, err)
	require.Equal(t, directory.RoleMaintainer, role)
}

func TestImportIsPublishedLikeACreation(t *testing.T) {
	t.Parallel()
	a, b := newCell(t, 0), newCell(t, 1)
	o := a.organization("acme")
	require.NoError(t, a.move("m1", o.Organization, b, 1))
	created := map[string]map[string]any{}
	for _, m := range a.outbox() {
		created[m.Subject] = m.Data
	}
	imported := b.outbox()
	for _, m := range imported {
		require.Equal(t, created[m.Subject], m.Data, m.Subject)
	}
	require.Len(t, imported, len(created))

	// A cancellation is published as the removal of each.
	a.end("m1", o.Organization, b, move.OutcomeCanceled)
	removed := b.outbox()
	require.Len(t, removed, len(imported))
	for _, m := range removed {
		require.Equal(t, true, m.Data["deleted"], m.Subject)
	}
	require.Empty(t, a.outbox())
	// A restored stream may have what was removed.
	require.NoError(t, b.tx(func(tx pgx.Tx) error { return b.directory().RepublishAll(t.Context(), tx) }))
	again := b.outbox()
	require.Len(t, again, len(imported))
	for _, m := range again {
		require.Equal(t, true, m.Data["deleted"], m.Subject)
	}
	// What comes again is published after its removal.
	require.NoError(t, a.move("m2", o.Organization, b, 1))
	b.outbox()
	require.NoError(t, b.tx(func(tx pgx.Tx) error { return b.directory().RepublishAll(t.Context(), tx) }))
	last := map[string]map[string]any{}
	for _, m := range b.outbox() {
		last[m.Subject] = m.Data
	}
	require.Equal(t, created, last)
}

func TestCanceledMoveLeavesBothCellsAsTheyWere(t *testing.T) {
	t.Parallel()
	a, b := newCell(t, 0), newCell(t, 1)
	o := a.organization("acme")
	b.organization("other")
	source, target := a.rows(), b.rows()
	require.NoError(t, a.move("m1", o.Organization, b, 1))
	require.NotEqual(t, target, b.rows())
	a.end("m1", o.Organization, b, move.OutcomeCanceled)
	require.Equal(t, source, a.rows())
	require.Equal(t, target, b.rows())
	a.requireChangeable(o, "")
	_, err := b.owner("acme-laptop")
	require.Equal(t, errcode.NotFound, fault.CodeOf(err))
}

func TestCanceledReturnLeavesTheOrganizationAway(t *testing.T) {
	t.Parallel()
	a, b := newCell(t, 0), newCell(t, 1)
	o := a.organization("acme")
	require.NoError(t, a.move("m1", o.Organization, b, 1))
	a.end("m1", o.Organization, b, move.OutcomeMoved)
	away := a.rows()
	cleo, err := b.directory().CreateUser(t.Context(), "cleo", false)
	require.NoError(t, err)
	b.put(cleo.ID, directory.ScopeOrganization, o.ID, directory.RoleReader)
	require.NoError(t, b.move("m2", o.Organization, a, 0))
	require.NotEqual(t, away, a.rows())
	b.end("m2", o.Organization, a, move.OutcomeCanceled)
	require.Equal(t, away, a.rows())
	b.requireChangeable(o, "")
}

func TestUserWithANewRoleElsewhereSurvivesACancellation(t *testing.T) {
	t.Parallel()
	a, b := newCell(t, 0), newCell(t, 1)
	o, other := a.organization("acme"), b.organization("other")
	require.NoError(t, a.move("m1", o.Organization, b, 1))
	b.put(o.ada.ID, directory.ScopeProject, other.project.ID, directory.RoleReader)
	a.end("m1", o.Organization, b, move.OutcomeCanceled)
	u, err := b.owner("acme-laptop")
	require.NoError(t, err)
	require.Equal(t, o.ada, u)
	found, err := b.directory().Memberships(t.Context(), o.ada.ID, directory.Scope{})
	require.NoError(t, err)
	require.Len(t, found, 1)
}

// A mover whose request got no answer cancels the move. The request may arrive later.
func TestCanceledMoveCannotBeginLater(t *testing.T) {
	t.Parallel()
	a, b := newCell(t, 0), newCell(t, 1)
	o := a.organization("acme")
	a.begin("m1", o.Organization)
	content, err := a.directory().ExportOrganization(t.Context(), o.ID, "m1")
	require.NoError(t, err)
	a.end("m1", o.Organization, b, move.OutcomeCanceled)
	before := b.rows()
	_, err = b.directory().ImportOrganization(t.Context(), arriving("m1", o.Organization), content, idrange.OfCell(1))
	require.Equal(t, errcode.FailedPrecondition, fault.CodeOf(err), "%v", err)
	_, err = a.directory().BeginMove(t.Context(), leaving("m1", o.Organization))
	require.Equal(t, errcode.FailedPrecondition, fault.CodeOf(err), "%v", err)
	_, err = a.directory().ExportOrganization(t.Context(), o.ID, "m1")
	require.Equal(t, errcode.FailedPrecondition, fault.CodeOf(err), "%v", err)
	require.Equal(t, before, b.rows())
	_, _, err = b.directory().EndMove(t.Context(), o.ID, "m9", move.OutcomeMoved, move.AccessChanges{})
	require.Equal(t, errcode.NotFound, fault.CodeOf(err), "%v", err)
	_, err = b.directory().Move(t.Context(), o.ID)
	require.Equal(t, errcode.NotFound, fault.CodeOf(err), "it did not begin here")
}

func TestRepeatedRequestsOfAMoveHaveOneEffect(t *testing.T) {
	t.Parallel()
	a, b := newCell(t, 0), newCell(t, 1)
	o := a.organization("acme")
	a.begin("m1", o.Organization)
	a.begin("m1", o.Organization)
	_, err := a.directory().BeginMove(t.Context(), leaving("m2", o.Organization))
	require.Equal(t, errcode.OrganizationMoving, fault.CodeOf(err), "%v", err)
	content, err := a.directory().ExportOrganization(t.Context(), o.ID, "m1")
	require.NoError(t, err)
	m := arriving("m1", o.Organization)
	first, err := b.directory().ImportOrganization(t.Context(), m, content, idrange.OfCell(1))
	require.NoError(t, err)
	rows := b.rows()
	b.outbox()
	again, err := b.directory().ImportOrganization(t.Context(), m, content, idrange.OfCell(1))
	require.NoError(t, err)
	require.Equal(t, first.Imported, again.Imported)
	require.Equal(t, rows, b.rows())
	require.Empty(t, b.outbox())
	_, err = b.directory().ImportOrganization(t.Context(), arriving("m2", o.Organization), content, idrange.OfCell(1))
	require.Equal(t, errcode.OrganizationMoving, fault.CodeOf(err), "%v", err)
	found, err := b.directory().Move(t.Context(), o.ID)
	require.NoError(t, err)
	require.Equal(t, "m1", found.ID)
}

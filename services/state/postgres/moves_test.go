package postgres_test

import (
	"crypto/sha256"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/admin"
	"lockstep.internal/services/state/agent"
	"lockstep.internal/services/state/directory"
	"lockstep.internal/services/state/move"
	"lockstep.internal/services/state/postgres"
	"lockstep.internal/services/state/workspace"
)

// newCell returns a cell with a number, without agents and organizations.
func newCell(t *testing.T, number int64) *fixture {
	t.Helper()
	b := newFixture(t)
	for _, sql := range []string{
		`delete from agents`, `delete from projects`, `delete from groups`,
		`delete from organizations`, `delete from users`,
	} {
		_, err := b.pool.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	require.NoError(t, b.directory().ReserveIDs(t.Context(), number))
	return b
}

// organization is one with a member and a token of each.
type organization struct {
	directory.Organization

	group    directory.Group
	project  directory.Project
	ada, ben directory.User
	token    directory.Token
}

func (b *fixture) organization(name string) organization {
	b.t.Helper()
	d, ctx := b.directory(), b.t.Context()
	var o organization
	var err error
	o.Organization, err = d.CreateOrganization(ctx, name)
	require.NoError(b.t, err)
	o.group, err = d.CreateGroup(ctx, directory.Group{OrganizationID: o.ID, Name: "platform"})
	require.NoError(b.t, err)
	o.project, err = d.CreateProject(ctx, o.group.ID, "shop")
	require.NoError(b.t, err)
	template := workspace.Template{ProjectID: o.project.ID, Name: "go", Spec: workspace.Spec{Image: "go:1"}}
	_, err = d.PutTemplate(ctx, template)
	require.NoError(b.t, err)
	o.ada, err = d.CreateUser(ctx, name+"-ada", false)
	require.NoError(b.t, err)
	o.ben, err = d.CreateUser(ctx, name+"-ben", false)
	require.NoError(b.t, err)
	b.put(o.ada.ID, directory.ScopeOrganization, o.ID, directory.RoleOwner)
	b.put(o.ben.ID, directory.ScopeProject, o.project.ID, directory.RoleReader)
	o.token = b.newToken(o.ada.ID, name+"-laptop")
	return o
}

func (b *fixture) put(user int64, kind directory.ScopeKind, id int64, role directory.Role) {
	b.t.Helper()
	require.NoError(b.t, b.directory().PutMembership(b.t.Context(), directory.Membership{
		UserID: user, Scope: directory.Scope{Kind: kind, ID: id}, Role: role,
	}))
}

func (b *fixture) newToken(user int64, name string) directory.Token {
	b.t.Helper()
	hash := sha256.Sum256([]byte(name))
	token, err := b.directory().CreateToken(b.t.Context(),
		directory.Token{UserID: user, Name: name, Scope: access.ScopeWrite}, hash[:], tokenLimit)
	require.NoError(b.t, err)
	return token
}

// owner returns the user whose token has the name.
func (b *fixture) owner(token string) (directory.User, error) {
	b.t.Helper()
	hash := sha256.Sum256([]byte(token))
	u, _, err := b.directory().UserByToken(b.t.Context(), hash[:])
	return u, err
}

func (b *fixture) begin(id string, o directory.Organization) {
	b.t.Helper()
	_, err := b.directory().BeginMove(b.t.Context(), leaving(id, o))
	require.NoError(b.t, err)
}

func leaving(id string, o directory.Organization) move.Move {
	return move.Move{ID: id, OrganizationID: o.ID, Direction: move.DirectionOut, OtherCell: "eu-2"}
}

func arriving(id string, o directory.Organization) move.Move {
	return move.Move{ID: id, OrganizationID: o.ID, Direction: move.DirectionIn, OtherCell: "eu-1"}
}

// move exports an organization and imports it into another cell with a number.
func (b *fixture) move(id string, o directory.Organization, to *fixture, number int64) error {
	b.t.Helper()
	b.begin(id, o)
	content, err := b.directory().ExportOrganization(b.t.Context(), o.ID, id)
	require.NoError(b.t, err)
	_, err = to.directory().ImportOrganization(b.t.Context(), arriving(id, o), content, directory.CellIDs(number))
	return err
}

// end ends a move in both cells.
func (b *fixture) end(id string, o directory.Organization, to *fixture, outcome move.Outcome) {
	b.t.Helper()
	for range 2 { // it can be repeated
		_, changes, err := b.directory().EndMove(b.t.Context(), o.ID, id, outcome, move.AccessChanges{})
		require.NoError(b.t, err)
		_, _, err = to.directory().EndMove(b.t.Context(), o.ID, id, outcome, changes)
		require.NoError(b.t, err)
	}
}

// requireChangeable changes everything of an organization, or requires that each change is refused with a code.
func (b *fixture) requireChangeable(o organization, code fault.Code) {
	b.t.Helper()
	d, ctx := b.directory(), b.t.Context()
	name := "n" + directory.Key(time.Now().UnixNano())
	if code == "" {
		b.put(o.ben.ID, directory.ScopeProject, o.project.ID, directory.RoleReader)
	}
	for what, change := range map[string]func() error{
		"group": func() error {
			_, err := d.CreateGroup(ctx, directory.Group{OrganizationID: o.ID, Name: name})
			return err
		},
		"group in a group": func() error {
			_, err := d.CreateGroup(ctx, directory.Group{ParentID: o.group.ID, Name: name})
			return err
		},
		"project":    func() error { _, err := d.CreateProject(ctx, o.group.ID, name); return err },
		"membership": func() error { return d.PutMembership(ctx, o.member(o.ben.ID)) },
		"end of a membership": func() error {
			return d.DeleteMembership(ctx, o.ben.ID, directory.Scope{Kind: directory.ScopeProject, ID: o.project.ID})
		},
		"template": func() error {
			_, err := d.PutTemplate(ctx, workspace.Template{ProjectID: o.project.ID, Name: name})
			return err
		},
		"agent": func() error {
			a := agent.Agent{ProjectID: o.project.ID, Name: name, TokenHash: []byte(name), CurvePublicKey: "X"}
			_, err := d.RegisterAgent(ctx, a, 10)
			return err
		},
	} {
		err := change()
		if code == "" {
			assert.NoError(b.t, err, what)
		} else {
			assert.Equal(b.t, code, fault.CodeOf(err), "%s: %v", what, err)
		}
	}
}

func (o organization) member(user int64) directory.Membership {
	return directory.Membership{
		UserID: user, Scope: directory.Scope{Kind: directory.ScopeGroup, ID: o.group.ID}, Role: directory.RoleDeveloper,
	}
}

func (b *fixture) residence(id int64) directory.Organization {
	b.t.Helper()
	all, err := b.directory().Organizations(b.t.Context(), 0, postgres.Page{Size: 100})
	require.NoError(b.t, err)
	for _, o := range all {
		if o.ID == id {
			return o
		}
	}
	return directory.Organization{}
}

// rows returns the rows of the directory, without times.
func (b *fixture) rows() []string {
	b.t.Helper()
	rows, err := b.pool.Query(b.t.Context(), `
		select 'organization ' || concat_ws(' ', id, name, residence, other_cell) from organizations
		union all select 'group ' || concat_ws(' ', id, organization_id, parent_group_id, name) from groups
		union all select 'project ' || concat_ws(' ', id, organization_id, group_id, name) from projects
		union all select 'user ' || concat_ws(' ', id, username, admin, state) from users
		union all select 'membership ' || concat_ws(' ', user_id, scope, scope_id, role) from memberships
		union all select 'token ' || concat_ws(' ', id, user_id, name, revoked_at is null) from personal_access_tokens
		union all select 'template ' || concat_ws(' ', project_id, name, spec) from templates
		order by 1`)
	require.NoError(b.t, err)
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(b.t, err)
	return found
}

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
	_, err = b.directory().ImportOrganization(t.Context(), arriving("m1", o.Organization), content, directory.CellIDs(1))
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
	first, err := b.directory().ImportOrganization(t.Context(), m, content, directory.CellIDs(1))
	require.NoError(t, err)
	rows := b.rows()
	b.outbox()
	again, err := b.directory().ImportOrganization(t.Context(), m, content, directory.CellIDs(1))
	require.NoError(t, err)
	require.Equal(t, first.Imported, again.Imported)
	require.Equal(t, rows, b.rows())
	require.Empty(t, b.outbox())
	_, err = b.directory().ImportOrganization(t.Context(), arriving("m2", o.Organization), content, directory.CellIDs(1))
	require.Equal(t, errcode.OrganizationMoving, fault.CodeOf(err), "%v", err)
	found, err := b.directory().Move(t.Context(), o.ID)
	require.NoError(t, err)
	require.Equal(t, "m1", found.ID)
}

func TestOrganizationWithAgentsOrWorkspacesStays(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	w := b.inserted(workspace.Creation{Name: "w"})
	begin := func() error {
		_, err := b.directory().BeginMove(t.Context(), leaving("m1", directory.Organization{ID: 1}))
		return err
	}
	require.ErrorContains(t, begin(), "organization o (1) has 2 agents and 1 workspaces, which cannot move")
	for _, id := range []int64{7, 8} {
		_, err := b.directory().RevokeAgent(t.Context(), id)
		require.NoError(t, err)
	}
	require.ErrorContains(t, begin(), "has 0 agents and 1 workspaces")
	require.Equal(t, directory.ResidenceHere, b.residence(1).Residence, "a refused begin changes nothing")
	b.save(w.ID, func(w *workspace.Workspace) { w.DesiredState = workspace.DesiredTerminated })
	require.NoError(t, begin())
	_, err := b.insert(workspace.Creation{Name: "late"})
	require.Equal(t, errcode.OrganizationMoving, fault.CodeOf(err), "%v", err)
}

// TestChangeThatIsNotCommittedDelaysTheBegin also shows that the export has it.
func TestChangeThatIsNotCommittedDelaysTheBegin(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(d *admin.Directory, tx pgx.Tx, o organization) error{
		"group": func(d *admin.Directory, tx pgx.Tx, o organization) error {
			_, err := d.Directory.CreateGroup(t.Context(), tx, directory.Group{OrganizationID: o.ID, Name: "late"})
			return err
		},
		"project": func(d *admin.Directory, tx pgx.Tx, o organization) error {
			_, err := d.Directory.CreateProject(t.Context(), tx, o.group.ID, "late")
			return err
		},
		"membership": func(d *admin.Directory, tx pgx.Tx, o organization) error {
			return d.Directory.PutMembership(t.Context(), tx, o.member(o.ben.ID))
		},
		"token": func(d *admin.Directory, tx pgx.Tx, o organization) error {
			hash := sha256.Sum256([]byte("late"))
			made := directory.Token{UserID: o.ben.ID, Name: "late", Scope: access.ScopeRead}
			_, err := d.Within(tx).CreateToken(t.Context(), made, hash[:], tokenLimit)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newCell(t, 0)
			o := b.organization("acme")
			begun := make(chan error, 1)
			require.NoError(t, b.tx(func(tx pgx.Tx) error {
				if err := change(b.directory(), tx, o); err != nil {
					return err
				}
				go func() {
					_, err := b.directory().BeginMove(t.Context(), leaving("m1", o.Organization))
					begun <- err
				}()
				b.awaitBlocked(tx)
				return nil
			}))
			require.NoError(t, <-begun)
			content, err := b.directory().ExportOrganization(t.Context(), o.ID, "m1")
			require.NoError(t, err)
			require.Equal(t, 1+1+1+2+2+1+1+1, content.Records())
		})
	}
}

// awaitBlocked waits until a transaction blocks another one.
func (b *fixture) awaitBlocked(holder pgx.Tx) {
	b.t.Helper()
	require.EventuallyWithT(b.t, func(c *assert.CollectT) {
		var blocks bool
		err := b.pool.QueryRow(b.t.Context(), `
			select exists (select from pg_stat_activity where $1 = any(pg_blocking_pids(pid)))`,
			holder.Conn().PgConn().PID()).Scan(&blocks)
		require.NoError(c, err)
		require.True(c, blocks)
	}, time.Minute, 10*time.Millisecond, "no transaction waits")
}

func TestTokensOfMembersAreNotCreatedWhileTheirOrganizationLeaves(t *testing.T) {
	t.Parallel()
	b := newCell(t, 0)
	o, other := b.organization("acme"), b.organization("other")
	b.begin("m1", o.Organization)
	create := func(user int64) error {
		hash := sha256.Sum256([]byte(directory.Key(user)))
		_, err := b.directory().CreateToken(t.Context(),
			directory.Token{UserID: user, Name: "late", Scope: access.ScopeRead}, hash[:], tokenLimit)
		return err
	}
	for _, user := range []int64{o.ada.ID, o.ben.ID} {
		require.Equal(t, errcode.OrganizationMoving, fault.CodeOf(create(user)))
	}
	require.NoError(t, create(other.ada.ID))
	// The mover may need a new token.
	_, err := b.pool.Exec(t.Context(), `update users set admin = true where id = $1`, o.ada.ID)
	require.NoError(t, err)
	require.NoError(t, create(o.ada.ID))
}

// A revocation cannot wait, so it is never refused. The end of the move brings it to the target.
func TestRevocationsDuringAMoveReachTheTarget(t *testing.T) {
	t.Parallel()
	a, b := newCell(t, 0), newCell(t, 1)
	o := a.organization("acme")
	a.newToken(o.ben.ID, "bens")
	require.NoError(t, a.move("m1", o.Organization, b, 1))
	_, err := a.directory().RevokeToken(t.Context(), o.token, postgres.Spare{})
	require.NoError(t, err)
	_, _, err = a.directory().BlockUser(t.Context(), o.ben.ID, postgres.Spare{})
	require.NoError(t, err)
	b.outbox()
	a.end("m1", o.Organization, b, move.OutcomeMoved)
	_, err = b.owner("acme-laptop")
	require.Equal(t, errcode.NotFound, fault.CodeOf(err), "%v", err)
	ben, err := b.owner("bens")
	require.NoError(t, err)
	require.True(t, ben.Blocked)
	subjects := []string{}
	for _, m := range b.outbox() {
		subjects = append(subjects, m.Subject)
	}
	user := "lockstep.local.directory.user."
	require.Equal(t, []string{user + directory.Key(o.ada.ID), user + directory.Key(o.ben.ID)}, subjects)
}

// The source may be in other hands: nothing that it exports gives rights outside the organization.
func TestImportGivesNoRightsOutsideTheOrganization(t *testing.T) {
	t.Parallel()
	a, b := newCell(t, 0), newCell(t, 1)
	o, victim := a.organization("acme"), b.organization("victim")
	boss, err := b.directory().CreateUser(t.Context(), "boss", true)
	require.NoError(t, err)
	a.begin("m1", o.Organization)
	honest, err := a.directory().ExportOrganization(t.Context(), o.ID, "m1")
	require.NoError(t, err)
	stolen := func(user directory.User) move.Content {
		c := honest
		c.Users = append([]directory.User{{ID: user.ID, Username: user.Username}}, honest.Users...)
		c.Memberships = append([]directory.Membership{{
			UserID: user.ID, Scope: directory.Scope{Kind: directory.ScopeOrganization, ID: o.ID}, Role: directory.RoleReader,
		}}, honest.Memberships...)
		c.Tokens = append([]move.Token{{
			Token: directory.Token{
				ID: 1 << 50, UserID: user.ID, Name: "stolen", Scope: access.ScopeAdmin, CreatedAt: time.Now(),
			},
			Hash: sha256.Sum256([]byte("stolen")),
		}}, honest.Tokens...)
		return c
	}
	// Users of this cell can be members, but no token of them is accepted.
	for i, user := range []directory.User{boss, victim.ada} {
		m := arriving("m1", o.Organization)
		m.ID += directory.Key(int64(i))
		m, err := b.directory().ImportOrganization(t.Context(), m, stolen(user), directory.CellIDs(1))
		require.NoError(t, err)
		require.Equal(t, 1, m.Imported.TokensLeftOut)
		_, err = b.owner("stolen")
		require.Equal(t, errcode.NotFound, fault.CodeOf(err), "%v", err)
		_, _, err = b.directory().EndMove(t.Context(), o.ID, m.ID, move.OutcomeCanceled, move.AccessChanges{})
		require.NoError(t, err)
	}
	before := b.rows()
	for name, change := range map[string]func(c *move.Content){
		"the victim's group": func(c *move.Content) {
			c.Groups = []directory.Group{{ID: victim.group.ID, OrganizationID: o.ID, Name: "platform"}}
			c.Projects = nil
		},
		"a project in the victim's group": func(c *move.Content) {
			c.Groups = append([]directory.Group{victim.group}, c.Groups...)
			c.Projects[0].GroupID = victim.group.ID
		},
		"the victim's name":         func(c *move.Content) { c.Organization.Name = "victim" },
		"the victim's organization": func(c *move.Content) { c.Organization.ID = victim.ID },
		"a user with another name": func(c *move.Content) {
			c.Users = stolen(directory.User{ID: boss.ID, Username: "x"}).Users
		},
		"a user of this cell that is unknown": func(c *move.Content) {
			c.Users = stolen(directory.User{ID: 1<<40 + 999, Username: "x"}).Users
		},
		"the victim's token": func(c *move.Content) {
			c.Tokens = []move.Token{{Token: victim.token, Hash: sha256.Sum256([]byte("mine"))}}
		},
	} {
		evil := honest
		evil.Projects = append([]directory.Project{}, honest.Projects...)
		change(&evil)
		m := arriving("m2", o.Organization)
		m.OrganizationID = evil.Organization.ID
		_, err := b.directory().ImportOrganization(t.Context(), m, evil, directory.CellIDs(1))
		require.Equal(t, errcode.FailedPrecondition, fault.CodeOf(err), "%s: %v", name, err)
		require.Equal(t, before, b.rows(), name)
	}
	// The source decides on nothing but what it imported.
	_, err = b.directory().ImportOrganization(t.Context(), arriving("m3", o.Organization), honest, directory.CellIDs(1))
	require.NoError(t, err)
	_, _, err = b.directory().EndMove(t.Context(), o.ID, "m3", move.OutcomeMoved, move.AccessChanges{
		RevokedTokens: []int64{victim.token.ID}, BlockedUsers: []int64{victim.ada.ID, boss.ID},
	})
	require.NoError(t, err)
	u, err := b.owner("victim-laptop")
	require.NoError(t, err)
	require.False(t, u.Blocked)
}

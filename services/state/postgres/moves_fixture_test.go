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
	"lockstep.internal/libs/idrange"
	libpostgres "lockstep.internal/libs/postgres"
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
	require.NoError(t, libpostgres.ReserveIDs(t.Context(), b.pool, number))
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
	_, err = to.directory().ImportOrganization(b.t.Context(), arriving(id, o), content, idrange.OfCell(number))
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

package postgres_test

import (
	"crypto/sha256"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/idrange"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/directory"
	"lockstep.internal/services/state/move"
	"lockstep.internal/services/state/postgres"
)

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
		m, err := b.directory().ImportOrganization(t.Context(), m, stolen(user), idrange.OfCell(1))
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
		_, err := b.directory().ImportOrganization(t.Context(), m, evil, idrange.OfCell(1))
		require.Equal(t, errcode.FailedPrecondition, fault.CodeOf(err), "%s: %v", name, err)
		require.Equal(t, before, b.rows(), name)
	}
	// The source decides on nothing but what it imported.
	_, err = b.directory().ImportOrganization(t.Context(), arriving("m3", o.Organization), honest, idrange.OfCell(1))
	require.NoError(t, err)
	_, _, err = b.directory().EndMove(t.Context(), o.ID, "m3", move.OutcomeMoved, move.AccessChanges{
		RevokedTokens: []int64{victim.token.ID}, BlockedUsers: []int64{victim.ada.ID, boss.ID},
	})
	require.NoError(t, err)
	u, err := b.owner("victim-laptop")
	require.NoError(t, err)
	require.False(t, u.Blocked)
}

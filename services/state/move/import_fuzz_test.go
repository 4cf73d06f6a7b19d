package move_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/access"
	"lockstep.internal/services/state/directory"
	"lockstep.internal/services/state/move"
	"lockstep.internal/services/state/workspace"
)

// FuzzImport reads arbitrary records, and plans what was accepted in cells that know some of them: no plan gives rights
// outside the organization.
func FuzzImport(f *testing.F) {
	f.Add([]byte{0, 1, 0, 0, 1, 2, 0, 0, 2, 4, 2, 0, 3, 5, 0, 0, 4, 5, 0, 1, 5, 7, 5, 0, 6, 4, 0, 0}, byte(0))
	f.Add([]byte{0, 1, 0, 0, 3, 5, 0, 4, 4, 5, 0, 9, 5, 130, 5, 0}, byte(7))
	f.Fuzz(func(t *testing.T, data []byte, knows byte) {
		r := move.NewReader(acme)
		for ; len(data) >= 4; data = data[4:] {
			if err := r.Grow(4); err != nil {
				return
			}
			addRecord(r, data[0], id(data[1]), id(data[2]), data[3])
		}
		c, err := r.Content()
		if err != nil {
			return
		}
		e := empty()
		if knows&1 != 0 {
			e = returning()
		}
		e.Outside[ada] = knows&2 != 0
		e.Users[ben] = directory.User{ID: ben, Username: "u" + directory.Key(ben), Admin: knows&4 != 0}
		plan, err := move.NewPlan(c, arriving(), e)
		if err != nil {
			require.Equal(t, move.Plan{}, plan)
			return
		}
		requireConfined(t, plan, c, e)
	})
}

// id spreads a byte over the ids of two cells.
func id(b byte) int64 { return int64(b&127) + int64(b>>7)<<40 }

func addRecord(r *move.Reader, kind byte, self, other int64, more byte) {
	name := "u" + directory.Key(self)
	kinds := []directory.ScopeKind{directory.ScopeOrganization, directory.ScopeGroup, directory.ScopeProject, ""}
	roles := []directory.Role{directory.RoleOwner, directory.RoleReader, directory.RoleNone, "god"}
	// A refused record changes nothing, so what follows is read as if it was not there.
	switch kind % 7 {
	case 0:
		_ = r.Organization(directory.Organization{ID: self, Name: "acme"})
	case 1:
		_ = r.Group(directory.Group{ID: self, OrganizationID: 1 + int64(more&1), ParentID: other, Name: name})
	case 2:
		_ = r.Project(directory.Project{ID: self, OrganizationID: 1 + int64(more&1), GroupID: other, Name: name})
	case 3:
		_ = r.User(directory.User{ID: self, Username: name, Blocked: more&1 != 0, Admin: more&2 != 0})
	case 4:
		_ = r.Membership(role(self, kinds[more&3], other, roles[more>>2&3]))
	case 5:
		t := token(self, other, name)
		t.Scope, t.Revoked, t.CreatedBy = access.ScopeAdmin, more&1 != 0, int64(more)
		_ = r.Token(t.Token, t.Hash[:])
	case 6:
		_ = r.Template(workspace.Template{ProjectID: self, Name: name, Spec: workspace.Spec{Image: "i"}, UpdatedAt: now()})
	}
}

func requireConfined(t *testing.T, p move.Plan, c move.Content, e move.Existing) {
	t.Helper()
	inside := map[directory.Scope]bool{{Kind: directory.ScopeOrganization, ID: acme}: true}
	for _, g := range c.Groups {
		require.EqualValues(t, acme, g.OrganizationID)
		inside[directory.Scope{Kind: directory.ScopeGroup, ID: g.ID}] = true
	}
	for _, g := range c.Projects {
		require.EqualValues(t, acme, g.OrganizationID)
		inside[directory.Scope{Kind: directory.ScopeProject, ID: g.ID}] = true
	}
	for _, m := range p.Memberships {
		require.True(t, inside[m.Scope], "a role in %v", m.Scope)
		require.Positive(t, m.Role.Rank())
	}
	for _, u := range p.Users {
		require.False(t, u.Admin)
		require.NotContains(t, e.Users, u.ID)
		require.False(t, e.IDs.Contains(u.ID))
	}
	for _, token := range p.Tokens {
		u, exists := e.Users[token.UserID]
		require.False(t, exists && (u.Admin || e.Outside[token.UserID]), "a token of user %d", token.UserID)
		require.False(t, e.IDs.Contains(token.ID))
		require.False(t, token.Revoked)
	}
	for _, g := range p.Groups {
		require.NotContains(t, e.Groups, g.ID)
		require.False(t, e.IDs.Contains(g.ID))
	}
	for _, template := range p.Templates {
		require.True(t, inside[directory.Scope{Kind: directory.ScopeProject, ID: template.ProjectID}])
	}
}

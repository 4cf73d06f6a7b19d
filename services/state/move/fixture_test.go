package move_test

import (
	"crypto/sha256"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/idrange"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/state/directory"
	"lockstep.internal/services/state/move"
	"lockstep.internal/services/state/workspace"
	"lockstep.internal/tools/testkit/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// Entities of cell 0, which move to cell 1.
const (
	acme, platform, backend, shop, ada, ben, laptop, script = 1, 2, 3, 4, 5, 6, 7, 8
)

// own is an id that the target gives.
const own = int64(1)<<40 + 7

const source = topology.Cell("eu-1")

func now() time.Time { return time.Date(2026, 3, 4, 5, 6, 0, 0, time.UTC) }

func hash(text string) [sha256.Size]byte { return sha256.Sum256([]byte(text)) }

func token(id, user int64, name string) move.Token {
	return move.Token{
		Token: directory.Token{ID: id, UserID: user, Name: name, Scope: access.ScopeWrite, CreatedAt: now()},
		Hash:  hash(name),
	}
}

func role(user int64, kind directory.ScopeKind, id int64, r directory.Role) directory.Membership {
	return directory.Membership{UserID: user, Scope: directory.Scope{Kind: kind, ID: id}, Role: r}
}

// content is an organization with all kinds of entities.
func content() move.Content {
	c := move.Content{
		Organization: directory.Organization{ID: acme, Name: "acme"},
		Groups: []directory.Group{
			{ID: platform, OrganizationID: acme, Name: "platform"},
			{ID: backend, OrganizationID: acme, ParentID: platform, Name: "backend"},
		},
		Projects: []directory.Project{{ID: shop, OrganizationID: acme, GroupID: backend, Name: "shop"}},
		Users:    []directory.User{{ID: ada, Username: "ada"}, {ID: ben, Username: "ben"}},
		Memberships: []directory.Membership{
			role(ada, directory.ScopeOrganization, acme, directory.RoleOwner),
			role(ben, directory.ScopeProject, shop, directory.RoleReader),
		},
		Tokens:    []move.Token{token(laptop, ada, "laptop"), token(script, ben, "script")},
		Templates: []workspace.Template{{ProjectID: shop, Name: "go", Spec: workspace.Spec{Image: "go:1"}, UpdatedAt: now()}},
	}
	c.Tokens[1].CreatedBy = laptop
	return c
}

// read reads a content as an import.
func read(c move.Content) (move.Content, error) {
	r := move.NewReader(acme)
	if err := readAll(r, c); err != nil {
		return move.Content{}, err
	}
	return r.Content()
}

func readAll(r *move.Reader, c move.Content) error {
	if err := r.Organization(c.Organization); err != nil {
		return err
	}
	for _, g := range c.Groups {
		if err := r.Group(g); err != nil {
			return err
		}
	}
	for _, p := range c.Projects {
		if err := r.Project(p); err != nil {
			return err
		}
	}
	for _, u := range c.Users {
		if err := r.User(u); err != nil {
			return err
		}
	}
	for _, m := range c.Memberships {
		if err := r.Membership(m); err != nil {
			return err
		}
	}
	for _, t := range c.Tokens {
		if err := r.Token(t.Token, t.Hash[:]); err != nil {
			return err
		}
	}
	for _, t := range c.Templates {
		if err := r.Template(t); err != nil {
			return err
		}
	}
	return nil
}

func arriving() move.Move {
	return move.Move{ID: "m1", OrganizationID: acme, Direction: move.DirectionIn, OtherCell: source}
}

// empty is a target without anything of the organization.
func empty() move.Existing {
	return move.Existing{
		IDs: idrange.OfCell(1), Groups: map[int64]directory.Group{}, Projects: map[int64]directory.Project{},
		Users: map[int64]directory.User{}, Outside: map[int64]bool{}, Tokens: map[int64]move.Token{},
	}
}

// returning is a target in which the organization was before.
func returning() move.Existing {
	e, c := empty(), content()
	e.IDs = idrange.OfCell(0)
	e.Organization = c.Organization.At(directory.ResidenceAway, source)
	for _, g := range c.Groups {
		e.Groups[g.ID] = g
	}
	for _, p := range c.Projects {
		e.Projects[p.ID] = p
	}
	for _, u := range c.Users {
		e.Users[u.ID] = u
	}
	for _, t := range c.Tokens {
		e.Tokens[t.ID] = t
	}
	e.Memberships = c.Memberships
	return e
}

func requireFault(t *testing.T, err error, code fault.Code, contains string) {
	t.Helper()
	require.Error(t, err)
	require.Equal(t, code, fault.CodeOf(err), "%v", err)
	require.ErrorContains(t, err, contains)
}

package move_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/idrange"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/directory"
	"lockstep.internal/services/state/move"
)

func TestNewOrganizationIsCreatedWhole(t *testing.T) {
	t.Parallel()
	c := content()
	plan, err := move.NewPlan(c, arriving(), empty())
	require.NoError(t, err)
	require.Equal(t, move.Plan{
		Organization: c.Organization.At(directory.ResidenceArriving, source), Create: true,
		Groups: c.Groups, Projects: c.Projects, Users: c.Users, Tokens: c.Tokens, Memberships: c.Memberships,
		Templates: c.Templates,
		Imported: move.Imported{
			Records: 11, Groups: []int64{platform, backend}, Projects: []int64{shop}, Users: []int64{ada, ben},
			Memberships: c.Memberships, CreatedTokens: []int64{laptop, script}, Tokens: []int64{laptop, script},
		},
	}, plan)
}

func TestOrganizationThatComesBackIsUpdated(t *testing.T) {
	t.Parallel()
	c, e := content(), returning()
	plan, err := move.NewPlan(c, arriving(), e)
	require.NoError(t, err)
	require.Equal(t, move.Plan{
		Organization: c.Organization.At(directory.ResidenceArriving, source), Templates: c.Templates,
		Imported: move.Imported{Records: 11, AwayIn: source, Tokens: []int64{laptop, script}},
	}, plan)

	// While it was away, ben left, ada got another role, cleo came, a group was made and a token was revoked.
	c.Memberships = []directory.Membership{
		role(ada, directory.ScopeOrganization, acme, directory.RoleDeveloper),
		role(own, directory.ScopeGroup, own+1, directory.RoleReader),
	}
	c.Users = append(c.Users, directory.User{ID: own, Username: "cleo"})
	c.Groups = append(c.Groups, directory.Group{ID: own + 1, OrganizationID: acme, Name: "new"})
	c.Tokens[0].Revoked = true
	c.Tokens = append(c.Tokens, token(own+2, own, "cleos"), token(own+3, ada, "later"))
	plan, err = move.NewPlan(c, arriving(), e)
	require.NoError(t, err)
	require.Equal(t, c.Memberships, plan.Memberships)
	require.Equal(t, c.Memberships[1:], plan.Imported.Memberships)
	require.Equal(t, []directory.Membership{role(ben, directory.ScopeProject, shop, directory.RoleReader)}, plan.Ended)
	require.Equal(t, []int64{laptop}, plan.RevokedTokens)
	require.Equal(t, []int64{own + 2, own + 3}, plan.Imported.CreatedTokens)
	require.Equal(t, []int64{own}, plan.Imported.Users)
	require.Equal(t, []int64{own + 1}, plan.Imported.Groups)
}

func TestRevocationHereIsFinal(t *testing.T) {
	t.Parallel()
	e := returning()
	revoked := e.Tokens[laptop]
	revoked.Revoked = true
	e.Tokens[laptop] = revoked
	plan, err := move.NewPlan(content(), arriving(), e)
	require.NoError(t, err)
	require.Empty(t, plan.Tokens)
	require.Empty(t, plan.RevokedTokens)
}

// A token acts as its user. One of a user who may act elsewhere in the target would give rights there.
func TestTokensOfUsersWhoMayActElsewhereAreLeftOut(t *testing.T) {
	t.Parallel()
	administrator := directory.User{ID: ada, Username: "ada", Admin: true}
	for name, change := range map[string]func(e *move.Existing){
		"administrator":              func(e *move.Existing) { e.Users[ada] = administrator },
		"role outside":               func(e *move.Existing) { e.Outside[ada] = true },
		"no role in it before, here": func(e *move.Existing) { e.Memberships = e.Memberships[1:] },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := returning()
			e.Tokens = map[int64]move.Token{}
			e.IDs = idrange.OfCell(1)
			change(&e)
			plan, err := move.NewPlan(content(), arriving(), e)
			require.NoError(t, err)
			require.Equal(t, []int64{script}, plan.Imported.CreatedTokens)
			require.Zero(t, plan.Tokens[0].CreatedBy, "its creator is left out")
			require.Equal(t, 1, plan.Imported.TokensLeftOut)
		})
	}
}

func TestConflictsAreNamed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change   func(c *move.Content, e *move.Existing)
		contains string
	}{
		"name of another organization": {
			func(_ *move.Content, e *move.Existing) { e.NameTaken = own },
			"this cell has another organization with the name acme (1099511627783): move it to a cell without one",
		},
		"name of another user": {
			func(_ *move.Content, e *move.Existing) { e.Users[own] = directory.User{ID: own, Username: "ada"} },
			"this cell has another user with the name ada (1099511627783): in the source, give the roles of user 5",
		},
		"another name of a user": {
			func(_ *move.Content, e *move.Existing) { e.Users[ada] = directory.User{ID: ada, Username: "eve"} },
			"user 5 has the name eve here, not ada",
		},
		"user who is blocked in the source only": {
			func(c *move.Content, e *move.Existing) {
				c.Users[0].Blocked, e.Users[ada] = true, directory.User{ID: ada, Username: "ada"}
			},
			"user ada (5) is blocked in the source and active here",
		},
		"user with an id of this cell": {
			func(c *move.Content, _ *move.Existing) { c.Users[0].ID = own }, "this cell never had user 1099511627783",
		},
		"group with an id of this cell": {
			func(c *move.Content, _ *move.Existing) { c.Groups[1].ID = own }, "this cell never had group 1099511627783",
		},
		"project with an id of this cell": {
			func(c *move.Content, _ *move.Existing) { c.Projects[0].ID = own }, "this cell never had project 1099511627783",
		},
		"token with an id of this cell": {
			func(c *move.Content, _ *move.Existing) { c.Tokens[0].ID = own }, "this cell never had token 1099511627783",
		},
		"organization with an id of this cell": {
			func(c *move.Content, _ *move.Existing) { c.Organization.ID = own }, "this cell never had organization",
		},
		"group of another organization": {
			func(c *move.Content, e *move.Existing) {
				e.Groups[platform] = directory.Group{ID: platform, OrganizationID: 99, Name: "platform"}
			},
			"group 2 has another name or place here",
		},
		"project of another organization": {
			func(_ *move.Content, e *move.Existing) {
				e.Projects[shop] = directory.Project{ID: shop, OrganizationID: 99, GroupID: 98, Name: "shop"}
			},
			"project 4 has another name or place here",
		},
		"group that is missing": {
			func(_ *move.Content, e *move.Existing) {
				e.Groups[90] = directory.Group{ID: 90, OrganizationID: acme, Name: "more"}
			},
			"the import does not have group 90",
		},
		"token with another hash": {
			func(_ *move.Content, e *move.Existing) { e.Tokens[laptop] = token(laptop, ada, "other") },
			"token 7 of user 5 is another one here",
		},
		"hash of another token": {
			func(_ *move.Content, e *move.Existing) { e.Tokens[own] = token(own, own, "laptop") },
			"token 7 of user 5 is another one here",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			imported, existing := content(), empty()
			c.change(&imported, &existing)
			plan, err := move.NewPlan(imported, arriving(), existing)
			requireFault(t, err, errcode.FailedPrecondition, c.contains)
			require.Equal(t, move.Plan{}, plan)
		})
	}
	many, e := content(), empty()
	for id := own; id < own+20; id++ {
		many.Users = append(many.Users, directory.User{ID: id, Username: "u" + directory.Key(id)})
	}
	_, err := move.NewPlan(many, arriving(), e)
	requireFault(t, err, errcode.FailedPrecondition, "; and 10 more")
}

func TestOrganizationInThisCellIsNotImported(t *testing.T) {
	t.Parallel()
	for residence, code := range map[directory.Residence]string{
		directory.ResidenceHere: "failed_precondition", directory.ResidenceLeaving: "organization_moving",
		directory.ResidenceArriving: "organization_moving",
	} {
		e := returning()
		e.Organization.Residence = residence
		_, err := move.NewPlan(content(), arriving(), e)
		require.ErrorContains(t, err, "acme (1)")
		require.Equal(t, code, string(codeOf(err)))
	}
}

package move_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/directory"
	"lockstep.internal/services/state/move"
)

func TestImportIsReadAsItWasExported(t *testing.T) {
	t.Parallel()
	got, err := read(content())
	require.NoError(t, err)
	require.Equal(t, content(), got)
	require.Equal(t, 11, got.Records())
}

func TestCreatorThatDoesNotMoveIsLeftOut(t *testing.T) {
	t.Parallel()
	c := content()
	c.Tokens[1].CreatedBy = 99
	got, err := read(c)
	require.NoError(t, err)
	require.Zero(t, got.Tokens[1].CreatedBy)
}

func TestMalformedImportIsRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change   func(c *move.Content)
		contains string
	}{
		"another organization":      {func(c *move.Content) { c.Organization.ID = 9 }, "it has organization 9"},
		"organization without name": {func(c *move.Content) { c.Organization.Name = "" }, "organization 1: name"},
		"group of another organization": {
			func(c *move.Content) { c.Groups[0].OrganizationID = 9 }, "group 2 is in organization 9",
		},
		"child before its parent": {
			func(c *move.Content) { c.Groups[0], c.Groups[1] = c.Groups[1], c.Groups[0] },
			"group 3 is in group 2, which did not come before",
		},
		"group twice": {func(c *move.Content) { c.Groups[1] = c.Groups[0] }, "group 2 comes twice"},
		"group with a used name": {
			func(c *move.Content) { c.Groups[1].ParentID, c.Groups[1].Name = 0, "platform" }, "beside it",
		},
		"group with an odd name": {func(c *move.Content) { c.Groups[0].Name = "A/B" }, `group 2: name "A/B"`},
		"group without an id":    {func(c *move.Content) { c.Groups[0].ID = 0 }, "a group has the id 0"},
		"project of another organization": {
			func(c *move.Content) { c.Projects[0].OrganizationID = 9 }, "project 4 is in organization 9",
		},
		"project of an unknown group": {func(c *move.Content) { c.Projects[0].GroupID = 9 }, "project 4 is in group 9"},
		"administrator":               {func(c *move.Content) { c.Users[0].Admin = true }, "user 5 is an administrator"},
		"two users with a name":       {func(c *move.Content) { c.Users[1].Username = "ada" }, "two users have"},
		"user with an odd name":       {func(c *move.Content) { c.Users[1].Username = "a b" }, "user 6: username"},
		"role in another organization": {
			func(c *move.Content) { c.Memberships[0].Scope.ID = 9 }, "a role in organization 9, which is not in",
		},
		"role in an unknown group": {
			func(c *move.Content) { c.Memberships[0].Scope = directory.Scope{Kind: directory.ScopeGroup, ID: shop} },
			"a role in group 4, which is not in the organization",
		},
		"role in a scope without kind": {func(c *move.Content) { c.Memberships[0].Scope.Kind = "" }, "is not in"},
		"role of an unknown user":      {func(c *move.Content) { c.Memberships[0].UserID = 9 }, "user 9 of a membership"},
		"unknown role":                 {func(c *move.Content) { c.Memberships[0].Role = "god" }, `the unknown role "god"`},
		"no role":                      {func(c *move.Content) { c.Memberships[0].Role = "" }, `the unknown role ""`},
		"two roles":                    {func(c *move.Content) { c.Memberships[1] = c.Memberships[0] }, "has two roles"},
		"token of an unknown user":     {func(c *move.Content) { c.Tokens[0].UserID = 9 }, "user 9 of token 7"},
		"token with an unknown scope":  {func(c *move.Content) { c.Tokens[0].Scope = "all" }, `the unknown scope "all"`},
		"token with a long name":       {func(c *move.Content) { c.Tokens[0].Name = strings.Repeat("x", 101) }, "1 to 100"},
		"two tokens with a hash":       {func(c *move.Content) { c.Tokens[1].Hash = c.Tokens[0].Hash }, "hash of token 8"},
		"token of the far future": {
			func(c *move.Content) { c.Tokens[0].ExpiresAt = time.Date(12026, 1, 1, 0, 0, 0, 0, time.UTC) }, "a time of token 7",
		},
		"template of another project": {func(c *move.Content) { c.Templates[0].ProjectID = 9 }, "project 9 of template"},
		"template without an image":   {func(c *move.Content) { c.Templates[0].Spec.Image = "" }, `template "go" of`},
		"two templates with a name": {
			func(c *move.Content) { c.Templates = append(c.Templates, c.Templates[0]) }, "two templates go",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			changed := content()
			c.change(&changed)
			_, err := read(changed)
			requireFault(t, err, errcode.InvalidArgument, c.contains)
		})
	}
	_, err := move.NewReader(acme).Content()
	requireFault(t, err, errcode.InvalidArgument, "no record of the organization")
	requireFault(t, move.NewReader(acme).Group(content().Groups[0]), errcode.InvalidArgument, "the first record")
	r := move.NewReader(acme)
	require.NoError(t, readAll(r, content()))
	requireFault(t, r.Organization(content().Organization), errcode.InvalidArgument, "comes twice")
	requireFault(t, r.Token(token(9, ada, "short").Token, []byte("short")), errcode.InvalidArgument, "32 bytes")
	requireFault(t, r.Unknown(), errcode.InvalidArgument, "use the same version in both cells")
}

func TestImportIsLimited(t *testing.T) {
	t.Parallel()
	r := move.NewReader(acme)
	require.NoError(t, r.Organization(content().Organization))
	for id := int64(2); id <= move.MaxRecords; id++ {
		require.NoError(t, r.Grow(1))
		require.NoError(t, r.User(directory.User{ID: id, Username: "u" + directory.Key(id)}))
	}
	requireFault(t, r.Grow(1), errcode.PayloadTooLarge, "100000 records")
	requireFault(t, move.NewReader(acme).Grow(move.MaxBytes+1), errcode.PayloadTooLarge, "64 MiB")

	c := content()
	c.Users = make([]directory.User, move.MaxRecords)
	requireFault(t, c.CheckSize(), errcode.FailedPrecondition, "a move can have 100000")
	require.NoError(t, content().CheckSize())
}

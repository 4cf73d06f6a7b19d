package move

import (
	"crypto/sha256"
	"time"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/directory"
)

// Limits of an import.
const (
	MaxRecords = 100_000
	// MaxBytes limits the size of all records together.
	MaxBytes = 64 << 20
)

// Token is a personal access token with the hash of its value.
type Token struct {
	directory.Token

	Hash [sha256.Size]byte
}

// Content is the directory of an organization. Parents are before their groups.
type Content struct {
	Organization directory.Organization
	Groups       []directory.Group
	Projects     []directory.Project
	Users        []directory.User
	Memberships  []directory.Membership
	Tokens       []Token
}

// Records returns the number of records.
func (c Content) Records() int {
	return 1 + len(c.Groups) + len(c.Projects) + len(c.Users) + len(c.Memberships) + len(c.Tokens)
}

// CheckSize returns the fault failed_precondition if the content is too large for an import.
func (c Content) CheckSize() error {
	if n := c.Records(); n > MaxRecords {
		return fault.New(errcode.FailedPrecondition,
			"organization %s (%d) has %d groups, projects, users, memberships and tokens; a move can have %d: "+
				"remove memberships or revoke tokens that are not needed",
			c.Organization.Name, c.Organization.ID, n, MaxRecords)
	}
	return nil
}

// Reader collects the records of an import of one organization, and checks each: what it refers to must have come
// before. Its methods return the fault invalid_argument, or payload_too_large beyond a limit.
type Reader struct {
	organization int64
	content      Content
	bytes        int

	groups, projects, users, tokens map[int64]bool
	names                           map[placed]bool
	memberships                     map[member]bool
	hashes                          map[[sha256.Size]byte]bool
}

type placed struct {
	kind   directory.ScopeKind
	parent int64
	name   string
}

type member struct {
	user  int64
	scope directory.Scope
}

// NewReader returns a reader of the records of an organization.
func NewReader(organizationID int64) *Reader {
	return &Reader{
		organization: organizationID, groups: map[int64]bool{}, projects: map[int64]bool{}, users: map[int64]bool{},
		tokens: map[int64]bool{}, names: map[placed]bool{}, memberships: map[member]bool{},
		hashes: map[[sha256.Size]byte]bool{},
	}
}

// Grow counts a record of a size in bytes.
func (r *Reader) Grow(size int) error {
	r.bytes += size
	if r.content.Records() >= MaxRecords && r.content.Organization.ID != 0 || r.bytes > MaxBytes {
		return fault.New(errcode.PayloadTooLarge,
			"the import of organization %d is larger than %d records or %d MiB: remove what the organization does not need",
			r.organization, MaxRecords, MaxBytes>>20)
	}
	return nil
}

// Content returns the content when all records are read.
func (r *Reader) Content() (Content, error) {
	if r.content.Organization.ID == 0 {
		return Content{}, r.refuse("it has no record of the organization")
	}
	c := r.content
	for i := range c.Tokens {
		if !r.tokens[c.Tokens[i].CreatedBy] {
			c.Tokens[i].CreatedBy = 0
		}
	}
	return c, nil
}

func (r *Reader) refuse(format string, args ...any) error {
	return fault.New(errcode.InvalidArgument, "the import of organization %d is malformed: %s", r.organization,
		fault.New(errcode.InvalidArgument, format, args...).Message).With("field", "records")
}

// Unknown refuses a record of a kind that this version does not know.
func (r *Reader) Unknown() error {
	return r.refuse("a record is of a kind that this version does not know: use the same version in both cells")
}

// begin checks what all records but the first one have in common.
func (r *Reader) begin(kind string, id int64, known map[int64]bool) error {
	switch {
	case r.content.Organization.ID == 0:
		return r.refuse("the first record must be the organization")
	case id <= 0:
		return r.refuse("a %s has the id %d", kind, id)
	case known[id]:
		return r.refuse("%s %d comes twice", kind, id)
	default:
		return nil
	}
}

// Organization adds the organization, which must be the first record.
func (r *Reader) Organization(o directory.Organization) error {
	switch {
	case r.content.Organization.ID != 0:
		return r.refuse("the organization comes twice")
	case o.ID != r.organization:
		return r.refuse("it has organization %d", o.ID)
	}
	if err := directory.CheckName(o.Name); err != nil {
		return r.refuse("organization %d: %v", o.ID, err)
	}
	r.content.Organization = directory.Organization{ID: o.ID, Name: o.Name}
	return nil
}

// Group adds a group.
func (r *Reader) Group(g directory.Group) error {
	if err := r.begin("group", g.ID, r.groups); err != nil {
		return err
	}
	switch {
	case g.OrganizationID != r.organization:
		return r.refuse("group %d is in organization %d", g.ID, g.OrganizationID)
	case g.ParentID != 0 && !r.groups[g.ParentID]:
		return r.refuse("group %d is in group %d, which did not come before", g.ID, g.ParentID)
	}
	if err := r.name("group", g.ID, placed{directory.ScopeGroup, g.ParentID, g.Name}); err != nil {
		return err
	}
	r.groups[g.ID] = true
	r.content.Groups = append(r.content.Groups, g)
	return nil
}

// Project adds a project. Its path is ignored.
func (r *Reader) Project(p directory.Project) error {
	if err := r.begin("project", p.ID, r.projects); err != nil {
		return err
	}
	switch {
	case p.OrganizationID != r.organization:
		return r.refuse("project %d is in organization %d", p.ID, p.OrganizationID)
	case !r.groups[p.GroupID]:
		return r.refuse("project %d is in group %d, which did not come before", p.ID, p.GroupID)
	}
	if err := r.name("project", p.ID, placed{directory.ScopeProject, p.GroupID, p.Name}); err != nil {
		return err
	}
	r.projects[p.ID] = true
	p.Path = ""
	r.content.Projects = append(r.content.Projects, p)
	return nil
}

func (r *Reader) name(kind string, id int64, p placed) error {
	if err := directory.CheckName(p.name); err != nil {
		return r.refuse("%s %d: %v", kind, id, err)
	}
	if r.names[p] {
		return r.refuse("%s %d has the name %s of another one beside it", kind, id, p.name)
	}
	r.names[p] = true
	return nil
}

// User adds a user, who must be no administrator.
func (r *Reader) User(u directory.User) error {
	if err := r.begin("user", u.ID, r.users); err != nil {
		return err
	}
	if u.Admin {
		return r.refuse("user %d is an administrator: rights in a cell do not move", u.ID)
	}
	if err := directory.CheckUsername(u.Username); err != nil {
		return r.refuse("user %d: %v", u.ID, err)
	}
	p := placed{name: u.Username}
	if r.names[p] {
		return r.refuse("two users have the name %s", u.Username)
	}
	r.names[p], r.users[u.ID] = true, true
	r.content.Users = append(r.content.Users, directory.User{ID: u.ID, Username: u.Username, Blocked: u.Blocked})
	return nil
}

// Membership adds a role of a user in the organization, or in a group or project of it.
func (r *Reader) Membership(m directory.Membership) error {
	if err := r.begin("membership of user", m.UserID, nil); err != nil {
		return err
	}
	inside := map[directory.ScopeKind]bool{
		directory.ScopeOrganization: m.Scope.ID == r.organization,
		directory.ScopeGroup:        r.groups[m.Scope.ID],
		directory.ScopeProject:      r.projects[m.Scope.ID],
	}
	key := member{m.UserID, m.Scope}
	switch {
	case !r.users[m.UserID]:
		return r.refuse("user %d of a membership did not come before", m.UserID)
	case !inside[m.Scope.Kind]:
		return r.refuse("user %d has a role in %s %d, which is not in the organization or did not come before", m.UserID,
			m.Scope.Kind, m.Scope.ID)
	case m.Role.Rank() == 0:
		return r.refuse("user %d has the unknown role %q in %s %d", m.UserID, m.Role, m.Scope.Kind, m.Scope.ID)
	case r.memberships[key]:
		return r.refuse("user %d has two roles in %s %d", m.UserID, m.Scope.Kind, m.Scope.ID)
	}
	r.memberships[key] = true
	r.content.Memberships = append(r.content.Memberships,
		directory.Membership{UserID: m.UserID, Scope: m.Scope, Role: m.Role})
	return nil
}

// Token adds a personal access token.
func (r *Reader) Token(t directory.Token, hash []byte) error {
	if err := r.begin("token", t.ID, r.tokens); err != nil {
		return err
	}
	switch {
	case !r.users[t.UserID]:
		return r.refuse("user %d of token %d did not come before", t.UserID, t.ID)
	case !t.Scope.Valid():
		return r.refuse("token %d has the unknown scope %q", t.ID, t.Scope)
	case t.Name == "" || len(t.Name) > directory.MaxDisplayName:
		return r.refuse("the name of token %d must have 1 to %d characters", t.ID, directory.MaxDisplayName)
	case outside(t.CreatedAt) || !t.ExpiresAt.IsZero() && outside(t.ExpiresAt):
		return r.refuse("a time of token %d is not between the years 1970 and 9999", t.ID)
	case len(hash) != sha256.Size || r.hashes[[sha256.Size]byte(hash)]:
		return r.refuse("the hash of token %d must have %d bytes, and be that of no other token", t.ID, sha256.Size)
	}
	r.tokens[t.ID], r.hashes[[sha256.Size]byte(hash)] = true, true
	r.content.Tokens = append(r.content.Tokens, Token{Token: t, Hash: [sha256.Size]byte(hash)})
	return nil
}

func outside(t time.Time) bool { return t.Year() < 1970 || t.Year() > 9999 }

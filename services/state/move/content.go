package move

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"time"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/directory"
	"lockstep.internal/services/state/workspace"
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
	// Templates of projects of the organization.
	Templates []workspace.Template
}

// Records returns the number of records.
func (c Content) Records() int {
	return 1 + len(c.Groups) + len(c.Projects) + len(c.Users) + len(c.Memberships) + len(c.Tokens) +
		len(c.Templates)
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

// Kinds of names that are unique at a place.
const (
	kindGroup    = "group"
	kindProject  = "project"
	kindUser     = "user"
	kindTemplate = "template"
)

type placed struct {
	kind   string
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
		return Content{}, r.refusef("it has no record of the organization")
	}
	c := r.content
	for i := range c.Tokens {
		if !r.tokens[c.Tokens[i].CreatedBy] {
			c.Tokens[i].CreatedBy = 0
		}
	}
	return c, nil
}

func (r *Reader) refusef(format string, args ...any) error {
	return fault.New(errcode.InvalidArgument, "the import of organization %d is malformed: %s", r.organization,
		fmt.Sprintf(format, args...)).With("field", "records")
}

// Unknown refuses a record of a kind that this version does not know.
func (r *Reader) Unknown() error {
	return r.refusef("a record is of a kind that this version does not know: use the same version in both cells")
}

// begin checks what all records but the first one have in common.
func (r *Reader) begin(kind string, id int64, known map[int64]bool) error {
	switch {
	case r.content.Organization.ID == 0:
		return r.refusef("the first record must be the organization")
	case id <= 0:
		return r.refusef("a %s has the id %d", kind, id)
	case known[id]:
		return r.refusef("%s %d comes twice", kind, id)
	default:
		return nil
	}
}

// Organization adds the organization, which must be the first record.
func (r *Reader) Organization(o directory.Organization) error {
	switch {
	case r.content.Organization.ID != 0:
		return r.refusef("the organization comes twice")
	case o.ID != r.organization:
		return r.refusef("it has organization %d", o.ID)
	}
	if err := directory.CheckName(o.Name); err != nil {
		return r.refusef("organization %d: %s", o.ID, fault.From(err).Message)
	}
	r.content.Organization = directory.Organization{ID: o.ID, Name: o.Name}
	return nil
}

// Group adds a group.
func (r *Reader) Group(g directory.Group) error {
	if err := r.begin(kindGroup, g.ID, r.groups); err != nil {
		return err
	}
	switch {
	case g.OrganizationID != r.organization:
		return r.refusef("group %d is in organization %d", g.ID, g.OrganizationID)
	case g.ParentID != 0 && !r.groups[g.ParentID]:
		return r.refusef("group %d is in group %d, which did not come before", g.ID, g.ParentID)
	}
	if err := r.name(g.ID, placed{kindGroup, g.ParentID, g.Name}); err != nil {
		return err
	}
	r.groups[g.ID] = true
	r.content.Groups = append(r.content.Groups, g)
	return nil
}

// Project adds a project. Its path is ignored.
func (r *Reader) Project(p directory.Project) error {
	if err := r.begin(kindProject, p.ID, r.projects); err != nil {
		return err
	}
	switch {
	case p.OrganizationID != r.organization:
		return r.refusef("project %d is in organization %d", p.ID, p.OrganizationID)
	case !r.groups[p.GroupID]:
		return r.refusef("project %d is in group %d, which did not come before", p.ID, p.GroupID)
	}
	if err := r.name(p.ID, placed{kindProject, p.GroupID, p.Name}); err != nil {
		return err
	}
	r.projects[p.ID] = true
	p.Path = ""
	r.content.Projects = append(r.content.Projects, p)
	return nil
}

func (r *Reader) name(id int64, p placed) error {
	if err := directory.CheckName(p.name); err != nil {
		return r.refusef("%s %d: %s", p.kind, id, fault.From(err).Message)
	}
	if r.names[p] {
		return r.refusef("%s %d has the name %s of another one beside it", p.kind, id, p.name)
	}
	r.names[p] = true
	return nil
}

// User adds a user, who must be no administrator.
func (r *Reader) User(u directory.User) error {
	if err := r.begin(kindUser, u.ID, r.users); err != nil {
		return err
	}
	if u.Admin {
		return r.refusef("user %d is an administrator: rights in a cell do not move", u.ID)
	}
	if err := directory.CheckUsername(u.Username); err != nil {
		return r.refusef("user %d: %s", u.ID, fault.From(err).Message)
	}
	p := placed{kind: kindUser, name: u.Username}
	if r.names[p] {
		return r.refusef("two users have the name %s", u.Username)
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
		return r.refusef("user %d of a membership did not come before", m.UserID)
	case !inside[m.Scope.Kind]:
		return r.refusef("user %d has a role in %s %d, which is not in the organization or did not come before", m.UserID,
			m.Scope.Kind, m.Scope.ID)
	case m.Role.Rank() == 0:
		return r.refusef("user %d has the unknown role %q in %s %d", m.UserID, m.Role, m.Scope.Kind, m.Scope.ID)
	case r.memberships[key]:
		return r.refusef("user %d has two roles in %s %d", m.UserID, m.Scope.Kind, m.Scope.ID)
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
		return r.refusef("user %d of token %d did not come before", t.UserID, t.ID)
	case !t.Scope.Valid():
		return r.refusef("token %d has the unknown scope %q", t.ID, t.Scope)
	case t.Name == "" || len(t.Name) > directory.MaxDisplayName:
		return r.refusef("the name of token %d must have 1 to %d characters", t.ID, directory.MaxDisplayName)
	case outside(t.CreatedAt) || !t.ExpiresAt.IsZero() && outside(t.ExpiresAt):
		return r.refusef("a time of token %d is not between the years 1970 and 9999", t.ID)
	case len(hash) != sha256.Size || r.hashes[[sha256.Size]byte(hash)]:
		return r.refusef("the hash of token %d must have %d bytes, and be that of no other token", t.ID, sha256.Size)
	}
	r.tokens[t.ID], r.hashes[[sha256.Size]byte(hash)] = true, true
	r.content.Tokens = append(r.content.Tokens, Token{Token: t, Hash: [sha256.Size]byte(hash)})
	return nil
}

// Template adds a template of a project.
func (r *Reader) Template(t workspace.Template) error {
	if err := r.begin("template of project", t.ProjectID, nil); err != nil {
		return err
	}
	p := placed{kind: kindTemplate, parent: t.ProjectID, name: t.Name}
	switch {
	case !r.projects[t.ProjectID]:
		return r.refusef("project %d of template %q did not come before", t.ProjectID, t.Name)
	case r.names[p]:
		return r.refusef("project %d has two templates %s", t.ProjectID, t.Name)
	}
	if err := cmp.Or(directory.CheckName(t.Name), t.Spec.Validate()); err != nil {
		return r.refusef("template %q of project %d: %s", t.Name, t.ProjectID, fault.From(err).Message)
	}
	r.names[p] = true
	r.content.Templates = append(r.content.Templates, t)
	return nil
}

func outside(t time.Time) bool { return t.Year() < 1970 || t.Year() > 9999 }

package move

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/idrange"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/directory"
	"lockstep.internal/services/state/workspace"
)

// Existing is what a cell has already of the content of an import.
type Existing struct {
	// IDs are the ids that the cell gives.
	IDs idrange.Range
	// Organization with the id; its ID is 0 if there is none.
	Organization directory.Organization
	// NameTaken is the id of another organization with the name; 0 if there is none.
	NameTaken int64
	// Groups and Projects by id: those of the organization, and those with the ids of the import.
	Groups   map[int64]directory.Group
	Projects map[int64]directory.Project
	// Users by id: those with the ids or the names of the import.
	Users map[int64]directory.User
	// Memberships in the organization.
	Memberships []directory.Membership
	// Outside are the users of the import with a role outside the organization.
	Outside map[int64]bool
	// Tokens by id: those with the ids or the hashes of the import.
	Tokens map[int64]Token
}

// Plan is what an import changes.
type Plan struct {
	// Organization after the import. Create is true if it is new.
	Organization directory.Organization
	Create       bool
	// Groups, Projects, Users and Tokens to create.
	Groups   []directory.Group
	Projects []directory.Project
	Users    []directory.User
	Tokens   []Token
	// Memberships to put, and Ended ones to delete.
	Memberships []directory.Membership
	Ended       []directory.Membership
	// Templates to create or to replace.
	Templates []workspace.Template
	// RevokedTokens exist here, and were revoked in the source.
	RevokedTokens []int64
	// Imported is what to remember.
	Imported Imported
}

// maxConflicts limits the conflicts that an error names.
const maxConflicts = 10

type planner struct {
	content   Content
	existing  Existing
	plan      Plan
	conflicts []string
}

// NewPlan returns what the import of a content changes. It returns the fault failed_precondition, which names the
// conflicts, if the content does not fit to what the cell has; organization_moving during another move of the
// organization.
func NewPlan(c Content, from Move, e Existing) (Plan, error) {
	p := planner{content: c, existing: e}
	o := c.Organization
	if e.Organization.ID != 0 {
		if e.Organization.Residence != directory.ResidenceAway {
			if err := e.Organization.Changeable(); err != nil {
				return Plan{}, err
			}
			return Plan{}, fault.New(errcode.FailedPrecondition,
				"organization %s (%d) is in this cell: it cannot be imported from cell %s",
				e.Organization.Name, e.Organization.ID, from.OtherCell)
		}
		p.plan.Imported.AwayIn = e.Organization.OtherCell
	}
	p.plan.Organization, p.plan.Create = o.At(directory.ResidenceArriving, from.OtherCell), e.Organization.ID == 0
	p.organization(o)
	p.groups()
	p.projects()
	p.users()
	p.memberships()
	p.tokens()
	if n := len(p.conflicts); n > 0 {
		shown := p.conflicts[:min(n, maxConflicts)]
		if n > maxConflicts {
			shown = append(slices.Clone(shown), fmt.Sprintf("and %d more", n-maxConflicts))
		}
		return Plan{}, fault.New(errcode.FailedPrecondition, "organization %s (%d) cannot be imported from cell %s: %s",
			o.Name, o.ID, from.OtherCell, strings.Join(shown, "; "))
	}
	p.plan.Templates, p.plan.Imported.Records = c.Templates, c.Records()
	return p.plan, nil
}

func (p *planner) conflictf(format string, args ...any) {
	p.conflicts = append(p.conflicts, fmt.Sprintf(format, args...))
}

// foreign adds a conflict and returns false if the id is one that this cell gives, but to no such entity.
func (p *planner) foreign(kind string, id int64) bool {
	own := p.existing.IDs.Contains(id)
	if own {
		p.conflictf("this cell never had %s %d, though it gives that id", kind, id)
	}
	return !own
}

func (p *planner) organization(o directory.Organization) {
	e := p.existing.Organization
	switch {
	case p.existing.NameTaken != 0:
		p.conflictf("this cell has another organization with the name %s (%d): move it to a cell without one", o.Name,
			p.existing.NameTaken)
	case e.ID == 0:
		p.foreign("organization", o.ID)
	case e.Name != o.Name:
		p.conflictf("organization %d has the name %s here", o.ID, e.Name)
	}
}

func (p *planner) groups() {
	imported := map[int64]bool{}
	for _, g := range p.content.Groups {
		imported[g.ID] = true
		switch known, exists := p.existing.Groups[g.ID]; {
		case !exists && p.foreign("group", g.ID):
			p.plan.Groups = append(p.plan.Groups, g)
			p.plan.Imported.Groups = append(p.plan.Imported.Groups, g.ID)
		case exists && (known != g || g.OrganizationID != p.content.Organization.ID):
			p.conflictf("group %d has another name or place here", g.ID)
		}
	}
	for _, id := range sortedIDs(p.existing.Groups) {
		if !imported[id] {
			p.conflictf("the import does not have group %d, which the organization has here", id)
		}
	}
}

func (p *planner) projects() {
	imported := map[int64]bool{}
	for _, project := range p.content.Projects {
		imported[project.ID] = true
		known, exists := p.existing.Projects[project.ID]
		known.Path = ""
		switch {
		case !exists && p.foreign("project", project.ID):
			p.plan.Projects = append(p.plan.Projects, project)
			p.plan.Imported.Projects = append(p.plan.Imported.Projects, project.ID)
		case exists && (known != project || project.OrganizationID != p.content.Organization.ID):
			p.conflictf("project %d has another name or place here", project.ID)
		}
	}
	for _, id := range sortedIDs(p.existing.Projects) {
		if !imported[id] {
			p.conflictf("the import does not have project %d, which the organization has here", id)
		}
	}
}

func (p *planner) users() {
	named := map[string]int64{}
	for id, u := range p.existing.Users {
		named[u.Username] = id
	}
	for _, u := range p.content.Users {
		known, exists := p.existing.Users[u.ID]
		other, taken := named[u.Username]
		switch {
		case taken && other != u.ID:
			p.conflictf("this cell has another user with the name %s (%d): in the source, give the roles of user %d to a user "+
				"with another name", u.Username, other, u.ID)
		case exists && known.Username != u.Username:
			p.conflictf("user %d has the name %s here, not %s", u.ID, known.Username, u.Username)
		case exists && u.Blocked && !known.Blocked:
			p.conflictf("user %s (%d) is blocked in the source and active here: block it here, or unblock it there",
				u.Username, u.ID)
		case !exists && p.foreign("user", u.ID):
			p.plan.Users = append(p.plan.Users, u)
			p.plan.Imported.Users = append(p.plan.Imported.Users, u.ID)
		}
	}
}

func (p *planner) memberships() {
	roles := map[member]directory.Role{}
	for _, m := range p.existing.Memberships {
		roles[member{m.UserID, m.Scope}] = m.Role
	}
	for _, m := range p.content.Memberships {
		key := member{m.UserID, m.Scope}
		known, exists := roles[key]
		delete(roles, key)
		if known == m.Role {
			continue
		}
		p.plan.Memberships = append(p.plan.Memberships, m)
		if !exists {
			p.plan.Imported.Memberships = append(p.plan.Imported.Memberships, m)
		}
	}
	for _, m := range p.existing.Memberships {
		if _, stays := roles[member{m.UserID, m.Scope}]; stays {
			p.plan.Ended = append(p.plan.Ended, m)
		}
	}
}

// confined reports whether the user can act in the organization only: a token of somebody else would give rights
// outside it.
func (p *planner) confined(id int64, members map[int64]bool) bool {
	u, exists := p.existing.Users[id]
	return !exists || members[id] && !u.Admin && !p.existing.Outside[id]
}

func (p *planner) tokens() {
	members := map[int64]bool{}
	for _, m := range p.existing.Memberships {
		members[m.UserID] = true
	}
	hashes := map[[sha256.Size]byte]int64{}
	for id, t := range p.existing.Tokens {
		hashes[t.Hash] = id
	}
	here := map[int64]bool{}
	for _, t := range p.content.Tokens {
		known, exists := p.existing.Tokens[t.ID]
		other, taken := hashes[t.Hash]
		switch {
		case taken && other != t.ID || exists && (known.UserID != t.UserID || known.Hash != t.Hash):
			p.conflictf("token %d of user %d is another one here: revoke it in the source", t.ID, t.UserID)
		case exists:
			here[t.ID] = true
			if t.Revoked && !known.Revoked {
				p.plan.RevokedTokens = append(p.plan.RevokedTokens, t.ID)
			}
		case t.Revoked:
		case !p.confined(t.UserID, members):
			p.plan.Imported.TokensLeftOut++
		case p.foreign("token", t.ID):
			here[t.ID] = true
			p.plan.Tokens = append(p.plan.Tokens, t)
			p.plan.Imported.CreatedTokens = append(p.plan.Imported.CreatedTokens, t.ID)
		}
	}
	for i := range p.plan.Tokens {
		if !here[p.plan.Tokens[i].CreatedBy] {
			p.plan.Tokens[i].CreatedBy = 0
		}
	}
	p.plan.Imported.Tokens = sortedIDs(here)
}

func sortedIDs[T any](entities map[int64]T) []int64 {
	ids := make([]int64, 0, len(entities))
	for id := range entities {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

package directory

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
)

// knowledge is what was read of one stream. It is a pure fold over messages; its owner guards it.
type knowledge struct {
	revisions     map[string]int64 // by subject
	organizations map[int64]bool
	groups        map[int64]group
	projects      map[int64]project
	users         map[int64]User
	agents        map[int64]Agent
	keys          map[string]Key
	memberships   map[int64]map[Scope]Role // by user
}

func newKnowledge() *knowledge {
	return &knowledge{
		revisions:     map[string]int64{},
		organizations: map[int64]bool{},
		groups:        map[int64]group{},
		projects:      map[int64]project{},
		users:         map[int64]User{},
		agents:        map[int64]Agent{},
		keys:          map[string]Key{},
		memberships:   map[int64]map[Scope]Role{},
	}
}

var (
	// errUnknownKind is of an entry that this version knows nothing of, which is no fault.
	errUnknownKind = errors.New("entry of an unknown kind")
	errForeign     = errors.New("entry under another's subject")
)

// unnumbered is the revision of a message that has none: it counts as it comes.
const unnumbered = -1

// take applies a message and reports whether it changed anything. A revision that is not above the
// subject's changes nothing. A malformed message is an error and changes nothing.
func (k *knowledge) take(cell topology.Cell, subject string, revision int64, data []byte) (bool, error) {
	parsed, err := topology.Parse(subject)
	if err != nil {
		return false, fmt.Errorf("directory: %w", err)
	}
	if parsed.Family != topology.FamilyDirectory || len(parsed.Tokens) != 2 {
		return false, fmt.Errorf("directory: %s: %w", subject, errUnknownKind)
	}
	if known, told := k.revisions[subject]; told && revision <= known && revision != unnumbered {
		return false, nil
	}
	learn, err := k.reader(parsed.Tokens[0], data)
	if err != nil {
		return false, fmt.Errorf("directory: %s: %w", subject, err)
	}
	key, apply := learn()
	if cell.Directory(parsed.Tokens[0], key) != subject {
		return false, fmt.Errorf("directory: %s: %w", subject, errForeign)
	}
	apply()
	k.revisions[subject] = max(k.revisions[subject], revision)
	return true, nil
}

// reader decodes the data of an entry and returns what tells its key and how to learn it.
func (k *knowledge) reader(kind string, data []byte) (func() (key string, apply func()), error) {
	switch kind {
	case "organization":
		return decode(data, k.organization)
	case "group":
		return decode(data, k.group)
	case "project":
		return decode(data, k.project)
	case "user":
		return decode(data, k.user)
	case "agent":
		return decode(data, k.agent)
	case "membership":
		return decode(data, k.membership)
	case "key":
		var told events.DirectoryKey
		if err := json.Unmarshal(data, &told); err != nil {
			return nil, err //nolint:wrapcheck // the caller names the message
		}
		return k.key(told)
	default:
		return nil, errUnknownKind
	}
}

func decode[T any](data []byte, learn func(T) (string, func())) (func() (string, func()), error) {
	var told T
	if err := json.Unmarshal(data, &told); err != nil {
		return nil, err //nolint:wrapcheck // the caller names the message
	}
	return func() (string, func()) { return learn(told) }, nil
}

// put enters a value, or takes it away where it is deleted.
func put[K comparable, V any](into map[K]V, key K, value V, deleted bool) func() {
	return func() {
		if deleted {
			delete(into, key)
			return
		}
		into[key] = value
	}
}

func (k *knowledge) organization(o events.DirectoryOrganization) (string, func()) {
	return number(o.OrganizationID), put(k.organizations, int64(o.OrganizationID), true, o.Deleted)
}

func (k *knowledge) group(g events.DirectoryGroup) (string, func()) {
	return number(
			g.GroupID,
		), put(
			k.groups, int64(g.GroupID), group{parent: int64(g.ParentGroupID), organization: int64(g.OrganizationID)},
			g.Deleted,
		)
}

func (k *knowledge) project(p events.DirectoryProject) (string, func()) {
	return number(p.ProjectID), put(k.projects, int64(p.ProjectID), project{group: int64(p.GroupID)}, p.Deleted)
}

func (k *knowledge) user(u events.DirectoryUser) (string, func()) {
	known := User{ID: int64(u.UserID), Admin: u.Admin, Blocked: u.State != events.UserStateActive}
	return number(u.UserID), put(k.users, known.ID, known, u.Deleted)
}

func (k *knowledge) agent(a events.DirectoryAgent) (string, func()) {
	known := Agent{ID: int64(a.AgentID), ProjectID: int64(a.ProjectID), Revoked: a.Revoked}
	// What is no hash fits no token, but what else the entry says counts.
	if hash, err := hex.DecodeString(a.TokenHash); err == nil && len(hash) == len(known.TokenHash) {
		known.TokenHash = natsauth.TokenHash(hash)
	}
	return number(a.AgentID), put(k.agents, known.ID, known, a.Deleted)
}

func (k *knowledge) membership(m events.DirectoryMembership) (string, func()) {
	user, scope := int64(m.UserID), Scope{Kind: m.Scope, ID: int64(m.ScopeID)}
	return fmt.Sprintf("%d-%s-%d", user, scope.Kind, scope.ID), func() {
		roles := k.memberships[user]
		if roles == nil {
			roles = map[Scope]Role{}
			k.memberships[user] = roles
		}
		put(roles, scope, m.Role, m.Deleted)()
		if len(roles) == 0 {
			delete(k.memberships, user)
		}
	}
}

func (k *knowledge) key(told events.DirectoryKey) (func() (string, func()), error) {
	known := Key{ID: told.KeyID, NotBefore: told.NotBefore, NotAfter: told.NotAfter}
	if told.Algorithm != events.KeyAlgorithmEdDSA {
		return nil, fmt.Errorf("%w: a key of algorithm %q", errUnknownKind, told.Algorithm)
	}
	raw, err := base64.RawURLEncoding.DecodeString(told.PublicKey)
	if err != nil || len(raw) != ed25519.PublicKeySize {
		return nil, fmt.Errorf("key %s is no Ed25519 key", told.KeyID)
	}
	known.Public = raw
	return func() (string, func()) { return known.ID, put(k.keys, known.ID, known, told.Deleted) }, nil
}

func number(id int) string { return fmt.Sprint(id) }

// role is the user's highest role in the scope: its own there, or inherited from above.
func (k *knowledge) role(userID int64, scope Scope) Role {
	user, known := k.users[userID]
	if !known || user.Blocked {
		return RoleNone
	}
	role := RoleNone
	for _, at := range k.above(scope) {
		role = higher(role, k.memberships[userID][at])
	}
	return role
}

// above is the scope with all that it is in, from the inside out; nil where it does not exist, or
// something that it is in does not.
func (k *knowledge) above(scope Scope) []Scope {
	chain := []Scope{scope}
	at := scope
	if at.Kind == Project {
		p, known := k.projects[at.ID]
		if !known {
			return nil
		}
		at = Scope{Group, p.group}
		chain = append(chain, at)
	}
	seen := map[int64]bool{}
	for at.Kind == Group {
		g, known := k.groups[at.ID]
		if !known || seen[at.ID] { // no chain of groups comes back to itself
			return nil
		}
		seen[at.ID] = true
		at = Scope{Group, g.parent}
		if g.parent == 0 {
			at = Scope{Organization, g.organization}
		}
		chain = append(chain, at)
	}
	if at.Kind != Organization || !k.organizations[at.ID] {
		return nil
	}
	return chain
}

func (k *knowledge) agentRole(userID, agentID int64) Role {
	agent, known := k.agents[agentID]
	if !known {
		return RoleNone
	}
	return k.role(userID, Scope{Project, agent.ProjectID})
}

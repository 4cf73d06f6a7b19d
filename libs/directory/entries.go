package directory

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"lockstep.internal/libs/lastvalue"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
)

// entries is the content of the stream. It has no lock; the owner synchronizes access.
type entries struct {
	revisions     map[string]int64 // by subject
	organizations map[int64]bool
	groups        map[int64]group
	projects      map[int64]project
	users         map[int64]User
	agents        map[int64]Agent
	keys          map[string]Key
	memberships   map[int64]map[Scope]Role // by user
}

func newEntries() *entries {
	return &entries{
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
	// errUnknownKind: the entry has a kind of a newer version. It is ignored.
	errUnknownKind = errors.New("entry of an unknown kind")
	errForeign     = errors.New("the entry's key does not match its subject")
)

// apply applies a message and reports whether it changed anything. It ignores lower and equal revisions; a message
// without a revision always applies. A malformed message is an error and changes nothing.
func (k *entries) apply(cell topology.Cell, subject string, revision int64, data []byte) (bool, error) {
	parsed, err := topology.Parse(subject)
	if err != nil {
		return false, fmt.Errorf("directory: %w", err)
	}
	if parsed.Family != topology.FamilyDirectory || len(parsed.Tokens) != 2 {
		return false, fmt.Errorf("directory: %s: %w", subject, errUnknownKind)
	}
	if last, exists := k.revisions[subject]; exists && revision <= last && revision != lastvalue.NoRevision {
		return false, nil
	}
	key, apply, err := k.decodeEntry(parsed.Tokens[0], data)
	if err != nil {
		return false, fmt.Errorf("directory: %s: %w", subject, err)
	}
	if cell.Directory(parsed.Tokens[0], key) != subject {
		return false, fmt.Errorf("directory: %s: %w", subject, errForeign)
	}
	apply()
	k.revisions[subject] = max(k.revisions[subject], revision)
	return true, nil
}

// decodeEntry returns the key of an entry and a function that applies it.
func (k *entries) decodeEntry(kind string, data []byte) (key string, apply func(), err error) {
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
		var entry events.DirectoryKey
		if err := json.Unmarshal(data, &entry); err != nil {
			return "", nil, err //nolint:wrapcheck // the caller names the message
		}
		return k.key(entry)
	default:
		return "", nil, errUnknownKind
	}
}

func decode[T any](data []byte, of func(T) (string, func())) (key string, apply func(), err error) {
	var entry T
	if err := json.Unmarshal(data, &entry); err != nil {
		return "", nil, err //nolint:wrapcheck // the caller names the message
	}
	key, apply = of(entry)
	return key, apply, nil
}

// put returns a function that sets or deletes the value.
func put[K comparable, V any](into map[K]V, key K, value V, deleted bool) func() {
	return func() {
		if deleted {
			delete(into, key)
			return
		}
		into[key] = value
	}
}

func (k *entries) organization(o events.DirectoryOrganization) (string, func()) {
	return number(o.OrganizationID), put(k.organizations, int64(o.OrganizationID), true, o.Deleted)
}

func (k *entries) group(g events.DirectoryGroup) (string, func()) {
	return number(g.GroupID), put(
		k.groups, int64(g.GroupID), group{parent: int64(g.ParentGroupID), organization: int64(g.OrganizationID)},
		g.Deleted,
	)
}

func (k *entries) project(p events.DirectoryProject) (string, func()) {
	return number(p.ProjectID), put(k.projects, int64(p.ProjectID), project{group: int64(p.GroupID)}, p.Deleted)
}

func (k *entries) user(u events.DirectoryUser) (string, func()) {
	known := User{
		ID: int64(u.UserID), Admin: u.Admin, Blocked: u.State != events.UserStateActive, UsernameHash: u.UsernameHash,
	}
	for _, token := range u.RevokedTokens {
		known.RevokedTokens = append(known.RevokedTokens, int64(token))
	}
	return number(u.UserID), put(k.users, known.ID, known, u.Deleted)
}

// tokenHash decodes a hash. An invalid one is zero, which matches no token.
func tokenHash(text string) natsauth.TokenHash {
	hash, err := hex.DecodeString(text)
	if err != nil || len(hash) != len(natsauth.TokenHash{}) {
		return natsauth.TokenHash{}
	}
	return natsauth.TokenHash(hash)
}

func (k *entries) agent(a events.DirectoryAgent) (string, func()) {
	known := Agent{ID: int64(a.AgentID), ProjectID: int64(a.ProjectID), Name: a.Name, Revoked: a.Revoked}
	known.TokenHash, known.PreviousTokenHash = tokenHash(a.TokenHash), tokenHash(a.PreviousTokenHash)
	if a.PreviousTokenValidUntil != nil {
		known.PreviousTokenValidUntil = *a.PreviousTokenValidUntil
	}
	return number(a.AgentID), put(k.agents, known.ID, known, a.Deleted)
}

func (k *entries) membership(m events.DirectoryMembership) (string, func()) {
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

func (k *entries) key(entry events.DirectoryKey) (string, func(), error) {
	known := Key{ID: entry.KeyID, NotBefore: entry.NotBefore, NotAfter: entry.NotAfter}
	if entry.Algorithm != events.KeyAlgorithmEdDSA {
		return "", nil, fmt.Errorf("%w: a key of algorithm %q", errUnknownKind, entry.Algorithm)
	}
	raw, err := base64.RawURLEncoding.DecodeString(entry.PublicKey)
	if err != nil || len(raw) != ed25519.PublicKeySize {
		return "", nil, fmt.Errorf("key %s is no Ed25519 key", entry.KeyID)
	}
	known.Public = raw
	return known.ID, put(k.keys, known.ID, known, entry.Deleted), nil
}

func number(id int) string { return fmt.Sprint(id) }

// role returns the user's highest role in the scope, direct or inherited.
func (k *entries) role(userID int64, scope Scope) Role {
	user, known := k.users[userID]
	if !known || user.Blocked {
		return RoleNone
	}
	role := RoleNone
	for _, at := range k.scopeChain(scope) {
		role = higher(role, k.memberships[userID][at])
	}
	return role
}

// scopeChain returns the scope and its ancestors, innermost first, or nil if one of them does not exist.
func (k *entries) scopeChain(scope Scope) []Scope {
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
		if !known || seen[at.ID] { // stop at a cycle of groups
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

// place returns the position of the scope.
func (k *entries) place(scope Scope) (Place, bool) {
	chain := k.scopeChain(scope)
	if chain == nil {
		return Place{}, false
	}
	last := len(chain) - 1 // the organization
	place := Place{Organization: chain[last].ID}
	for _, at := range chain[min(1, last):last] {
		place.Groups = append(place.Groups, at.ID)
	}
	return place, true
}

func (k *entries) agentRole(userID, agentID int64) Role {
	agent, known := k.agents[agentID]
	if !known {
		return RoleNone
	}
	return k.role(userID, Scope{Project, agent.ProjectID})
}

package access

import (
	"slices"
	"strings"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

// Scope limits what a token may do. It never gives more rights than its user has. Each scope includes the previous one.
type Scope string

// Scopes.
const (
	// ScopeRead reads: lists, watches, logs.
	ScopeRead Scope = "read"
	// ScopeWrite also changes workspaces, templates and objects in clusters, and opens streams into clusters.
	ScopeWrite Scope = "write"
	// ScopeAdmin does everything that the user may do: it also manages users, memberships, tokens, agents and the cell.
	ScopeAdmin Scope = "admin"
)

// ScopeNames lists the scopes, for messages.
const ScopeNames = "read, write or admin"

func (s Scope) rank() int { return slices.Index([]Scope{ScopeRead, ScopeWrite, ScopeAdmin}, s) }

// Valid reports whether the scope exists.
func (s Scope) Valid() bool { return s.rank() >= 0 }

// Includes reports whether the scope permits what needed permits. An unknown scope permits nothing.
func (s Scope) Includes(needed Scope) bool {
	return s.Valid() && needed.Valid() && s.rank() >= needed.rank()
}

// Require returns the fault permission_denied unless the scope includes needed. resource names what was requested.
func (s Scope) Require(needed Scope, resource string) error {
	if s.Includes(needed) {
		return nil
	}
	return fault.New(errcode.PermissionDenied,
		"your token has the scope %s, and %s needs %s: create a token with --scope %s", s, resource, needed, needed)
}

// Scopes are the scopes that the procedures of a service need, such as /lockstep.state.v1.TokenService/ListTokens.
type Scopes map[string]Scope

// Check returns the fault permission_denied unless a token with this scope may call the procedure. A procedure that is
// not in the table needs [ScopeAdmin].
func (s Scopes) Check(held Scope, procedure string) error {
	needed, known := s[procedure]
	if !known {
		needed = ScopeAdmin
	}
	return held.Require(needed, procedure[strings.LastIndexByte(procedure, '/')+1:])
}

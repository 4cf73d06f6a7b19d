package persontoken

import "slices"

// Scope is a right of a token.
type Scope string

const (
	// ScopeStartWorkspaces starts workspaces that the person may start.
	ScopeStartWorkspaces Scope = "workspaces.start"
	// ScopeCreateTokens creates personal access tokens of the person.
	ScopeCreateTokens Scope = "tokens.create"
)

// Valid reports whether the scope exists.
func (s Scope) Valid() bool {
	return slices.Contains([]Scope{ScopeStartWorkspaces, ScopeCreateTokens}, s)
}

package directory

import (
	"errors"

	"lockstep.internal/libs/topology"
)

// Fold exposes entries to tests.
type Fold struct{ known *entries }

// NewFold knows nothing.
func NewFold() *Fold { return &Fold{known: newEntries()} }

// Take applies a message.
func (f *Fold) Take(cell topology.Cell, subject string, revision int64, data []byte) (bool, error) {
	return f.known.apply(cell, subject, revision, data)
}

// Role of the user.
func (f *Fold) Role(user int64, scope Scope) Role { return f.known.role(user, scope) }

// Agent of the id.
func (f *Fold) Agent(id int64) (Agent, bool) {
	agent, known := f.known.agents[id]
	return agent, known
}

// AgentRole of the user.
func (f *Fold) AgentRole(user, agent int64) Role { return f.known.agentRole(user, agent) }

// Unknown says whether the error is of an entry of an unknown kind.
func Unknown(err error) bool { return errors.Is(err, errUnknownKind) }

// Place of the scope.
func (f *Fold) Place(scope Scope) (Place, bool) { return f.known.place(scope) }

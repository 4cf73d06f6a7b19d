package domain

import (
	"time"

	"github.com/google/uuid"

	"lockstep.internal/services/state/actualstate"
)

// DefaultNamespacePrefix begins the namespace of every workspace; dispatchers refuse others.
const DefaultNamespacePrefix = "ws-"

// Workspace is a development environment on a Kubernetes cluster: what is wanted of it and what its cluster says. Its methods return the
// changed workspace and leave the receiver as it is; a store saves the difference.
type Workspace struct {
	// Static after creation.

	ID        uuid.UUID
	Name      string
	ProjectID int64
	AgentID   int64
	UserID    int64
	Template  string
	Namespace string
	// IdempotencyKey of the request that created it; empty without one.
	IdempotencyKey string
	CreatedAt      time.Time

	// What is wanted.

	Spec         Spec
	DesiredState DesiredState
	// DesiredRevision grows with every change that the cluster has to hear of.
	DesiredRevision       int64
	DesiredStateChangedAt time.Time
	// DesiredStateSince is when DesiredState, and not only the revision, was changed last: policies count from here.
	DesiredStateSince time.Time
	// ExpiryWarnedOf is the end by a policy that counts from DesiredStateSince that the user was warned of; zero for none. AgeWarnedOf is that by the workspace's age.
	ExpiryWarnedOf time.Time
	AgeWarnedOf    time.Time
	// Cause of the last change of what is wanted. It is not stored: it is set by the method that changes, for the event.
	Cause Cause
	// Warnings that were just given. They are not stored either.
	Warnings []ExpiryWarning
	// Drifts are what was found changed by others. They are not stored: they are set by the method that finds them, for the events.
	Drifts []Drift

	// What the cluster says.

	ActualState ActualState
	// ActualStateRevision counts the changes of ActualState and Reason, and ActualStateChangedAt is the time of the last.
	ActualStateRevision  int64
	ActualStateChangedAt time.Time
	// Reason of the actual state for machines, Message for the user. Always there for failed and error.
	Reason, Message string
	// AppliedRevision is the last one that the dispatcher has applied whole, AppliedAt its time of doing so.
	AppliedRevision int64
	AppliedAt       time.Time
	// AppliedUID and AppliedGeneration are the Deployment's as the dispatcher has left it: a higher generation was made by somebody else.
	AppliedUID        string
	AppliedGeneration int64
	// ApplyError is nil unless the last attempt to apply failed.
	ApplyError  *actualstate.ApplyError
	Termination actualstate.Termination
	// ReconsiderAt is the agent's time from which on the workspace is another one if nothing else happens: its actual state, or what is wanted by a policy. Zero for never.
	ReconsiderAt time.Time
}

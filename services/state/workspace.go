package state

import (
	"reflect"
	"strconv"
	"time"

	"github.com/google/uuid"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/events"
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
	// Cause of the last change of what is wanted. It is not stored: it is set by the method that changes, for the event.
	Cause Cause

	// What the cluster says.

	ActualState ActualState
	// ActualStateRevision counts the changes of ActualState, Reason and Message.
	ActualStateRevision  int64
	ActualStateChangedAt time.Time
	// Reason of the actual state for machines, Message for the user. Always there for failed and error.
	Reason, Message string
	// AppliedRevision is the last one that the dispatcher has applied whole, AppliedAt its time of doing so.
	AppliedRevision int64
	AppliedAt       time.Time
	// ApplyError is nil unless the last attempt to apply failed.
	ApplyError  *actualstate.ApplyError
	Termination actualstate.Termination
	// ReconsiderAt is the agent's time from which on the actual state is another one if nothing else happens; zero for never.
	ReconsiderAt time.Time
}

// Creation is what NewWorkspace needs to know.
type Creation struct {
	// Name is a DNS-safe slug of at most 40 characters.
	Name      string
	ProjectID int64
	AgentID   int64
	UserID    int64
	Template  string
	// Spec gets its defaults here.
	Spec           Spec
	IdempotencyKey string
	// NamespacePrefix defaults to DefaultNamespacePrefix.
	NamespacePrefix string
	Now             time.Time
}

// NewWorkspace makes a workspace that is wanted running. The fault invalid_argument names everything that is wrong.
func NewWorkspace(c Creation) (Workspace, error) {
	c.Spec = c.Spec.WithDefaults()
	if err := c.Spec.Validate(); err != nil {
		return Workspace{}, err
	}
	if c.NamespacePrefix == "" {
		c.NamespacePrefix = DefaultNamespacePrefix
	}
	id, err := uuid.NewV7()
	if err != nil {
		return Workspace{}, fault.Wrap(err, errcode.Internal, "no randomness for the id of workspace %q", c.Name)
	}
	return Workspace{
		ID: id, Name: c.Name, ProjectID: c.ProjectID, AgentID: c.AgentID, UserID: c.UserID, Template: c.Template,
		Namespace: c.NamespacePrefix + strconv.FormatInt(c.AgentID, 10) + "-" + c.Name, IdempotencyKey: c.IdempotencyKey, CreatedAt: c.Now,
		Spec: c.Spec, DesiredState: DesiredRunning, DesiredRevision: 1, DesiredStateChangedAt: c.Now,
		Cause:       Cause{Kind: events.DesiredStateCauseUser, UserID: c.UserID},
		ActualState: actualstate.CreationRequested, ActualStateChangedAt: c.Now, Termination: actualstate.TerminationNone,
	}, nil
}

// SetDesired says what the user wants from now on. It is no change when that is wanted already. A restart of what is wanted stopped is a start.
// The fault workspace_terminated refuses everything but Terminated once that was wanted.
func (w Workspace) SetDesired(to DesiredState, userID int64, now time.Time) (Workspace, error) {
	if to == DesiredRestartRequested && w.DesiredState == DesiredStopped {
		to = DesiredRunning
	}
	if to == w.DesiredState {
		return w, nil
	}
	if err := w.refuseTerminated(); err != nil {
		return w, err
	}
	w.DesiredState = to
	return w.desire(Cause{Kind: events.DesiredStateCauseUser, UserID: userID}, now), nil
}

// Update replaces the spec. It is no change when it is the same already.
func (w Workspace) Update(spec Spec, userID int64, now time.Time) (Workspace, error) {
	if err := w.refuseTerminated(); err != nil {
		return w, err
	}
	spec = spec.WithDefaults()
	if err := spec.Validate(); err != nil {
		return w, err
	}
	if reflect.DeepEqual(spec, w.Spec) {
		return w, nil
	}
	w.Spec = spec
	return w.desire(Cause{Kind: events.DesiredStateCauseUser, UserID: userID}, now), nil
}

// Redispatch tells the cluster again what is wanted.
func (w Workspace) Redispatch(now time.Time) Workspace {
	return w.desire(Cause{Kind: events.DesiredStateCauseRedispatch}, now)
}

// desire is the one way to a new revision.
func (w Workspace) desire(cause Cause, now time.Time) Workspace {
	w.DesiredRevision++
	w.DesiredStateChangedAt = now
	w.Cause = cause
	return w
}

func (w Workspace) refuseTerminated() error {
	if w.DesiredState != DesiredTerminated {
		return nil
	}
	return fault.New(errcode.WorkspaceTerminated, "workspace %q was asked to terminate, which is permanent; create another one", w.Name).
		With("workspace_id", w.ID.String())
}

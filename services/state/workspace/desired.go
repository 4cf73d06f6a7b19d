package workspace

import (
	"reflect"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/api/resource"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/actualstate"
)

// DesiredState is the state that the user requested.
type DesiredState string

// Desired states. Terminated is permanent. RestartRequested is sent to the cluster as stopped. It changes to
// Running after the workspace has stopped.
const (
	DesiredRunning          DesiredState = "running"
	DesiredStopped          DesiredState = "stopped"
	DesiredTerminated       DesiredState = "terminated"
	DesiredRestartRequested DesiredState = "restart_requested"
)

// DesiredStates returns every desired state.
func DesiredStates() []DesiredState {
	return []DesiredState{DesiredRunning, DesiredStopped, DesiredTerminated, DesiredRestartRequested}
}

// Target returns the target state that is sent to the dispatcher.
func (d DesiredState) Target() events.DesiredTarget {
	switch d {
	case DesiredRunning:
		return events.DesiredTargetRunning
	case DesiredTerminated:
		return events.DesiredTargetTerminated
	case DesiredStopped, DesiredRestartRequested:
		return events.DesiredTargetStopped
	default:
		return events.DesiredTargetStopped
	}
}

// Cause explains a change of the desired state.
type Cause struct {
	Kind events.DesiredStateCause
	// UserID of the user who requested it; 0 for the system.
	UserID int64
	// Message explains the change to the user; empty if a user asked.
	Message string
}

// Creation is the input of New.
type Creation struct {
	// Name is a DNS-safe slug of at most 40 characters that starts with a letter.
	Name      string
	ProjectID int64
	AgentID   int64
	UserID    int64
	Template  string
	// Spec gets the Defaults in New.
	Spec Spec
	// Defaults are the sizes that Spec does not set. They default to DefaultSizes.
	Defaults       Sizes
	Maximums       Maximums
	IdempotencyKey string
	// NamespacePrefix defaults to DefaultNamespacePrefix.
	NamespacePrefix string
	Now             time.Time
	// Adopted describes objects that exist already; nil for a workspace from scratch.
	Adopted *Adopted
}

// Adopted contains the values that an adopted workspace takes from the cluster.
type Adopted struct {
	ID           uuid.UUID
	Namespace    string
	DesiredState DesiredState
	// Revision that the objects were applied with; 0 if unknown.
	Revision int64
}

// New creates a workspace with desired state running, or with the state in Adopted. The fault invalid_argument names
// every invalid field.
func New(c Creation) (Workspace, []Event, error) {
	c.Spec = c.Spec.WithDefaults(c.Defaults).WithDefaults(DefaultSizes())
	var f fieldErrors
	f.name("name", c.Name)
	c.Spec.check(&f)
	f.checkMaximums(c.Spec.Totals(), Sizes{}, c.Maximums)
	if err := f.Err("workspace " + strconv.Quote(c.Name)); err != nil {
		return Workspace{}, nil, err
	}
	if c.NamespacePrefix == "" {
		c.NamespacePrefix = DefaultNamespacePrefix
	}
	id, err := uuid.NewV7()
	if err != nil {
		return Workspace{}, nil, fault.Wrap(err, errcode.Internal, "no random bytes for the id of workspace %q", c.Name)
	}
	now := Timestamp(c.Now)
	w := Workspace{
		ID: id, Name: c.Name, ProjectID: c.ProjectID, AgentID: c.AgentID, UserID: c.UserID, Template: c.Template,
		Namespace: namespace(c.NamespacePrefix, c.AgentID, c.Name), IdempotencyKey: c.IdempotencyKey,
		CreatedAt: now, Spec: c.Spec,
		DesiredState: DesiredRunning, DesiredRevision: 1, DesiredStateChangedAt: now, DesiredStateSince: now,
		ActualState: actualstate.CreationRequested, ActualStateChangedAt: now, Termination: actualstate.TerminationNone,
		RecomputeAt: DueAtNextTick(), // the first tick computes the deadlines of the policies
	}
	if a := c.Adopted; a != nil {
		w.ID, w.Namespace, w.DesiredState, w.DesiredRevision = a.ID, a.Namespace, a.DesiredState, a.Revision+1
	}
	return w, []Event{w.created(c.Adopted != nil)}, nil
}

// SetDesired changes the desired state. It does nothing if the state is the same. A restart of a stopped
// workspace starts it. After terminated, any other state gives the fault workspace_terminated.
func (w Workspace) SetDesired(to DesiredState, userID int64, now time.Time) (Workspace, []Event, error) {
	if !slices.Contains(DesiredStates(), to) {
		return w, nil, fault.New(errcode.InvalidArgument, "desired state %q is unknown; give one of %q", to, DesiredStates())
	}
	if to == w.DesiredState {
		return w, nil, nil
	}
	if err := w.checkNotTerminated(); err != nil {
		return w, nil, err
	}
	if to == DesiredRestartRequested && w.DesiredState == DesiredStopped {
		to = DesiredRunning
	}
	w, event := w.newRevision(to, Cause{Kind: events.DesiredStateCauseUser, UserID: userID}, now)
	w.RecomputeAt = DueAtNextTick() // the next tick computes the deadlines of the policies
	return w, []Event{event}, nil
}

// SetSpec replaces the spec; an empty size keeps its value. The same spec again is no change. The volume can grow but
// not shrink. A size above its maximum can only become smaller.
func (w Workspace) SetSpec(spec Spec, maximums Maximums, userID int64, now time.Time) (Workspace, []Event, error) {
	if err := w.checkNotTerminated(); err != nil {
		return w, nil, err
	}
	spec = spec.WithDefaults(w.Spec.sizes())
	spec.StorageClass = w.Spec.StorageClass
	var f fieldErrors
	spec.check(&f)
	f.checkMaximums(spec.Totals(), w.Spec.Totals(), maximums)
	f.checkVolumeSize("volume_size", w.Spec.VolumeSize, spec.VolumeSize)
	if err := f.Err("workspace " + strconv.Quote(w.Name)); err != nil {
		return w, nil, err
	}
	if reflect.DeepEqual(spec.normalized(), w.Spec.normalized()) {
		return w, nil, nil
	}
	w.Spec = spec
	w, event := w.newRevision(w.DesiredState, Cause{Kind: events.DesiredStateCauseUser, UserID: userID}, now)
	return w, []Event{event}, nil
}

// Redispatch creates a new revision with the same desired state, so that the dispatcher applies it again.
func (w Workspace) Redispatch(now time.Time) (Workspace, []Event) {
	w, event := w.newRevision(w.DesiredState, Cause{Kind: events.DesiredStateCauseRedispatch}, now)
	return w, []Event{event}
}

// Render creates a new revision with the same desired state, because the settings of the manifests have changed. A
// workspace that was asked to terminate has no manifests.
func (w Workspace) Render(now time.Time) (Workspace, []Event) {
	if w.DesiredState == DesiredTerminated {
		return w, nil
	}
	w, event := w.newRevision(w.DesiredState, Cause{Kind: events.DesiredStateCauseSettings}, now)
	return w, []Event{event}
}

// DueAtNextTick returns a time in the past, the Unix epoch. As RecomputeAt it makes the workspace due at the agent's
// next tick.
func DueAtNextTick() time.Time { return time.Unix(0, 0).UTC() }

// WithDesiredFrom copies everything about the desired state from another version of the workspace. A rebuild uses it,
// because OBSERVED and APPLIED contain only the actual state.
func (w Workspace) WithDesiredFrom(other Workspace) Workspace {
	w.Spec, w.DesiredState, w.DesiredRevision = other.Spec, other.DesiredState, other.DesiredRevision
	w.DesiredStateChangedAt, w.DesiredStateSince = other.DesiredStateChangedAt, other.DesiredStateSince
	w.WarnedStateDeadline, w.WarnedAgeDeadline = other.WarnedStateDeadline, other.WarnedAgeDeadline
	w.WarnedIdleDeadline, w.ExtendedUntil = other.WarnedIdleDeadline, other.ExtendedUntil
	w.LastActivity, w.CountsProcesses = other.LastActivity, other.CountsProcesses
	return w
}

// newRevision creates a desired revision. Only New, newRevision and catchUp choose DesiredRevision; WithDesiredFrom
// copies it.
func (w Workspace) newRevision(to DesiredState, cause Cause, now time.Time) (Workspace, Event) {
	from := w.DesiredState
	if to != from {
		w.DesiredState, w.DesiredStateSince = to, Timestamp(now)
		w.WarnedStateDeadline, w.WarnedIdleDeadline = time.Time{}, time.Time{}
		if to == DesiredStopped || to == DesiredTerminated {
			w.ExtendedUntil = time.Time{}
		}
		if to == DesiredTerminated {
			w.RecomputeAt = DueAtNextTick() // the actual state depends on the desired state, so recompute it
		}
	}
	w.DesiredRevision++
	w.DesiredStateChangedAt = Timestamp(now)
	return w, w.desiredStateChanged(from, cause)
}

func (w Workspace) checkNotTerminated() error {
	if w.DesiredState != DesiredTerminated {
		return nil
	}
	return fault.New(errcode.WorkspaceTerminated,
		"workspace %q was asked to terminate, which is permanent; create another one", w.Name).
		With("workspace_id", w.ID.String())
}

// checkVolumeSize adds an error if the volume is smaller than the current one.
func (f *fieldErrors) checkVolumeSize(path, from, to string) {
	before, errBefore := resource.ParseQuantity(from)
	after, errAfter := resource.ParseQuantity(to)
	if errBefore == nil && errAfter == nil && after.Cmp(before) < 0 {
		f.Addf(path, "%q is less than the current %q; a volume cannot shrink", to, from)
	}
}

package workspace

import (
	"reflect"
	"strconv"
	"strings"
	"time"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/actualstate"
)

// Event is a public event about a workspace.
type Event struct {
	// Name is the event type after "workspace.", such as state_changed.
	Name string
	// ID is deterministic: the same change has the same ID when it is published again.
	ID   string
	Time time.Time
	// Data is the payload, such as events.WorkspaceStateChanged.
	Data any
}

// Update is a change of a workspace: the old value, the new value and the events to publish.
type Update struct {
	// Before is the zero value for a new workspace.
	Before, After Workspace
	Events        []Event
}

// Changed reports whether the decision changed the workspace or has events.
func (u Update) Changed() bool { return len(u.Events) > 0 || !reflect.DeepEqual(u.Before, u.After) }

// Renders reports whether the update publishes manifests, which need the configuration of the agent.
func (u Update) Renders() bool {
	return u.After.DesiredRevision != u.Before.DesiredRevision && u.After.DesiredState != DesiredTerminated
}

// SpecChanged reports whether the workspace is new or has another spec.
func (u Update) SpecChanged() bool { return !reflect.DeepEqual(u.Before.Spec, u.After.Spec) }

func (w Workspace) event(name string, at time.Time, data any, id ...string) Event {
	return Event{Name: name, ID: strings.Join(append([]string{w.ID.String()}, id...), "/"), Time: at, Data: data}
}

func (w Workspace) created(adopted bool) Event {
	return w.event("created", w.CreatedAt, events.WorkspaceCreated{
		WorkspaceID:     w.ID.String(),
		Name:            w.Name,
		ProjectID:       int(w.ProjectID),
		AgentID:         int(w.AgentID),
		UserID:          int(w.UserID),
		Template:        w.Template,
		DesiredState:    events.DesiredState(w.DesiredState),
		ActualState:     events.ActualState(w.ActualState),
		DesiredRevision: int(w.DesiredRevision),
		Adopted:         adopted,
	}, "created")
}

func (w Workspace) stateChanged(from actualstate.State) Event {
	return w.event("state_changed", w.ActualStateChangedAt, events.WorkspaceStateChanged{
		WorkspaceID: w.ID.String(),
		Name:        w.Name,
		ProjectID:   int(w.ProjectID),
		AgentID:     int(w.AgentID),
		From: events.ActualState(
			from,
		),
		To:           events.ActualState(w.ActualState),
		DesiredState: events.DesiredState(w.DesiredState),
		Reason:       w.Reason,
		Message:      w.Message,
		Unexpected:   !actualstate.Expected(from, w.ActualState),
	}, "actual", strconv.FormatInt(w.ActualStateRevision, 10))
}

func (w Workspace) desiredStateChanged(from DesiredState, cause Cause) Event {
	return w.event("desired_state_changed", w.DesiredStateChangedAt, events.WorkspaceDesiredStateChanged{
		WorkspaceID: w.ID.String(), Name: w.Name, ProjectID: int(w.ProjectID), AgentID: int(w.AgentID),
		From: events.DesiredState(from), To: events.DesiredState(w.DesiredState), DesiredRevision: int(w.DesiredRevision),
		UserID: int(cause.UserID), Cause: &cause.Kind, Message: cause.Message,
	}, "desired", strconv.FormatInt(w.DesiredRevision, 10))
}

// drifted includes the time in the event ID, because one revision can be repaired several times.
func (w Workspace) drifted(object events.ObjectReference, revision int64, at time.Time, message string) Event {
	at = Timestamp(at)
	return w.event("drifted", at, events.WorkspaceDrifted{
		WorkspaceID: w.ID.String(), Name: w.Name, ProjectID: int(w.ProjectID), AgentID: int(w.AgentID),
		Object: object, DesiredRevision: int(revision), Message: message,
	}, "drifted", strconv.FormatInt(revision, 10), strconv.FormatInt(at.UnixMilli(), 10), object.Kind, object.Name)
}

func (w Workspace) expiryWarning(e Expiry, at time.Time, message string) Event {
	return w.event("expiry_warning", Timestamp(at), events.WorkspaceExpiryWarning{
		WorkspaceID: w.ID.String(), Name: w.Name, ProjectID: int(w.ProjectID), AgentID: int(w.AgentID),
		Policy: e.Policy, To: events.DesiredState(e.To), ExpiresAt: e.At, Message: message,
	}, "expiry", string(e.Policy), strconv.FormatInt(e.At.UnixMilli(), 10))
}

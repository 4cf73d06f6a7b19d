package domain

import (
	"strconv"
	"strings"
	"time"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/actualstate"
)

// Change is one thing that happened to a workspace, for those who follow it.
type Change struct {
	// Name of the event after "workspace.", such as state_changed.
	Name string
	// ID is the same whenever the same change is told.
	ID   string
	Time time.Time
	// Data is the event's.
	Data any
	// Unexpected is a change of the actual state that the state diagram does not know.
	Unexpected bool
}

// Changes returns what happened to a workspace between two versions of it, in order. Before is nil for one that was just created.
func Changes(before *Workspace, after Workspace) []Change {
	if before == nil {
		return []Change{{Name: "created", ID: after.ID.String() + "/created", Time: after.CreatedAt, Data: events.WorkspaceCreated{
			WorkspaceID: after.ID.String(), Name: after.Name, ProjectID: int(after.ProjectID), AgentID: int(after.AgentID), UserID: int(after.UserID),
			Template: after.Template, DesiredState: events.DesiredState(after.DesiredState), ActualState: events.ActualState(after.ActualState),
			DesiredRevision: int(after.DesiredRevision), Adopted: after.Cause.Kind == events.DesiredStateCauseAdopted,
		}}}
	}
	var changes []Change
	if after.ActualStateRevision != before.ActualStateRevision {
		unexpected := !actualstate.Expected(before.ActualState, after.ActualState)
		changes = append(changes, Change{
			Name: "state_changed", ID: after.ID.String() + "/actual/" + strconv.FormatInt(after.ActualStateRevision, 10), Time: after.ActualStateChangedAt,
			Unexpected: unexpected,
			Data: events.WorkspaceStateChanged{
				WorkspaceID: after.ID.String(), Name: after.Name, ProjectID: int(after.ProjectID), AgentID: int(after.AgentID),
				From: events.ActualState(before.ActualState), To: events.ActualState(after.ActualState), DesiredState: events.DesiredState(before.DesiredState),
				Reason: after.Reason, Message: after.Message, Unexpected: unexpected,
			},
		})
	}
	for _, d := range after.Drifts {
		changes = append(changes, d.change(after))
	}
	if after.DesiredRevision != before.DesiredRevision {
		changes = append(changes, Change{
			Name: "desired_state_changed", ID: after.ID.String() + "/desired/" + strconv.FormatInt(after.DesiredRevision, 10), Time: after.DesiredStateChangedAt,
			Data: events.WorkspaceDesiredStateChanged{
				WorkspaceID: after.ID.String(), Name: after.Name, ProjectID: int(after.ProjectID), AgentID: int(after.AgentID),
				From: events.DesiredState(before.DesiredState), To: events.DesiredState(after.DesiredState), DesiredRevision: int(after.DesiredRevision),
				UserID: int(after.Cause.UserID), Cause: &after.Cause.Kind, Message: after.Cause.Message,
			},
		})
	}
	for _, warning := range after.Warnings {
		changes = append(changes, Change{
			Name: "expiry_warning", Time: warning.WarnedAt,
			ID: after.ID.String() + "/expiry/" + string(warning.Policy) + "/" + strconv.FormatInt(warning.At.UnixMilli(), 10),
			Data: events.WorkspaceExpiryWarning{
				WorkspaceID: after.ID.String(), Name: after.Name, ProjectID: int(after.ProjectID), AgentID: int(after.AgentID),
				Policy: warning.Policy, To: events.DesiredState(warning.To), ExpiresAt: warning.At, Message: warning.Message,
			},
		})
	}
	return changes
}

// change is the event of a drift. Repairs have no revision of their own, so the time tells them apart.
func (d Drift) change(w Workspace) Change {
	return Change{
		Name: "drifted", Time: d.At,
		ID: strings.Join([]string{w.ID.String(), "drifted", strconv.FormatInt(d.Revision, 10), strconv.FormatInt(d.At.UnixMilli(), 10), d.Object.Kind, d.Object.Name}, "/"),
		Data: events.WorkspaceDrifted{
			WorkspaceID: w.ID.String(), Name: w.Name, ProjectID: int(w.ProjectID), AgentID: int(w.AgentID),
			Object: d.Object, DesiredRevision: int(d.Revision), Message: d.Message,
		},
	}
}

// Package orphan is the domain model of orphans: Deployments with the label of a workspace that does not exist. An
// orphan does not change until an operator adopts or deletes it. The package is pure.
package orphan

import (
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/workspace"
)

// Orphan is a Deployment of an agent that names an unknown workspace.
type Orphan struct {
	AgentID int64
	UID     string
	// Label names the workspace. It may be any text.
	Label           string
	Namespace, Name string
	SeenAt          time.Time

	// DesiredRevision requests the deletion; 0 without a request. UserID requested it.
	DesiredRevision int64
	UserID          int64
	// Message is the error of the last attempt to delete; empty without one.
	Message string
	// EndedAt is the time of the deletion; zero before.
	EndedAt time.Time
}

// Observation is what the cluster reports about an orphan.
type Observation struct {
	// Image of its container; empty if no pod reports one.
	Image    string
	Replicas int
	// Revision that it was applied with; 0 if unknown.
	Revision int64
}

// Update is an orphan before and after a decision, at the time of its event.
type Update struct {
	Before, After Orphan
	At            time.Time
}

// Changed reports whether the decision changed the orphan.
func (u Update) Changed() bool { return u.Before != u.After }

// Dispatches reports whether the dispatcher gets a new request to delete the orphan.
func (u Update) Dispatches() bool { return u.Before.DesiredRevision != u.After.DesiredRevision }

// Completes reports whether the update records the end of the deletion.
func (u Update) Completes() bool { return u.Before.EndedAt.IsZero() && !u.After.EndedAt.IsZero() }

// Found returns the public event of an orphan that a cluster reports for the first time.
func (o Orphan) Found(clusterUID string) workspace.Event {
	return workspace.Event{
		Name: "orphaned", ID: clusterUID + "/" + o.UID + "/orphaned", Time: o.SeenAt,
		Data: events.WorkspaceOrphaned{
			WorkspaceID: o.Label, Name: o.Name, AgentID: int(o.AgentID), Namespace: o.Namespace, Object: o.deployment(),
		},
	}
}

// DeletedEvent returns the public event of the deletion.
func (o Orphan) DeletedEvent() workspace.Event {
	return workspace.Event{
		Name: "orphan_deleted", ID: strconv.FormatInt(o.AgentID, 10) + "/" + o.UID + "/orphan_deleted", Time: o.EndedAt,
		Data: events.WorkspaceOrphanDeleted{
			WorkspaceID: o.Label, Name: o.Name, AgentID: int(o.AgentID), Namespace: o.Namespace, Object: o.deployment(),
			UserID: int(o.UserID),
		},
	}
}

func (o Orphan) deployment() events.ObjectReference {
	return events.ObjectReference{ApiVersion: "apps/v1", Kind: "Deployment", Namespace: o.Namespace, Name: o.Name}
}

// BeingDeleted reports whether the deletion was requested and has not ended.
func (o Orphan) BeingDeleted() bool { return o.DesiredRevision > 0 && o.EndedAt.IsZero() }

// String returns the orphan in the form of the command line: agent/namespace/name.
func (o Orphan) String() string {
	return strconv.FormatInt(o.AgentID, 10) + "/" + o.Namespace + "/" + o.Name
}

// Adopt creates a workspace from the orphan. The creation gives project, user, template, spec and namespace
// prefix; the orphan gives id, name, namespace and desired state. It returns fault failed_precondition or
// invalid_argument if the orphan cannot be adopted.
func (o Orphan) Adopt(s Observation, c workspace.Creation) (workspace.Workspace, []workspace.Event, error) {
	refuse := func(format string, args ...any) (workspace.Workspace, []workspace.Event, error) {
		return workspace.Workspace{}, nil, fault.New(errcode.FailedPrecondition, format, args...)
	}
	if o.BeingDeleted() {
		return refuse("orphan %s is being deleted", o)
	}
	id, err := uuid.Parse(o.Label)
	if err != nil || id.String() != o.Label || id == uuid.Nil {
		return refuse("orphan %s cannot be adopted: its label %s is %q, which is not a workspace id. "+
			"Set the label to a UUID, or delete the orphan", o, workspace.LabelWorkspace, o.Label)
	}
	if c.NamespacePrefix == "" {
		c.NamespacePrefix = workspace.DefaultNamespacePrefix
	}
	if !strings.HasPrefix(o.Namespace, c.NamespacePrefix) {
		return refuse(
			"orphan %s cannot be adopted: dispatchers change only namespaces that begin with %s",
			o,
			c.NamespacePrefix,
		)
	}
	c.Name, c.AgentID = o.Name, o.AgentID
	c.Adopted = &workspace.Adopted{
		ID:           id,
		Namespace:    o.Namespace,
		DesiredState: workspace.DesiredRunning,
		Revision:     s.Revision,
	}
	if s.Replicas == 0 {
		c.Adopted.DesiredState = workspace.DesiredStopped
	}
	return workspace.New(c)
}

// Delete requests the deletion with a revision above highest and above those of other deletions of the same
// label. It returns the fault failed_precondition if another orphan with the label is being deleted.
func (o Orphan) Delete(userID, highest int64, others []Orphan) (Orphan, error) {
	for _, other := range others {
		highest = max(highest, other.DesiredRevision)
		if other.UID != o.UID && other.BeingDeleted() {
			return o, fault.New(errcode.FailedPrecondition,
				"another orphan of agent %d with label %q is being deleted: wait until it is deleted", o.AgentID, o.Label)
		}
	}
	o.DesiredRevision, o.UserID, o.Message = max(highest, o.DesiredRevision)+1, userID, ""
	return o, nil
}

// DeletionFailed records a failed attempt. If the cluster has a higher revision, the deletion is requested again
// with a revision above it.
func (o Orphan) DeletionFailed(revision, clusterRevision int64, message string) Orphan {
	switch {
	case revision != o.DesiredRevision:
	case clusterRevision >= o.DesiredRevision:
		o.DesiredRevision = clusterRevision + 1
	default:
		o.Message = message
	}
	return o
}

// Deleting records progress of the deletion.
func (o Orphan) Deleting(revision int64) Orphan {
	if revision == o.DesiredRevision {
		o.Message = ""
	}
	return o
}

// Deleted records that the orphan is gone.
func (o Orphan) Deleted(revision int64, at time.Time) Orphan {
	if revision == o.DesiredRevision {
		o.Message, o.EndedAt = "", workspace.Timestamp(at)
	}
	return o
}

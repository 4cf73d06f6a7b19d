package workspace

import (
	"time"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/actualstate"
)

// MaxRevision is the highest desired revision that is accepted. JSON numbers hold it exactly.
const MaxRevision = 1<<53 - 1

// AppliedReport is the dispatcher's report of an applied revision.
type AppliedReport struct {
	Revision int64
	At       time.Time
	// DeploymentUID and DeploymentGeneration identify the workspace's Deployment after the apply. Old
	// dispatchers do not report them.
	DeploymentUID        string
	DeploymentGeneration int64
	// Repaired are objects that had been changed after an earlier apply of the same revision.
	Repaired []events.ObjectReference
}

// Applied records that the dispatcher applied a revision. Like the other reports of the dispatcher, it
// changes nothing if a newer revision was reported before. The next Observe computes the actual state.
func (w Workspace) Applied(a AppliedReport) (Workspace, []Event) {
	if w.isStale(a.Revision) {
		return w, nil
	}
	w.AppliedRevision, w.AppliedAt, w.ApplyError = a.Revision, Timestamp(a.At), nil
	w.AppliedUID, w.AppliedGeneration = a.DeploymentUID, a.DeploymentGeneration
	var drifts []Event
	for _, object := range a.Repaired {
		message := describe(object) + " was changed or deleted by somebody else; it has been applied again"
		drifts = append(drifts, w.drifted(object, a.Revision, a.At, message))
	}
	w, more := w.catchUp(a.Revision, a.At)
	return w, append(drifts, more...)
}

// Superseded records that the cluster has a higher revision than this database, which was restored from an older
// backup. The next revision is above the cluster's.
func (w Workspace) Superseded(clusterRevision int64, at time.Time) (Workspace, []Event) {
	if w.Termination == actualstate.TerminationFinished {
		return w, nil
	}
	return w.catchUp(clusterRevision, at)
}

// ApplyFailed records that the dispatcher could not apply a revision or delete its objects.
func (w Workspace) ApplyFailed(e actualstate.ApplyError, at time.Time) (Workspace, []Event) {
	if w.isStale(e.Revision) {
		return w, nil
	}
	w.ApplyError = &e
	return w.catchUp(e.Revision, at)
}

// TerminatingReport is the dispatcher's report of objects that remain while it deletes those of a workspace.
type TerminatingReport struct {
	Revision int64
	At       time.Time
	// Reason and Message explain why they remain. Old dispatchers do not report them.
	Reason, Message string
}

// Terminating records that the dispatcher deletes the workspace's objects.
func (w Workspace) Terminating(r TerminatingReport) (Workspace, []Event) {
	if w.isStale(r.Revision) {
		return w, nil
	}
	w.ApplyError = nil
	if w.DesiredState == DesiredTerminated {
		w.Termination = actualstate.TerminationInProgress
		w.RemainingReason, w.RemainingMessage = r.Reason, r.Message
	}
	return w.catchUp(r.Revision, r.At)
}

// Terminated records that all objects of the workspace are gone. [Workspace.Observe] may have requested the termination
// again after a full resync; the report of that higher revision is recorded, too.
func (w Workspace) Terminated(revision int64, at time.Time) (Workspace, []Event) {
	finished := w.Termination == actualstate.TerminationFinished
	if finished && w.AppliedRevision < revision && revision <= w.DesiredRevision {
		w.AppliedRevision, w.AppliedAt = revision, Timestamp(at)
		return w, nil
	}
	if w.isStale(revision) {
		return w, nil
	}
	w.AppliedRevision, w.AppliedAt, w.ApplyError = revision, Timestamp(at), nil
	if w.DesiredState == DesiredTerminated {
		w.Termination = actualstate.TerminationFinished
		w.RemainingReason, w.RemainingMessage = "", ""
	}
	return w.catchUp(revision, at)
}

// isStale reports whether a newer revision was reported before, or the termination is finished.
func (w Workspace) isStale(revision int64) bool {
	return w.Termination == actualstate.TerminationFinished || revision < w.AppliedRevision ||
		w.ApplyError != nil && revision < w.ApplyError.Revision
}

// catchUp creates a revision above the given one if that is higher than any revision of this database. This happens
// after a restore from an older backup: the dispatcher drops every revision below the one that it has applied.
func (w Workspace) catchUp(revision int64, at time.Time) (Workspace, []Event) {
	if revision <= w.DesiredRevision {
		return w, nil
	}
	w.DesiredRevision = revision
	return w.Redispatch(at)
}

// describe returns an object reference as text, such as Service ws-7-blog/blog.
func describe(object events.ObjectReference) string {
	name := object.Name
	if object.Namespace != "" {
		name = object.Namespace + "/" + name
	}
	return object.Kind + " " + name
}

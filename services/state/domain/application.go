package domain

import (
	"math"
	"time"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/actualstate"
)

// MaxRevision is the highest desired revision that anybody is believed: what JSON's numbers hold exactly. No workspace gets there by itself.
const MaxRevision = math.MaxInt64 >> 10

// Application is what a dispatcher tells of a revision that it has applied whole.
type Application struct {
	Revision int64
	At       time.Time
	// DeploymentUID and DeploymentGeneration are those of the workspace's Deployment as it was left; empty where that is not told.
	DeploymentUID        string
	DeploymentGeneration int64
	// Repaired is what was not as the revision says although it had been applied before.
	Repaired []events.ObjectReference
}

// Applied is TakeIn of an application of which nothing more is told.
func (w Workspace) Applied(revision int64, at time.Time) Workspace {
	return w.TakeIn(Application{Revision: revision, At: at})
}

// TakeIn takes in that the dispatcher has applied a revision. Like the other things a dispatcher says, it is nothing new when something later
// is known (the result is the receiver); and the actual state follows with the next Observe.
func (w Workspace) TakeIn(a Application) Workspace {
	if w.outdated(a.Revision) {
		return w
	}
	w.AppliedRevision, w.AppliedAt, w.ApplyError = a.Revision, instant(a.At), nil
	w.AppliedUID, w.AppliedGeneration = a.DeploymentUID, a.DeploymentGeneration
	for _, object := range a.Repaired {
		w = w.drifted(Drift{
			Object: object, Revision: a.Revision, At: instant(a.At), Message: describe(object) + " was changed or deleted by somebody else; it has been applied again",
		})
	}
	return w.catchUp(a.Revision, a.At)
}

// Superseded takes in that the cluster refuses a revision since it has a newer one, which this database does not know: it was restored from an
// older copy. Nobody has to do anything about it.
func (w Workspace) Superseded(clusterRevision int64, at time.Time) Workspace {
	if w.Termination == actualstate.TerminationFinished {
		return w
	}
	return w.catchUp(clusterRevision, at)
}

// ApplyFailed takes in that a revision could not be applied, or its objects not deleted.
func (w Workspace) ApplyFailed(e actualstate.ApplyError, at time.Time) Workspace {
	if w.outdated(e.Revision) {
		return w
	}
	w.ApplyError = &e
	return w.catchUp(e.Revision, at)
}

// Terminating takes in that the workspace's objects are being deleted.
func (w Workspace) Terminating(revision int64, at time.Time) Workspace {
	if w.outdated(revision) {
		return w
	}
	w.ApplyError = nil
	if w.DesiredState == DesiredTerminated && w.Termination == actualstate.TerminationNone {
		w.Termination = actualstate.TerminationInProgress
	}
	return w.catchUp(revision, at)
}

// Terminated takes in that all of the workspace's objects are gone. One that had been asked for again, before the first was heard of, is heard of too.
func (w Workspace) Terminated(revision int64, at time.Time) Workspace {
	if w.Termination == actualstate.TerminationFinished && revision > w.AppliedRevision && revision <= w.DesiredRevision {
		w.AppliedRevision, w.AppliedAt = revision, instant(at)
		return w
	}
	if w.outdated(revision) {
		return w
	}
	w.AppliedRevision, w.AppliedAt, w.ApplyError = revision, instant(at), nil
	if w.DesiredState == DesiredTerminated {
		w.Termination = actualstate.TerminationFinished
	}
	return w.catchUp(revision, at)
}

// outdated is that a later revision was heard of, or that there is nothing more to hear.
func (w Workspace) outdated(revision int64) bool {
	return w.Termination == actualstate.TerminationFinished || revision < w.AppliedRevision || w.ApplyError != nil && revision < w.ApplyError.Revision
}

// catchUp goes beyond a revision that was never given here: the database was restored from an older copy, and the dispatcher drops what is lower than
// what it has applied.
func (w Workspace) catchUp(revision int64, at time.Time) Workspace {
	if revision <= w.DesiredRevision {
		return w
	}
	w.DesiredRevision = revision
	return w.Redispatch(at)
}

// describe names an object for people, such as Service ws-7-blog/blog.
func describe(object events.ObjectReference) string {
	name := object.Name
	if object.Namespace != "" {
		name = object.Namespace + "/" + name
	}
	return object.Kind + " " + name
}

package domain

import (
	"time"

	"lockstep.internal/services/state/actualstate"
)

// Applied takes in that the dispatcher has applied a revision. Like the other things a dispatcher says, it is nothing new when something later
// is known (the result is the receiver); and the actual state follows with the next Observe.
func (w Workspace) Applied(revision int64, at time.Time) Workspace {
	if w.outdated(revision) {
		return w
	}
	w.AppliedRevision, w.AppliedAt, w.ApplyError = revision, instant(at), nil
	return w.catchUp(revision, at)
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

// Terminated takes in that all of the workspace's objects are gone.
func (w Workspace) Terminated(revision int64, at time.Time) Workspace {
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

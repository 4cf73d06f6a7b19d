package domain

import (
	"strconv"
	"time"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/actualstate"
)

// Observation is everything that a cluster has said of a workspace, and when.
type Observation struct {
	// Seen is that the cluster has reported a Deployment at some time.
	Seen bool
	// Deployment is nil when the cluster has none.
	Deployment  *events.ObservedDeployment
	ReplicaSets []events.ObservedReplicaSet
	Pods        []events.ObservedPod

	// Gone is that the Deployment was there until this observation.
	Gone bool
	// Listed is when the full resync began that has just come in whole; zero when none did.
	Listed time.Time

	// Clock is the agent's time as of its last tick.
	Clock    time.Time
	Patience actualstate.Patience
	// AgePolicies are for Expire.
	AgePolicies AgePolicies
	// At is the time of the event that led to this observation.
	At time.Time
}

// Observe takes in what the cluster says: the actual state follows it, a restart that has come to its stop goes on to running, and what the
// cluster lost, or somebody else changed there, is sent to it again. A workspace that was terminated stays so.
func (w Workspace) Observe(o Observation) Workspace {
	if w.ActualState == actualstate.Terminated {
		return w
	}
	w = w.compute(o)
	switch {
	case w.DesiredState == DesiredRestartRequested && w.ActualState == actualstate.Stopped && w.reached(o.Deployment):
		return w.desireState(DesiredRunning, Cause{Kind: events.DesiredStateCauseRestartCompleted}, o.At)
	case w.lost(o):
		return w.Redispatch(o.At)
	}
	switch message, from := w.drift(o); {
	case message == "":
		return w
	case o.At.Before(from) && o.Clock.Before(from):
		w.ReconsiderAt = earliest(w.ReconsiderAt, from)
		return w
	default:
		return w.answer(w.deploymentReference(), message, o.At)
	}
}

func (w Workspace) compute(o Observation) Workspace {
	r := actualstate.Compute(actualstate.Input{
		Termination: w.termination(o), ApplyError: w.ApplyError,
		Deployment: o.Deployment, ReplicaSets: o.ReplicaSets, Pods: o.Pods,
		Clock: o.Clock, Patience: o.Patience,
	})
	if r.State == actualstate.Unknown && !o.Seen {
		// Nothing was heard yet, which is no reason to doubt. Nor does it matter what was told before, such as an error in applying that is over now: the
		// state follows from what is known, however that came to be known.
		r = actualstate.Result{State: actualstate.CreationRequested}
	}
	if r.State != w.ActualState || r.Reason != w.Reason {
		w.ActualStateRevision++
		w.ActualStateChangedAt = instant(o.At)
	}
	w.ActualState, w.Reason, w.Message = r.State, r.Reason, r.Message
	w.ReconsiderAt = instant(r.Until)
	return w
}

// termination is what the dispatcher says, or what shows: the Deployment of a workspace that shall be terminated is on its way out.
func (w Workspace) termination(o Observation) actualstate.Termination {
	leaving := o.Deployment == nil || o.Deployment.Object.DeletedAt != nil
	if w.Termination == actualstate.TerminationNone && w.DesiredState == DesiredTerminated && o.Seen && leaving {
		return actualstate.TerminationInProgress
	}
	return w.Termination
}

// reached is that the Deployment is that of the desired revision, that the cluster has acted on it, and that the dispatcher is done: what was stopped
// before somebody asked for a restart does not count.
func (w Workspace) reached(d *events.ObservedDeployment) bool {
	if d == nil || w.AppliedRevision < w.DesiredRevision || d.ObservedGeneration < d.Generation {
		return false
	}
	revision, err := strconv.ParseInt(d.Object.Annotations[AnnotationDesiredRevision], 10, 64)
	return err == nil && revision >= w.DesiredRevision
}

// lost is that the cluster does not have what it should, and that nobody is about to bring it there.
func (w Workspace) lost(o Observation) bool {
	switch {
	case o.Deployment != nil:
		return false
	case w.DesiredState == DesiredTerminated:
		// The dispatcher is asked again whether everything is gone.
		return !o.Listed.IsZero() && w.DesiredStateChangedAt.Before(o.Listed)
	case o.Gone:
		return true
	default:
		// What is not applied yet is on its way. What was applied after the resync began cannot have been listed.
		return !o.Listed.IsZero() && w.AppliedRevision >= w.DesiredRevision && w.AppliedAt.Before(o.Listed)
	}
}

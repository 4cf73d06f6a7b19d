package workspace

import (
	"strconv"
	"time"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/actualstate"
)

// Observation is everything that the cluster has reported about a workspace.
type Observation struct {
	// Seen reports whether the cluster has ever reported a Deployment.
	Seen bool
	// Deployment is nil if the cluster has none.
	Deployment  *events.ObservedDeployment
	ReplicaSets []events.ObservedReplicaSet
	Pods        []events.ObservedPod

	// Gone reports that this batch of events deleted the Deployment.
	Gone bool
	// Listed is the begin of the full resync that has just completed; zero without one.
	Listed time.Time

	// Clock is the time of the agent's last tick.
	Clock       time.Time
	Patience    actualstate.Patience
	AgePolicies AgePolicies
	// At is the time of the event that led to this observation.
	At time.Time
}

// Observe computes the actual state. It completes a restart after the stop, and sends the workspace to
// the cluster again if the Deployment was lost or somebody else changed it. Terminated is final.
func (w Workspace) Observe(o Observation) (Workspace, []Event) {
	if w.ActualState == actualstate.Terminated {
		return w, nil
	}
	w, changed := w.compute(o)
	if w.DesiredState == DesiredRestartRequested && w.ActualState == actualstate.Stopped && w.applied(o.Deployment) {
		w, event := w.desire(DesiredRunning, Cause{Kind: events.DesiredStateCauseRestartCompleted}, o.At)
		return w, append(changed, event)
	}
	if w.lost(o) {
		w, more := w.Redispatch(o.At)
		return w, append(changed, more...)
	}
	message, from := w.drift(o)
	if message == "" {
		return w, changed
	}
	if o.At.Before(from) && o.Clock.Before(from) {
		w.ReconsiderAt = earliest(w.ReconsiderAt, from)
		return w, changed
	}
	w, event := w.desire(w.DesiredState, Cause{Kind: events.DesiredStateCauseDrift}, o.At)
	return w, append(changed, w.drifted(w.deploymentReference(), w.DesiredRevision, o.At, message), event)
}

func (w Workspace) compute(o Observation) (Workspace, []Event) {
	r := actualstate.Compute(actualstate.Input{
		Termination: w.termination(o), ApplyError: w.ApplyError,
		Deployment: o.Deployment, ReplicaSets: o.ReplicaSets, Pods: o.Pods,
		Clock: o.Clock, Patience: o.Patience,
	})
	if r.State == actualstate.Unknown && !o.Seen {
		// No report yet is no reason for unknown. The state before does not matter either.
		r = actualstate.Result{State: actualstate.CreationRequested}
	}
	from := w.ActualState
	changed := r.State != from || r.Reason != w.Reason
	w.ActualState, w.Reason, w.Message = r.State, r.Reason, r.Message
	w.ReconsiderAt = Timestamp(r.Until)
	if !changed {
		return w, nil
	}
	w.ActualStateRevision++
	w.ActualStateChangedAt = Timestamp(o.At)
	return w, []Event{w.stateChanged(from)}
}

// termination is the progress that the dispatcher reported. Before its first report, a Deployment that
// is being deleted or gone shows that the termination is in progress.
func (w Workspace) termination(o Observation) actualstate.Termination {
	leaving := o.Deployment == nil || o.Deployment.Object.DeletedAt != nil
	if w.Termination == actualstate.TerminationNone && w.DesiredState == DesiredTerminated && o.Seen && leaving {
		return actualstate.TerminationInProgress
	}
	return w.Termination
}

// applied reports whether the dispatcher has applied the desired revision and the cluster has acted on
// it. A stop from before a restart request does not count as the restart's stop.
func (w Workspace) applied(d *events.ObservedDeployment) bool {
	if d == nil || w.AppliedRevision < w.DesiredRevision || d.ObservedGeneration < d.Generation {
		return false
	}
	revision, err := strconv.ParseInt(d.Object.Annotations[AnnotationDesiredRevision], 10, 64)
	return err == nil && revision >= w.DesiredRevision
}

// lost reports whether the cluster misses the Deployment and no apply is pending.
func (w Workspace) lost(o Observation) bool {
	switch {
	case o.Deployment != nil:
		return false
	case w.DesiredState == DesiredTerminated:
		// A full resync asks the dispatcher again whether everything is gone.
		return !o.Listed.IsZero() && w.DesiredStateChangedAt.Before(o.Listed)
	case o.Gone:
		return true
	default:
		// A resync cannot list a Deployment that was applied after the resync began.
		return !o.Listed.IsZero() && w.AppliedRevision >= w.DesiredRevision && w.AppliedAt.Before(o.Listed)
	}
}

package workspace

import (
	"strconv"
	"time"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/actualstate"
)

// Observation contains the stored objects of a workspace and the changes of the current batch.
type Observation struct {
	// Seen is true if the cluster has ever reported a Deployment.
	Seen bool
	// Deployment is nil if the cluster has none.
	Deployment  *events.ObservedWorkload
	ReplicaSets []events.ObservedWorkloadRevision
	Pods        []events.ObservedPod

	// DeploymentDeleted is true if this batch of events deleted the Deployment.
	DeploymentDeleted bool
	// ResyncBegunAt is when the full resync that ended in this batch began; zero without one.
	ResyncBegunAt time.Time

	// Clock is the time of the agent's last tick, by the agent's clock. Timeouts are measured by it.
	Clock       time.Time
	Timeouts    actualstate.Timeouts
	AgePolicies AgePolicies
	// At is the time of the event that led to this observation.
	At time.Time
}

// Observe computes the actual state. It completes a restart after the stop, and creates a new revision if the
// Deployment was lost or somebody else changed it. Terminated is final.
func (w Workspace) Observe(o Observation) (Workspace, []Event) {
	if w.ActualState == actualstate.Terminated {
		return w, nil
	}
	w, changed := w.compute(o)
	if w.DesiredState == DesiredRestartRequested && w.ActualState == actualstate.Stopped && w.isApplied(o.Deployment) {
		// The agent's clock may be behind the clock of the request.
		completedAt := latest(w.DesiredStateSince, o.At)
		w, event := w.newRevision(DesiredRunning, Cause{Kind: events.DesiredStateCauseRestartCompleted}, completedAt)
		return w, append(changed, event)
	}
	if w.isLost(o) {
		w, more := w.Redispatch(o.At)
		return w, append(changed, more...)
	}
	message, notBefore := w.drift(o)
	if message == "" {
		return w, changed
	}
	if o.At.Before(notBefore) && o.Clock.Before(notBefore) {
		w.RecomputeAt = earliest(w.RecomputeAt, notBefore)
		return w, changed
	}
	w, event := w.newRevision(w.DesiredState, Cause{Kind: events.DesiredStateCauseDrift}, o.At)
	return w, append(changed, w.drifted(w.deploymentReference(), w.DesiredRevision, o.At, message), event)
}

func (w Workspace) compute(o Observation) (Workspace, []Event) {
	r := actualstate.Compute(actualstate.Input{
		Termination: w.termination(o), ApplyError: w.ApplyError, TerminatingSince: w.DesiredStateSince,
		RemainingReason: w.RemainingReason, RemainingMessage: w.RemainingMessage,
		Deployment: o.Deployment, ReplicaSets: o.ReplicaSets, Pods: o.Pods,
		Clock: o.Clock, Timeouts: o.Timeouts,
	})
	if r.State == actualstate.Unknown && !o.Seen {
		// No Deployment was ever reported: the state is creation_requested, whatever it was before.
		r = actualstate.Result{State: actualstate.CreationRequested}
	}
	from := w.ActualState
	changed := r.State != from || r.Reason != w.Reason
	w.ActualState, w.Reason, w.Message = r.State, r.Reason, r.Message
	w.RecomputeAt = Timestamp(r.RecomputeAt)
	if !changed {
		return w, nil
	}
	w.ActualStateRevision++
	w.ActualStateChangedAt = Timestamp(o.At)
	return w, []Event{w.stateChanged(from)}
}

// termination returns the reported progress. Before the first report, a missing or terminating Deployment counts
// as in progress.
func (w Workspace) termination(o Observation) actualstate.Termination {
	deploymentGone := o.Deployment == nil || o.Deployment.Object.DeletedAt != nil
	if w.Termination == actualstate.TerminationNone && w.DesiredState == DesiredTerminated && o.Seen && deploymentGone {
		return actualstate.TerminationInProgress
	}
	return w.Termination
}

// isApplied reports whether the dispatcher has applied the desired revision and the cluster has acted on it. A stop
// that was observed before a restart request does not complete the restart.
func (w Workspace) isApplied(d *events.ObservedWorkload) bool {
	if d == nil || w.AppliedRevision < w.DesiredRevision || d.ObservedGeneration < d.Generation {
		return false
	}
	revision, err := strconv.ParseInt(d.Object.Annotations[AnnotationDesiredRevision], 10, 64)
	return err == nil && revision >= w.DesiredRevision
}

// isLost reports whether the Deployment is missing in the cluster and no apply is pending.
func (w Workspace) isLost(o Observation) bool {
	switch {
	case o.Deployment != nil:
		return false
	case w.DesiredState == DesiredTerminated:
		// After a full resync, request the termination again to verify it.
		return !o.ResyncBegunAt.IsZero() && w.DesiredStateChangedAt.Before(o.ResyncBegunAt)
	case o.DeploymentDeleted:
		return true
	default:
		// A resync cannot list a Deployment that was applied after the resync began.
		return !o.ResyncBegunAt.IsZero() && w.AppliedRevision >= w.DesiredRevision && w.AppliedAt.Before(o.ResyncBegunAt)
	}
}

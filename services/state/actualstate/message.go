package actualstate

import (
	"fmt"
	"time"

	"lockstep.internal/libs/podstate"
	"lockstep.internal/schemas/gen/events"
)

// workspaceNoun is what messages about pods call the workspace.
const workspaceNoun = "the workspace"

// stuckTerminating explains a pod that has not ended in time.
func stuckTerminating(p events.ObservedPod) *podstate.Failure {
	return &podstate.Failure{
		Reason: reasonPodNotEnding,
		Message: fmt.Sprintf(
			"pod %s has been terminating since %s; its volume may not unmount, or its node %s may be lost",
			podstate.Name(p.Object.Name),
			p.Object.DeletedAt.UTC().Format(time.RFC3339),
			podstate.Name(p.Node),
		),
	}
}

// deadlineExceeded returns Failed. The reason comes from the pods if they have one, else from the conditions.
func deadlineExceeded(in Input) Result {
	r := Result{State: Failed, Reason: progressDeadlineExceeded, Message: messageProgressDeadlineFailure}
	if *in.Deployment.SpecReplicas > 0 {
		// After the progress deadline the scheduling timeout is over, too.
		in.Timeouts.Unschedulable = -1
	}
	pods := evaluatePods(in)
	r.RecomputeAt = pods.recomputeAt
	if pods.failure != nil {
		r.Reason, r.Message = pods.failure.Reason, pods.failure.Message
		return r
	}
	if c := conditionOf(in.Deployment.Conditions, replicaFailureType); c != nil && c.Reason != "" {
		f := podstate.Refused(workspaceNoun, c.Reason, c.Message)
		r.Reason, r.Message = f.Reason, f.Message
		return r
	}
	if c := conditionOf(in.Deployment.Conditions, progressingType); c.Message != "" {
		r.Message += ": " + podstate.Detail(c.Message)
	}
	return r
}

func unrecognized(d *events.ObservedWorkload, progressing, availability string) string {
	if d.Paused {
		return "the workspace's Deployment is paused; somebody changed it in the cluster"
	}
	return fmt.Sprintf(
		"the workspace's Deployment is in no known state: Progressing %s, Available %s, %d desired, %d available, %d "+
			"unavailable",
		podstate.Name(progressing),
		podstate.Name(availability),
		*d.SpecReplicas,
		d.AvailableReplicas,
		d.UnavailableReplicas,
	)
}

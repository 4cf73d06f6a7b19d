package actualstate

import (
	"time"

	"lockstep.internal/schemas/gen/events"
)

// Input is what is known about a workspace.
type Input struct {
	Termination Termination
	// ApplyError is nil when the last attempt to apply succeeded.
	ApplyError *ApplyError
	// Deployment is nil when the cluster has none.
	Deployment *events.ObservedDeployment
	// ReplicaSets and Pods of the cluster. Those of other Deployments are ignored.
	ReplicaSets []events.ObservedReplicaSet
	Pods        []events.ObservedPod
	// Clock is the agent's time. The zero time is before every deadline.
	Clock    time.Time
	Patience Patience
}

// Patience limits how long a pod may be stuck before the workspace fails. 0 means forever.
type Patience struct {
	// Unschedulable limits the wait for a node.
	Unschedulable time.Duration
	// Stop limits the time after a pod's grace period.
	Stop time.Duration
}

// Result is the actual state with its explanation.
type Result struct {
	State State
	// Reason for machines; never empty for Failed and Error.
	Reason string
	// Message for the user; never empty for Failed and Error.
	Message string
	// Until is the deadline, by the agent's clock, at which the result changes without a new event. Zero for
	// never.
	Until time.Time
}

// Reasons of the conditions of a Deployment, as its controller writes them.
const (
	progressingType                = "Progressing"
	availableType                  = "Available"
	replicaFailureType             = "ReplicaFailure"
	progressDeadlineExceeded       = "ProgressDeadlineExceeded"
	newReplicaSetCreated           = "NewReplicaSetCreated"
	foundNewReplicaSet             = "FoundNewReplicaSet"
	replicaSetUpdated              = "ReplicaSetUpdated"
	newReplicaSetAvailable         = "NewReplicaSetAvailable"
	minimumReplicasAvailable       = "MinimumReplicasAvailable"
	minimumReplicasUnavailable     = "MinimumReplicasUnavailable"
	podScheduledType               = "PodScheduled"
	podUnschedulable               = "Unschedulable"
	reasonApplyFailed              = "ApplyFailed"
	reasonNotReported              = "NotReported"
	reasonIncomplete               = "Incomplete"
	reasonUnrecognized             = "Unrecognized"
	reasonPodNotEnding             = "PodNotEnding"
	reasonQuotaExceeded            = "QuotaExceeded"
	messageApplyFailed             = "applying the workspace's objects failed; the cluster gave no reason"
	messageNotReported             = "the cluster has not reported a Deployment of this workspace"
	messageIncomplete              = "the cluster has not reported the status of the workspace's Deployment yet"
	messageProgressDeadlineFailure = "the workspace did not become ready in time"
)

// Compute returns the state of a workspace. Every input has a result.
func Compute(in Input) Result {
	switch {
	case in.Termination == TerminationFinished:
		return Result{State: Terminated}
	case in.ApplyError != nil:
		return applyFailed(*in.ApplyError)
	case in.Termination == TerminationInProgress:
		return Result{State: Terminating}
	case in.Deployment == nil:
		return Result{State: Unknown, Reason: reasonNotReported, Message: messageNotReported}
	}
	d := in.Deployment
	progressing := reasonOf(d.Conditions, progressingType)
	if untouched(d) {
		return Result{State: Starting}
	}
	if d.SpecReplicas == nil || !d.HasStatus || progressing == "" {
		return Result{State: Unknown, Reason: reasonIncomplete, Message: messageIncomplete}
	}
	if progressing == progressDeadlineExceeded {
		return deadlineExceeded(in)
	}
	pods := judge(in)
	if pods.trouble != nil {
		return Result{State: Failed, Reason: pods.trouble.reason, Message: pods.trouble.message, Until: pods.until}
	}
	result := row(d, progressing)
	result.Until = pods.until
	return result
}

// untouched reports a Deployment that its controller has not processed yet, just after its creation.
func untouched(d *events.ObservedDeployment) bool {
	return d.SpecReplicas != nil && *d.SpecReplicas == 1 && d.ObservedGeneration == 0 && len(d.Conditions) == 0
}

// row is the part of the table about the Deployment's counts and reasons.
func row(d *events.ObservedDeployment, progressing string) Result {
	spec, available := *d.SpecReplicas, d.AvailableReplicas
	if progressing == newReplicaSetCreated || progressing == foundNewReplicaSet || progressing == replicaSetUpdated {
		switch spec {
		case 0:
			return Result{State: Stopping}
		case 1:
			return Result{State: Starting}
		}
	}
	availability := reasonOf(d.Conditions, availableType)
	if availability == "" {
		return Result{State: Unknown, Reason: reasonIncomplete, Message: messageIncomplete}
	}
	if progressing == newReplicaSetAvailable {
		complete := availability == minimumReplicasAvailable
		switch {
		case complete && spec == 0 && available == 0:
			return Result{State: Stopped}
		case complete && spec == available && d.UnavailableReplicas == 0:
			return Result{State: Running}
		case complete && spec == 0 && available == 1:
			return Result{State: Stopping}
		case (complete || availability == minimumReplicasUnavailable) && spec == 1 && available == 0:
			return Result{State: Starting}
		}
	}
	return Result{State: Unknown, Reason: reasonUnrecognized, Message: unrecognized(d, progressing, availability)}
}

func applyFailed(e ApplyError) Result {
	r := Result{State: Error, Reason: e.Reason, Message: e.Message}
	if r.Reason == "" {
		r.Reason = reasonApplyFailed
	}
	if r.Message == "" {
		r.Message = messageApplyFailed
	}
	return r
}

// reasonOf is the reason of the first condition of a type, empty when there is none.
func reasonOf(conditions []events.Condition, kind string) string {
	if c := conditionOf(conditions, kind); c != nil {
		return c.Reason
	}
	return ""
}

func conditionOf(conditions []events.Condition, kind string) *events.Condition {
	for i := range conditions {
		if conditions[i].Type == kind {
			return &conditions[i]
		}
	}
	return nil
}

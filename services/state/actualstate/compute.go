package actualstate

import (
	"cmp"
	"fmt"
	"time"

	"lockstep.internal/libs/podstate"
	"lockstep.internal/schemas/gen/events"
)

// Input contains what the cluster and the dispatcher report about a workspace.
type Input struct {
	Termination Termination
	// TerminatingSince is the time at which the termination was requested.
	TerminatingSince time.Time
	// RemainingReason and RemainingMessage explain why objects remain. Empty before the dispatcher reports them.
	RemainingReason, RemainingMessage string
	// ApplyError is nil when the last attempt to apply succeeded.
	ApplyError *ApplyError
	// Deployment is nil when the cluster has none.
	Deployment *events.ObservedWorkload
	// ReplicaSets and Pods of the cluster. Those of other Deployments are ignored.
	ReplicaSets []events.ObservedWorkloadRevision
	Pods        []events.ObservedPod
	// Clock is the agent's time. The zero time is before every deadline.
	Clock    time.Time
	Timeouts Timeouts
}

// Timeouts limit how long a workspace may be stuck. 0 means no limit.
type Timeouts struct {
	// Unschedulable limits the wait for a node. Then the workspace is failed.
	Unschedulable time.Duration
	// PodTermination limits the time that a pod may exist after its grace period. Then the workspace is failed.
	PodTermination time.Duration
	// Termination limits the time from TerminatingSince. Then the workspace has an error.
	Termination time.Duration
}

// Result is the actual state with its explanation.
type Result struct {
	State State
	// Reason is machine-readable; never empty for Failed and Error.
	Reason string
	// Message for the user; never empty for Failed and Error.
	Message string
	// RecomputeAt is the next time, by the agent's clock, at which the state is recomputed without a new event. Zero means
	// never.
	RecomputeAt time.Time
}

// Types and reasons of conditions that Kubernetes writes.
const (
	progressingType            = "Progressing"
	availableType              = "Available"
	replicaFailureType         = "ReplicaFailure"
	progressDeadlineExceeded   = "ProgressDeadlineExceeded"
	newReplicaSetCreated       = "NewReplicaSetCreated"
	foundNewReplicaSet         = "FoundNewReplicaSet"
	replicaSetUpdated          = "ReplicaSetUpdated"
	newReplicaSetAvailable     = "NewReplicaSetAvailable"
	minimumReplicasAvailable   = "MinimumReplicasAvailable"
	minimumReplicasUnavailable = "MinimumReplicasUnavailable"
)

// Reasons and messages of results. They are published.
const (
	reasonApplyFailed              = "ApplyFailed"
	reasonNotReported              = "NotReported"
	reasonIncomplete               = "Incomplete"
	reasonUnrecognized             = "Unrecognized"
	reasonPodNotEnding             = "PodNotEnding"
	reasonObjectsRemain            = "ObjectsRemain"
	reasonVolumeInUse              = "VolumeInUse"
	messageObjectsRemain           = "the objects of the workspace are being deleted"
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
		return terminating(in)
	case in.Deployment == nil:
		return Result{State: Unknown, Reason: reasonNotReported, Message: messageNotReported}
	}
	d := in.Deployment
	progressing := reasonOf(d.Conditions, progressingType)
	if isUnprocessed(d) {
		return Result{State: Starting}
	}
	if d.SpecReplicas == nil || !d.HasStatus || progressing == "" {
		return Result{State: Unknown, Reason: reasonIncomplete, Message: messageIncomplete}
	}
	if progressing == progressDeadlineExceeded {
		return deadlineExceeded(in)
	}
	pods := evaluatePods(in)
	if pods.failure != nil {
		f := pods.failure
		return Result{State: Failed, Reason: f.Reason, Message: f.Message, RecomputeAt: pods.recomputeAt}
	}
	result := fromDeployment(d, progressing)
	if result.State == Starting && pods.pending != nil {
		result.Reason, result.Message = pods.pending.Reason, pods.pending.Message
	}
	result.RecomputeAt = pods.recomputeAt
	return result
}

// isUnprocessed reports whether the Deployment controller has not processed the new Deployment yet.
func isUnprocessed(d *events.ObservedWorkload) bool {
	return d.SpecReplicas != nil && *d.SpecReplicas == 1 && d.ObservedGeneration == 0 && len(d.Conditions) == 0
}

// fromDeployment evaluates the counts and condition reasons of the Deployment.
func fromDeployment(d *events.ObservedWorkload, progressing string) Result {
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

// terminating explains what remains, with the pod that does not end if there is one. After the timeout it is an error.
func terminating(in Input) Result {
	r := Result{
		State: Terminating, Reason: cmp.Or(in.RemainingReason, reasonObjectsRemain),
		Message: podstate.Detail(cmp.Or(in.RemainingMessage, messageObjectsRemain)),
	}
	var pods podResult
	if r.Reason == reasonObjectsRemain || r.Reason == reasonVolumeInUse {
		if pods.checkEnds(in); pods.failure != nil {
			r.Reason, r.Message = pods.failure.Reason, pods.failure.Message
		}
	}
	if pods.hasPassed(in.Clock, in.TerminatingSince, in.Timeouts.Termination) {
		r.State = Error
		r.Message = fmt.Sprintf("the workspace has been terminating since %s: %s",
			in.TerminatingSince.UTC().Format(time.RFC3339), r.Message)
	}
	r.RecomputeAt = pods.recomputeAt
	return r
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

package podstate

import (
	"strings"
	"time"

	"lockstep.internal/schemas/gen/events"
)

// Reasons besides those of containers.
const (
	// Unschedulable: no node can take the pod.
	Unschedulable = "Unschedulable"
	// CloneFailed: a repository of the workspace cannot be cloned.
	CloneFailed = "CloneFailed"
	// QuotaExceeded: a quota does not allow the pod.
	QuotaExceeded = "QuotaExceeded"

	scheduledType = "PodScheduled"
	readyType     = "Ready"
)

// Failure explains why a pod does not start.
type Failure struct {
	// Reason is machine-readable.
	Reason string
	// Message for people.
	Message string
	// Since is when the scheduler first found no node, or since when a restarted pod is ready; zero for other failures.
	Since time.Time
}

// MayPass reports whether the cluster may end the failure without a person: another pod may end, or an autoscaler may
// add a node. The caller decides how long it waits.
func (f *Failure) MayPass() bool { return f.Reason == Unschedulable }

// Pod is what [Explain] needs of a pod.
type Pod struct {
	Containers []events.ContainerState
	Conditions []events.Condition
	// CreatedAt, or else ObservedAt, stands for the time of a condition without one.
	CreatedAt *time.Time
	// ObservedAt is when the containers were seen in their states.
	ObservedAt time.Time
}

// Explain returns why a pod that should run does not start, or nil. A failed container has priority over the scheduler.
// what names the owner of the pod in messages, such as "the workspace".
func Explain(what string, p Pod) *Failure {
	if f := ofContainers(p); f != nil {
		return f
	}
	for i := range p.Conditions {
		c := &p.Conditions[i]
		if c.Type != scheduledType {
			continue
		}
		if c.Reason != Unschedulable {
			return nil
		}
		f := &Failure{Reason: Unschedulable, Message: "no node of the cluster can take " + what + ": " + Detail(c.Message)}
		switch {
		case c.LastTransitionTime != nil:
			f.Since = *c.LastTransitionTime
		case p.CreatedAt != nil:
			f.Since = *p.CreatedAt
		default:
			f.Since = p.ObservedAt
		}
		return f
	}
	return nil
}

// Restarted returns the failure of a ready pod with a container that kept exiting, or nil. It may exit again: the
// caller decides how long after Since it counts as recovered.
func Restarted(p Pod) *Failure {
	for i := range p.Containers {
		c := &p.Containers[i]
		if c.State != events.ContainerStatusRunning || !isLoop(c, p.ObservedAt) {
			continue
		}
		for j := range p.Conditions {
			if ready := &p.Conditions[j]; ready.Type == readyType && ready.LastTransitionTime != nil {
				f := keepsExiting(c)
				f.Since = *ready.LastTransitionTime
				return f
			}
		}
	}
	return nil
}

// Refused explains why the cluster does not create pods, from the reason and message of a condition. what names the
// pods or their owner.
func Refused(what, reason, message string) Failure {
	if strings.Contains(message, "exceeded quota") {
		return Failure{
			Reason: QuotaExceeded, Message: "a quota of the cluster does not allow " + what + ": " + Detail(message),
		}
	}
	return Failure{Reason: reason, Message: "the cluster refuses to create " + what + ": " + Detail(message)}
}

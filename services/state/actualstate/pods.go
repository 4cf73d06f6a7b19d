package actualstate

import (
	"cmp"
	"slices"
	"time"

	"lockstep.internal/schemas/gen/events"
)

// failure is a reason code and a message for the user.
type failure struct{ reason, message string }

// podResult is the result of the pod checks.
type podResult struct {
	// failure is nil without a problem.
	failure *failure
	// recomputeAt is the next time at which the result changes.
	recomputeAt time.Time
}

// evaluatePods finds pods that cannot start, and, after a stop, pods that do not terminate.
func evaluatePods(in Input) podResult {
	var r podResult
	hash := currentHash(in)
	for _, p := range deploymentPods(in) {
		if r.failure != nil {
			break
		}
		if *in.Deployment.SpecReplicas > 0 {
			if hash != "" && p.PodTemplateHash == hash && p.Object.DeletedAt == nil {
				r.checkStart(p, in)
			}
		} else if p.Object.DeletedAt != nil {
			r.checkTimeout(in.Clock, *p.Object.DeletedAt, in.Timeouts.Termination, func() failure { return stuckTerminating(p) })
		}
	}
	return r
}

// checkStart checks a pod that should run. A container failure has priority over a scheduling failure.
func (r *podResult) checkStart(p events.ObservedPod, in Input) {
	if f := containerFailure(p); f != nil {
		r.failure = f
		return
	}
	c := conditionOf(p.Conditions, podScheduledType)
	if c == nil || c.Reason != podUnschedulable {
		return
	}
	since := c.LastTransitionTime
	if since == nil {
		since = p.Object.CreatedAt
	}
	if since == nil {
		since = &p.Object.ObservedAt
	}
	r.checkTimeout(in.Clock, *since, in.Timeouts.Unschedulable, func() failure { return unschedulable(c.Message) })
}

// checkTimeout sets the failure if the timeout has passed. Otherwise it sets recomputeAt. Timeout 0 means none.
func (r *podResult) checkTimeout(clock, since time.Time, timeout time.Duration, found func() failure) {
	if timeout == 0 {
		return
	}
	at := since.Add(timeout)
	if !clock.IsZero() && !clock.Before(at) {
		f := found()
		r.failure = &f
		return
	}
	if r.recomputeAt.IsZero() || at.Before(r.recomputeAt) {
		r.recomputeAt = at
	}
}

// currentHash is the pod-template-hash of the Deployment's current ReplicaSet; empty if unknown.
func currentHash(in Input) string {
	d := in.Deployment
	if d.Revision == 0 {
		return ""
	}
	var current *events.ObservedWorkloadRevision
	for i := range in.ReplicaSets {
		rs := &in.ReplicaSets[i]
		if rs.Workload != d.Object.Name || rs.Object.Namespace != d.Object.Namespace || rs.Revision != d.Revision {
			continue
		}
		if current == nil || rs.Object.Name > current.Object.Name {
			current = rs
		}
	}
	if current == nil {
		return ""
	}
	return current.TemplateHash
}

// deploymentPods returns the pods of the Deployment, sorted by name.
func deploymentPods(in Input) []events.ObservedPod {
	var pods []events.ObservedPod
	for _, p := range in.Pods {
		if p.Deployment == in.Deployment.Object.Name && p.Object.Namespace == in.Deployment.Object.Namespace {
			pods = append(pods, p)
		}
	}
	slices.SortStableFunc(pods, func(a, b events.ObservedPod) int { return cmp.Compare(a.Object.Name, b.Object.Name) })
	return pods
}

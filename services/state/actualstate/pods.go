package actualstate

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"lockstep.internal/libs/podstate"
	"lockstep.internal/schemas/gen/events"
)

// readyAfterLoop is how long a container that kept exiting must be ready until it counts as recovered: without a
// readiness probe it is ready as soon as it is started again.
const readyAfterLoop = 10 * time.Second

// A new pod has no node until its volume is bound. This is shown only if it takes longer than volumeBinding.
const (
	unboundVolume = "unbound immediate PersistentVolumeClaims"
	volumeBinding = 10 * time.Second
)

// podResult is the result of the pod checks.
type podResult struct {
	// failure is nil without a problem.
	failure *podstate.Failure
	// pending is why a pod waits, within its timeout; nil for none.
	pending *podstate.Failure
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
		} else if r.checkEnd(p, in); r.failure != nil {
			r.failure.Message = "the workspace was asked to stop, but " + r.failure.Message
		}
	}
	return r
}

// checkEnd checks a pod that may have been deleted.
func (r *podResult) checkEnd(p events.ObservedPod, in Input) {
	if p.Object.DeletedAt != nil && r.hasPassed(in.Clock, *p.Object.DeletedAt, in.Timeouts.PodTermination) {
		r.failure = stuckTerminating(p)
	}
}

// checkEnds finds a pod of the workspace, of any Deployment, that does not terminate.
func (r *podResult) checkEnds(in Input) {
	for _, p := range sortedByName(in.Pods) {
		if r.checkEnd(p, in); r.failure != nil {
			return
		}
	}
}

// checkStart checks a pod that should run.
func (r *podResult) checkStart(p events.ObservedPod, in Input) {
	pod := podstate.Pod{
		Containers: p.Containers, Conditions: p.Conditions,
		CreatedAt: p.Object.CreatedAt, ObservedAt: p.Object.ObservedAt,
	}
	f := podstate.Explain(workspaceNoun, pod)
	if f == nil {
		if f = podstate.Restarted(pod); f == nil || r.hasPassed(in.Clock, f.Since, readyAfterLoop) {
			return
		}
	}
	switch {
	case !f.MayPass(), r.hasPassed(in.Clock, f.Since, in.Timeouts.Unschedulable):
		r.failure = f
	case strings.Contains(f.Message, unboundVolume) && !r.hasPassed(in.Clock, f.Since, volumeBinding):
	case r.pending == nil:
		r.pending = f
	}
}

// hasPassed reports whether the timeout has passed. Otherwise it sets recomputeAt. Timeout 0 never passes.
func (r *podResult) hasPassed(clock, since time.Time, timeout time.Duration) bool {
	if timeout == 0 {
		return false
	}
	at := since.Add(timeout)
	if !clock.IsZero() && !clock.Before(at) {
		return true
	}
	if r.recomputeAt.IsZero() || at.Before(r.recomputeAt) {
		r.recomputeAt = at
	}
	return false
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
	return sortedByName(pods)
}

func sortedByName(pods []events.ObservedPod) []events.ObservedPod {
	return slices.SortedStableFunc(slices.Values(pods), func(a, b events.ObservedPod) int {
		return cmp.Compare(a.Object.Name, b.Object.Name)
	})
}

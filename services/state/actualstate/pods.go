package actualstate

import (
	"cmp"
	"slices"
	"time"

	"lockstep.internal/schemas/gen/events"
)

// trouble explains why a workspace failed.
type trouble struct{ reason, message string }

// judgement is what the pods add to the Deployment.
type judgement struct {
	// trouble is nil without a problem.
	trouble *trouble
	// until is the next deadline at which the judgement changes.
	until time.Time
}

// judge finds pods that cannot start while the workspace should run, and pods that do not end after a stop.
func judge(in Input) judgement {
	var j judgement
	hash := currentHash(in)
	for _, p := range deploymentPods(in) {
		if j.trouble != nil {
			break
		}
		if *in.Deployment.SpecReplicas > 0 {
			if hash != "" && p.PodTemplateHash == hash && p.Object.DeletedAt == nil {
				j.start(p, in)
			}
		} else if p.Object.DeletedAt != nil {
			j.deadline(in.Clock, *p.Object.DeletedAt, in.Patience.Stop, func() trouble { return notEnding(p) })
		}
	}
	return j
}

// start judges a pod that should run. Containers that cannot start go before a missing node.
func (j *judgement) start(p events.ObservedPod, in Input) {
	if t := containerTrouble(p); t != nil {
		j.trouble = t
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
	j.deadline(in.Clock, *since, in.Patience.Unschedulable, func() trouble { return unschedulable(c.Message) })
}

// deadline reports the trouble when the patience has ended, and sets until before. Patience 0 never ends.
func (j *judgement) deadline(clock, since time.Time, patience time.Duration, t func() trouble) {
	if patience == 0 {
		return
	}
	at := since.Add(patience)
	if !clock.IsZero() && !clock.Before(at) {
		found := t()
		j.trouble = &found
		return
	}
	if j.until.IsZero() || at.Before(j.until) {
		j.until = at
	}
}

// currentHash is the pod-template-hash of the Deployment's current ReplicaSet; empty if unknown.
func currentHash(in Input) string {
	d := in.Deployment
	if d.Revision == 0 {
		return ""
	}
	var current *events.ObservedReplicaSet
	for i := range in.ReplicaSets {
		rs := &in.ReplicaSets[i]
		if rs.Deployment != d.Object.Name || rs.Object.Namespace != d.Object.Namespace || rs.Revision != d.Revision {
			continue
		}
		if current == nil || rs.Object.Name > current.Object.Name {
			current = rs
		}
	}
	if current == nil {
		return ""
	}
	return current.PodTemplateHash
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

package domain

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"lockstep.internal/schemas/gen/events"
)

// Drift is an object of a workspace that somebody else has changed in its cluster.
type Drift struct {
	Object events.ObjectReference
	// Revision brings it back.
	Revision int64
	// At is when it was found.
	At time.Time
	// Message is a sentence for the user.
	Message string
}

// driftPause is how long what the dispatcher has left is not judged: whoever fights for a Deployment with the dispatcher is answered no more often.
const driftPause = 5 * time.Second

// drift tells what is not as the dispatcher has left it, nothing otherwise, and from when on that is answered. Two events of different streams tell of that, in any order, so it is judged only by what no
// order can feign: a generation above the one that the dispatcher has left was made after it by somebody else. What leaves the generation alone, an edited
// annotation or an object made anew, is judged by full resyncs only, which list it after it was applied. Applying again tells the
// generation of then, so that one change is answered once.
func (w Workspace) drift(o Observation) (message string, from time.Time) {
	d := o.Deployment
	switch {
	case d == nil, d.Object.DeletedAt != nil, w.DesiredState == DesiredTerminated:
		return "", from
	case w.ApplyError != nil, w.AppliedRevision != w.DesiredRevision, w.AppliedUID == "":
		return "", from // the dispatcher is not done, or does not tell what it has left
	}
	name := describe(w.deploymentReference())
	if d.Object.UID == w.AppliedUID && int64(d.Generation) > w.AppliedGeneration {
		from = w.AppliedAt.Add(driftPause)
		if d.SpecReplicas != nil && *d.SpecReplicas != w.replicas() {
			return fmt.Sprintf("%s was scaled to %d by somebody else; it is applied again", name, *d.SpecReplicas), from
		}
		return name + " was changed by somebody else; it is applied again", from
	}
	if o.Listed.IsZero() || !w.AppliedAt.Before(o.Listed) {
		return "", from
	}
	if d.Object.UID != w.AppliedUID {
		return name + " was deleted and made anew by somebody else; it is applied again", from
	}
	if d.Object.Annotations[AnnotationDesiredRevision] != strconv.FormatInt(w.AppliedRevision, 10) {
		return fmt.Sprintf("%s is no longer what revision %d has made of it; it is applied again", name, w.AppliedRevision), from
	}
	return "", from
}

// replicas that the Deployment is applied with.
func (w Workspace) replicas() int {
	if w.DesiredState.Target() == events.DesiredTargetRunning {
		return 1
	}
	return 0
}

// answer sends the workspace to its cluster again because of a drift.
func (w Workspace) answer(object events.ObjectReference, message string, at time.Time) Workspace {
	w = w.desire(Cause{Kind: events.DesiredStateCauseDrift}, at)
	return w.drifted(Drift{Object: object, Revision: w.DesiredRevision, At: instant(at), Message: message})
}

// drifted notes a drift for the events.
func (w Workspace) drifted(d Drift) Workspace {
	w.Drifts = append(slices.Clip(w.Drifts), d)
	return w
}

// deploymentReference names the workspace's Deployment.
func (w Workspace) deploymentReference() events.ObjectReference {
	return events.ObjectReference{ApiVersion: "apps/v1", Kind: "Deployment", Namespace: w.Namespace, Name: w.Name}
}

package workspace

import (
	"fmt"
	"strconv"
	"time"

	"lockstep.internal/schemas/gen/events"
)

// driftPause is the minimum time between an apply and the repair of the next drift. It limits a fight
// with another controller.
const driftPause = 5 * time.Second

// drift returns a message if somebody else changed the Deployment, and the time from which it may be
// repaired. It returns "" without drift.
//
// The reports of the watcher and the dispatcher arrive in any order. A generation above the applied one
// proves a later change in any order. An edited annotation or a recreated object keeps the generation;
// only a full resync that began after the apply proves it. A repair reports the new generation, so each
// change is repaired once.
func (w Workspace) drift(o Observation) (message string, from time.Time) {
	d := o.Deployment
	switch {
	case d == nil, d.Object.DeletedAt != nil, w.DesiredState == DesiredTerminated:
		return "", from
	case w.ApplyError != nil, w.AppliedRevision != w.DesiredRevision, w.AppliedUID == "":
		return "", from // an apply is pending, or an old dispatcher does not report what it applied
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
		return name + " was deleted and recreated by somebody else; it is applied again", from
	}
	if d.Object.Annotations[AnnotationDesiredRevision] != strconv.FormatInt(w.AppliedRevision, 10) {
		return fmt.Sprintf("%s differs from applied revision %d; it is applied again", name, w.AppliedRevision), from
	}
	return "", from
}

// replicas is the replica count that the Deployment is applied with.
func (w Workspace) replicas() int {
	if w.DesiredState.Target() == events.DesiredTargetRunning {
		return 1
	}
	return 0
}

// deploymentReference names the workspace's Deployment.
func (w Workspace) deploymentReference() events.ObjectReference {
	return events.ObjectReference{ApiVersion: "apps/v1", Kind: "Deployment", Namespace: w.Namespace, Name: w.Name}
}

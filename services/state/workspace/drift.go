package workspace

import (
	"fmt"
	"strconv"
	"time"

	"lockstep.internal/schemas/gen/events"
)

// driftPause is the minimum time between an apply and the new revision that reverts a drift. It slows down a loop with
// another controller.
const driftPause = 5 * time.Second

// drift returns a message if another client changed the Deployment, and the earliest time of the new revision. It
// returns "" without drift.
//
// The reports of the watcher and the dispatcher arrive in any order. A generation above the applied one always
// proves a later change. An edited annotation or a recreated object keeps the generation; only a full resync that
// began after the apply proves it. Each apply reports the new generation, so each change is reverted once.
func (w Workspace) drift(o Observation) (message string, notBefore time.Time) {
	d := o.Deployment
	switch {
	case d == nil, d.Object.DeletedAt != nil, w.DesiredState == DesiredTerminated:
		return "", notBefore
	case w.ApplyError != nil, w.AppliedRevision != w.DesiredRevision, w.AppliedUID == "":
		return "", notBefore // an apply is pending, or an old dispatcher does not report what it applied
	}
	name := describe(w.deploymentReference())
	if d.Object.UID == w.AppliedUID && int64(d.Generation) > w.AppliedGeneration {
		notBefore = w.AppliedAt.Add(driftPause)
		if d.SpecReplicas != nil && *d.SpecReplicas != w.replicas() {
			return fmt.Sprintf("%s was scaled to %d by somebody else; it is applied again", name, *d.SpecReplicas), notBefore
		}
		return name + " was changed by somebody else; it is applied again", notBefore
	}
	if o.ResyncBegunAt.IsZero() || !w.AppliedAt.Before(o.ResyncBegunAt) {
		return "", notBefore
	}
	if d.Object.UID != w.AppliedUID {
		return name + " was deleted and recreated by somebody else; it is applied again", notBefore
	}
	if d.Object.Annotations[AnnotationDesiredRevision] != strconv.FormatInt(w.AppliedRevision, 10) {
		return fmt.Sprintf("%s differs from applied revision %d; it is applied again", name, w.AppliedRevision), notBefore
	}
	return "", notBefore
}

// replicas returns the replica count of the desired state.
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

// AppliedDeployment is what the dispatcher reported when it applied a Deployment last.
type AppliedDeployment struct {
	// UID is empty if an old dispatcher, which does not report it, applied the Deployment.
	UID      string
	Revision int64
}

// ExistingDeployment is a Deployment in the cluster.
type ExistingDeployment struct {
	UID string
	// Revision is the annotation [AnnotationDesiredRevision], empty for none.
	Revision string
}

// ReplacedBy reports whether another Deployment, or another revision, exists instead of the applied one. A full
// resync recomputes these workspaces; [Workspace.Observe] decides whether they drifted.
func (a AppliedDeployment) ReplacedBy(existing ExistingDeployment) bool {
	return a.UID != "" && (existing.UID != a.UID || existing.Revision != strconv.FormatInt(a.Revision, 10))
}

package desired

import (
	"strconv"

	"lockstep.internal/schemas/gen/events"
)

// Labels of every object of a workspace.
const (
	LabelAgent     = "lockstep.dev/agent"
	LabelWorkspace = "lockstep.dev/workspace"
)

// AnnotationSecretDigest is the digest of the values that a Secret was made from.
const AnnotationSecretDigest = "lockstep.dev/secret-digest"

// Workspace is the desired state of one workspace.
type Workspace struct {
	// ID is the workspace id from the subject.
	ID        string
	Name      string
	Namespace string
	// Revision grows with every change, from 1; 0 when it could not be read.
	Revision int64
	Target   events.DesiredTarget
	// Objects in order of application.
	Objects []Object
	Secrets []events.SecretReference
	// Size of the event's data in bytes.
	Size int
}

// Object is one rendered object.
type Object struct {
	Reference

	// Manifest is the decoded manifest; integers are int64.
	Manifest map[string]any
}

// References are all objects of the workspace: its namespace, its Secrets and its manifests, each
// once, in this order.
func (w Workspace) References() []Reference {
	references := make([]Reference, 0, 1+len(w.Secrets)+len(w.Objects))
	references = append(references, NamespaceReference(w.Namespace))
	for _, secret := range w.Secrets {
		references = append(references, SecretReference(w.Namespace, secret.Name))
	}
	for _, object := range w.Objects {
		if object.Reference != references[0] {
			references = append(references, object.Reference)
		}
	}
	return references
}

// Owner identifies the owner of an object: an agent and one of its workspaces.
type Owner struct {
	Agent     int64
	Workspace string
}

// Labels that every object of the owner carries.
func (o Owner) Labels() map[string]string {
	return map[string]string{LabelAgent: strconv.FormatInt(o.Agent, 10), LabelWorkspace: o.Workspace}
}

// Owns reports whether the labels are those of an object of the owner.
func (o Owner) Owns(labels map[string]string) bool {
	for key, value := range o.Labels() {
		if labels[key] != value {
			return false
		}
	}
	return true
}

package object

import (
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Labels of an agent's objects.
const (
	// LabelAgent holds the agent's id.
	LabelAgent = "lockstep.dev/agent"
	// LabelWorkspace holds the workspace's id.
	LabelWorkspace = "lockstep.dev/workspace"
	// LabelWorkspaceName holds the workspace's name, which is its Deployment's.
	LabelWorkspaceName = "lockstep.dev/workspace-name"
)

// Encoded is a trimmed Deployment, ReplicaSet or pod of a workspace, in protobuf. Decoded, it would
// take five times the memory.
type Encoded struct {
	kind                                  Kind
	namespace, name, uid, version, parent string
	data                                  []byte // without what the fields hold
}

// message is a protobuf message of Kubernetes.
type message interface {
	metav1.Object
	Marshal() ([]byte, error)
	Unmarshal(data []byte) error
}

// Encode trims an object of a workspace and encodes it. It does not change o. It returns an error for
// any other type.
func Encode(o any) (*Encoded, error) {
	kind, trimmed := trim(o)
	if trimmed == nil {
		return nil, fmt.Errorf("a %T is no object of a workspace", o)
	}
	e := &Encoded{kind: kind}
	// One allocation for all strings.
	text := trimmed.GetNamespace() + trimmed.GetName() + string(
		trimmed.GetUID(),
	) + trimmed.GetResourceVersion() + DeploymentOf(
		kind,
		trimmed,
	)
	for _, field := range []struct {
		to     *string
		length int
	}{
		{&e.namespace, len(trimmed.GetNamespace())},
		{&e.name, len(trimmed.GetName())},
		{&e.uid, len(trimmed.GetUID())},
		{&e.version, len(trimmed.GetResourceVersion())},
	} {
		*field.to, text = text[:field.length], text[field.length:]
	}
	e.parent = text
	trimmed.SetNamespace("")
	trimmed.SetName("")
	trimmed.SetUID("")
	trimmed.SetResourceVersion("")
	var err error
	if e.data, err = trimmed.Marshal(); err != nil {
		return nil, fmt.Errorf("encode %s %s/%s: %w", kind, e.namespace, e.name, err)
	}
	return e, nil
}

// GetNamespace implements [Object].
func (e *Encoded) GetNamespace() string { return e.namespace }

// GetName implements [Object].
func (e *Encoded) GetName() string { return e.name }

// GetUID implements [Object].
func (e *Encoded) GetUID() types.UID { return types.UID(e.uid) }

// GetResourceVersion implements [Object].
func (e *Encoded) GetResourceVersion() string { return e.version }

// Size returns the length of the encoded object in bytes.
func (e *Encoded) Size() int { return len(e.data) }

// Deployment returns the name of the Deployment that the object belongs to, empty for none.
func (e *Encoded) Deployment() string { return e.parent }

// Decode returns the object with all that is kept of it: a [Workload], a [Revision], or the Kubernetes
// type of an [Encoded] object.
func Decode(o Object) (metav1.Object, error) {
	e, encoded := o.(*Encoded)
	if !encoded {
		decoded, is := o.(metav1.Object)
		if !is {
			return nil, fmt.Errorf("a %T has no metadata", o)
		}
		return decoded, nil
	}
	var decoded message
	switch e.kind {
	case Deployment:
		decoded = &appsv1.Deployment{}
	case Pod:
		decoded = &corev1.Pod{}
	default:
		decoded = &metav1.PartialObjectMetadata{}
	}
	if err := decoded.Unmarshal(e.data); err != nil {
		return nil, fmt.Errorf("decode %s %s/%s: %w", e.kind, e.namespace, e.name, err)
	}
	decoded.SetNamespace(e.namespace)
	decoded.SetName(e.name)
	decoded.SetUID(types.UID(e.uid))
	decoded.SetResourceVersion(e.version)
	return decoded, nil
}

// DeploymentOf returns the name of the Deployment that an object of a workspace belongs to, empty for
// none. A pod names its ReplicaSet, which is named after the Deployment and the hash of the pod
// template. Where that does not hold, the workspace's name is the Deployment's.
func DeploymentOf(kind Kind, o metav1.Object) string {
	switch kind {
	case Deployment:
		return o.GetName()
	case ReplicaSet:
		if owner := ControllerOf(o, "Deployment"); owner != "" {
			return owner
		}
	case Pod:
		hash := o.GetLabels()[appsv1.DefaultDeploymentUniqueLabelKey]
		if name, found := strings.CutSuffix(ControllerOf(o, "ReplicaSet"), "-"+hash); found && hash != "" && name != "" {
			return name
		}
	case StatefulSet, DaemonSet, ControllerRevision: // of no workspace
	}
	return o.GetLabels()[LabelWorkspaceName]
}

// ControllerOf returns the name of the object's controller if that is of the kind.
func ControllerOf(o metav1.Object, kind string) string {
	if owner := metav1.GetControllerOfNoCopy(o); owner != nil && owner.Kind == kind {
		return owner.Name
	}
	return ""
}

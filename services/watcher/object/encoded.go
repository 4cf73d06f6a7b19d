package object

import (
	"fmt"
	"math"
	"strings"
	"sync"

	"github.com/klauspost/compress/s2"
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

// Encoded is a trimmed Deployment, ReplicaSet or pod of a workspace, in compressed protobuf. A watcher holds 150,000 of
// them, so it is small and has few pointers.
type Encoded struct {
	dictionary *dictionary
	// identity is the namespace, name, UID, version and Deployment, one after the other. ends holds
	// the end offsets of the first four.
	identity string
	ends     [4]uint16
	data     string // without the identity, compressed with the dictionary
}

// dictionary compresses the objects of one kind, which differ little from each other. It is made of the first of them.
type dictionary struct {
	kind Kind
	dict *s2.Dict
}

// Encoder encodes objects of workspaces. It is safe for concurrent use.
type Encoder struct {
	mu           sync.Mutex
	dictionaries map[Kind]*dictionary
}

// NewEncoder returns an encoder without dictionaries: the first object of each kind becomes one.
func NewEncoder() *Encoder { return &Encoder{dictionaries: make(map[Kind]*dictionary)} }

func (e *Encoder) dictionary(kind Kind, data []byte) *dictionary {
	e.mu.Lock()
	defer e.mu.Unlock()
	d, known := e.dictionaries[kind]
	if !known {
		d = &dictionary{kind: kind, dict: s2.MakeDict(data, nil)}
		e.dictionaries[kind] = d
	}
	return d
}

// message is a protobuf message of Kubernetes.
type message interface {
	metav1.Object
	Marshal() ([]byte, error)
	Unmarshal(data []byte) error
}

// Encode trims an object of a workspace and encodes it. It does not change o. It returns an error for
// any other type.
func (e *Encoder) Encode(o any) (*Encoded, error) {
	kind, trimmed := trim(o)
	if trimmed == nil {
		return nil, fmt.Errorf("a %T is no object of a workspace", o)
	}
	parts := [...]string{
		trimmed.GetNamespace(), trimmed.GetName(), string(trimmed.GetUID()), trimmed.GetResourceVersion(),
		DeploymentOf(kind, trimmed),
	}
	encoded := &Encoded{identity: strings.Join(parts[:], "")}
	if len(encoded.identity) > math.MaxUint16 {
		return nil, fmt.Errorf("encode %s: its identity has more than %d bytes", kind, math.MaxUint16)
	}
	end := 0
	for i := range encoded.ends {
		end += len(parts[i])
		encoded.ends[i] = uint16(end)
	}
	trimmed.SetNamespace("")
	trimmed.SetName("")
	trimmed.SetUID("")
	trimmed.SetResourceVersion("")
	data, err := trimmed.Marshal()
	if err != nil {
		return nil, fmt.Errorf("encode %s %s/%s: %w", kind, encoded.GetNamespace(), encoded.GetName(), err)
	}
	encoded.dictionary = e.dictionary(kind, data)
	encoded.data = string(encoded.dictionary.dict.Encode(nil, data))
	return encoded, nil
}

// GetNamespace implements [Object].
func (e *Encoded) GetNamespace() string { return e.identity[:e.ends[0]] }

// GetName implements [Object].
func (e *Encoded) GetName() string { return e.identity[e.ends[0]:e.ends[1]] }

// GetUID implements [Object].
func (e *Encoded) GetUID() types.UID { return types.UID(e.identity[e.ends[1]:e.ends[2]]) }

// GetResourceVersion implements [Object].
func (e *Encoded) GetResourceVersion() string { return e.identity[e.ends[2]:e.ends[3]] }

// Size returns the length of the encoded object in bytes, without its identity.
func (e *Encoded) Size() int { return len(e.data) }

// Deployment returns the name of the Deployment that the object belongs to, empty for none.
func (e *Encoded) Deployment() string { return e.identity[e.ends[3]:] }

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
	data, err := e.dictionary.dict.Decode(nil, []byte(e.data))
	if err != nil {
		return nil, fmt.Errorf("decompress %s %s/%s: %w", e.dictionary.kind, e.GetNamespace(), e.GetName(), err)
	}
	var decoded message
	switch e.dictionary.kind {
	case Deployment:
		decoded = &appsv1.Deployment{}
	case Pod:
		decoded = &corev1.Pod{}
	default:
		decoded = &metav1.PartialObjectMetadata{}
	}
	if err := decoded.Unmarshal(data); err != nil {
		return nil, fmt.Errorf("decode %s %s/%s: %w", e.dictionary.kind, e.GetNamespace(), e.GetName(), err)
	}
	decoded.SetNamespace(e.GetNamespace())
	decoded.SetName(e.GetName())
	decoded.SetUID(e.GetUID())
	decoded.SetResourceVersion(e.GetResourceVersion())
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

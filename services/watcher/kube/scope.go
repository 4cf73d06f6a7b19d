package kube

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// Scope says which objects are watched and listed, and what is kept of each. Make one with [Workspaces] or [Workloads].
type Scope struct {
	kinds      []Kind
	namespaces []string // [metav1.NamespaceAll] for all
	labels     string   // selector, applied by the API server
	trim       cache.TransformFunc
}

// Kinds of the scope, in the order in which a full resync is to list them.
func (s Scope) Kinds() []Kind { return slices.Clone(s.kinds) }

// Workspaces are the Deployments, ReplicaSets and pods in every namespace that a label selector matches: *appsv1.Deployment,
// *metav1.PartialObjectMetadata and *corev1.Pod, without what is not reported.
func Workspaces(labels string) Scope {
	return Scope{kinds: WorkspaceKinds(), namespaces: []string{metav1.NamespaceAll}, labels: labels, trim: trim}
}

// Following says which workloads are followed, and what of them is kept.
type Following struct {
	// Namespaces that are read. Defaults to all.
	Namespaces []string
	// Selects tells by its labels whether a workload is followed. The API server could tell, but reports a label that goes away as a deletion.
	Selects func(labels map[string]string) bool
	// Annotations are prefixes of the names of those that are kept, besides what is always kept.
	Annotations []string
}

// Workloads are the Deployments, StatefulSets and DaemonSets ([Workload]) and their ReplicaSets and ControllerRevisions ([Revision]). All that are in the
// namespaces are told, of those that are not followed nothing but which they are.
func Workloads(f Following) Scope {
	namespaces := slices.Clone(f.Namespaces)
	slices.Sort(namespaces)
	if namespaces = slices.Compact(namespaces); len(namespaces) == 0 {
		namespaces = []string{metav1.NamespaceAll}
	}
	c := compactor{selects: f.Selects, annotations: append(annotationPrefixes(), f.Annotations...)}
	return Scope{kinds: WorkloadKinds(), namespaces: namespaces, trim: c.compact}
}

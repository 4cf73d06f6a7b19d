package kube

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/services/watcher/object"
)

// Scope selects the objects to watch and list, and what to keep of them. [Workspaces] and [Workloads]
// make one.
type Scope struct {
	kinds      []object.Kind
	namespaces []string // [metav1.NamespaceAll] for all
	labels     string   // selector that the API server applies
	trim       func(o any) (object.Object, error)
	// metadataFirst is true if a full resync reads metadata first, since it holds nearly all objects.
	metadataFirst bool
}

// Kinds returns the kinds of the scope. A full resync must list them in this order, one after the other.
func (s Scope) Kinds() []object.Kind { return slices.Clone(s.kinds) }

// Workspaces selects the Deployments, ReplicaSets and pods of all namespaces that match a label
// selector. Each is kept as [object.Encoded].
func Workspaces(labels string) Scope {
	encoder := object.NewEncoder()
	return Scope{
		kinds: object.WorkspaceKinds(), namespaces: []string{metav1.NamespaceAll}, labels: labels,
		trim:          func(o any) (object.Object, error) { return encoder.Encode(o) },
		metadataFirst: true,
	}
}

// WorkloadOptions select the workloads to track and what to keep of them.
type WorkloadOptions struct {
	// Namespaces to read. Defaults to all.
	Namespaces []string
	// Selects reports whether a workload with these labels is selected. It is not a label selector of the
	// API server, which reports a removed label as a deletion.
	Selects func(labels map[string]string) bool
	// Annotations are prefixes of the annotations to keep, besides those that are always kept.
	Annotations []string
}

// Workloads selects the Deployments, StatefulSets and DaemonSets of the namespaces, kept as
// [object.Workload], and their ReplicaSets and ControllerRevisions, kept as [object.Revision]. It
// includes unselected workloads, with their identity only.
func Workloads(options WorkloadOptions) Scope {
	namespaces := slices.Clone(options.Namespaces)
	slices.Sort(namespaces)
	if namespaces = slices.Compact(namespaces); len(namespaces) == 0 {
		namespaces = []string{metav1.NamespaceAll}
	}
	compactor := object.NewCompactor(options.Selects, options.Annotations)
	return Scope{kinds: object.WorkloadKinds(), namespaces: namespaces, trim: compactor.Compact}
}

package kube

import (
	"context"
	"strconv"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"

	"lockstep.internal/services/dispatcher/desired"
)

// Namespaces is an informer cache of the namespaces of an agent's workspaces. It holds metadata only, and may be
// stale: it only saves requests.
type Namespaces struct {
	agent     int64
	client    *Client
	onDeleted func(workspace string)

	mu    sync.Mutex
	known map[string]*metav1.PartialObjectMetadata
}

// NewNamespaces returns an empty cache. It calls onDeleted when the namespace of a workspace no longer exists.
// onDeleted must not block.
func NewNamespaces(client *Client, agent int64, onDeleted func(workspace string)) *Namespaces {
	return &Namespaces{
		agent: agent, client: client, onDeleted: onDeleted,
		known: map[string]*metav1.PartialObjectMetadata{},
	}
}

// Run watches until ctx ends. It reconnects after an outage of the API server.
func (n *Namespaces) Run(ctx context.Context) error {
	kind, _ := desired.LookupKind("v1", desired.KindNamespace)
	informer := metadatainformer.NewFilteredMetadataInformer(
		n.client.meta,
		kind.Resource,
		metav1.NamespaceAll,
		0,
		cache.Indexers{},
		func(options *metav1.ListOptions) {
			options.LabelSelector = desired.LabelAgent + "=" + strconv.FormatInt(n.agent, 10)
		},
	).Informer()
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { n.onUpdate(object) },
		UpdateFunc: func(_, object any) { n.onUpdate(object) },
		DeleteFunc: func(object any) { n.deleted(object) },
	})
	if err != nil {
		return err //nolint:wrapcheck // only a stopped informer refuses handlers
	}
	informer.RunWithContext(ctx)
	return nil
}

func (n *Namespaces) onUpdate(object any) {
	if namespace, ok := object.(*metav1.PartialObjectMetadata); ok {
		n.remember(namespace)
	}
}

func (n *Namespaces) deleted(object any) {
	if last, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = last.Obj
	}
	namespace, ok := object.(*metav1.PartialObjectMetadata)
	if !ok {
		return
	}
	n.mu.Lock()
	if known := n.known[namespace.Name]; known != nil && known.UID == namespace.UID {
		delete(n.known, namespace.Name)
	}
	n.mu.Unlock()
	n.onDeleted(namespace.Labels[desired.LabelWorkspace])
}

// current reports whether the cached namespace exists, is not being deleted, and has the labels and annotations of
// the manifest.
func (n *Namespaces) current(manifest desired.Object) bool {
	n.mu.Lock()
	live := n.known[manifest.Name]
	n.mu.Unlock()
	if live == nil || live.DeletionTimestamp != nil {
		return false
	}
	metadata, _ := manifest.Manifest["metadata"].(map[string]any)
	return containsAll(live.Labels, metadata["labels"]) && containsAll(live.Annotations, metadata["annotations"])
}

func containsAll(have map[string]string, want any) bool {
	entries, _ := want.(map[string]any)
	for key, value := range entries {
		if text, ok := value.(string); !ok || have[key] != text {
			return false
		}
	}
	return true
}

func (n *Namespaces) remember(namespace *metav1.PartialObjectMetadata) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.known[namespace.Name] = namespace
}

func (n *Namespaces) forget(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.known, name)
}

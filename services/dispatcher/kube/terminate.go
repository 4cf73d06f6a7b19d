package kube

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/services/dispatcher/desired"
	"lockstep.internal/services/dispatcher/failure"
)

// Terminate deletes the workspace's objects and returns those that still exist, and why. When none remain, it deletes
// the inventory. It does not wait: the caller repeats it after a delay, or when [Namespaces] reports that the namespace
// was deleted. The error is always a [failure.Failure].
func (c *Cluster) Terminate(ctx context.Context, w desired.Workspace) (Remaining, error) {
	remaining, at, err := c.terminate(ctx, w)
	if err != nil {
		return Remaining{}, failure.Explain(err, at)
	}
	return remaining, nil
}

// terminate also returns the object at which it failed.
func (c *Cluster) terminate(ctx context.Context, w desired.Workspace) (Remaining, desired.Reference, error) {
	var at desired.Reference
	namespace := desired.NamespaceReference(w.Namespace)
	have, remembered, err := c.inventories.get(ctx, w.ID)
	if err == nil && remembered && !have.exists() {
		have, err = c.inventories.read(ctx, w.ID)
	}
	if err != nil {
		return Remaining{}, at, err
	}
	live, err := c.getNamespace(ctx, w.Namespace)
	if err != nil {
		return Remaining{}, namespace, err
	}
	ownsNamespace := live != nil && c.owner(w).Owns(live.Labels)
	if !have.exists() && !ownsNamespace {
		// The workspace was never applied, is already terminated, or is an orphan that only its labels identify.
		if exists, at, err := c.anyObjectExists(ctx, w); err != nil || !exists {
			return Remaining{}, at, err
		}
	}
	inventory, err := c.recordRevision(ctx, w, w.References())
	if err != nil {
		return Remaining{}, at, err
	}
	var remaining []remainingObject
	if live != nil {
		if remaining, at, err = c.deleteAll(ctx, w, inventory.objects); err != nil {
			return Remaining{}, at, err
		}
	}
	// A namespace that is not the workspace's own stays, without the workspace's objects.
	if ownsNamespace {
		if live.DeletionTimestamp == nil {
			c.namespaces.forget(w.Namespace)
			if err := c.remove(ctx, namespace, live.UID, metav1.DeletePropagationForeground); err != nil {
				return Remaining{}, namespace, err
			}
		}
		remaining = append(remaining, remainingObject{namespace, live.Finalizers})
	}
	if len(remaining) > 0 {
		return newRemaining(remaining, live.Status.Conditions), at, nil
	}
	if err := c.inventories.remove(ctx, w.ID, inventory); err != nil {
		if apierrors.IsConflict(err) { // the inventory was changed meanwhile: retry
			return newRemaining([]remainingObject{{Reference: namespace}}, nil), at, nil
		}
		return Remaining{}, at, err
	}
	for _, reference := range inventory.objects {
		c.forget(reference)
	}
	return Remaining{}, at, nil
}

// getNamespace returns a namespace, or nil if it does not exist.
func (c *Cluster) getNamespace(ctx context.Context, name string) (*corev1.Namespace, error) {
	live, err := c.client.core.Namespaces().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil //nolint:nilnil // nil means not found
	case err != nil:
		return nil, fmt.Errorf("get namespace %s: %w", name, err)
	}
	return live, nil
}

// anyObjectExists reports whether an object of the workspace exists and belongs to it. On an error it returns the
// object at which it failed.
func (c *Cluster) anyObjectExists(ctx context.Context, w desired.Workspace) (bool, desired.Reference, error) {
	for _, object := range w.Objects {
		live, err := c.getMetadata(ctx, object.Reference)
		if err != nil {
			return false, object.Reference, err
		}
		if live != nil && c.owner(w).Owns(live.Labels) {
			return true, desired.Reference{}, nil
		}
	}
	return false, desired.Reference{}, nil
}

// deleteAll deletes the objects, those applied last first, and returns those that still exist. On an error it
// returns the object at which it failed.
func (c *Cluster) deleteAll(
	ctx context.Context, w desired.Workspace, objects []desired.Reference,
) ([]remainingObject, desired.Reference, error) {
	var remaining []remainingObject
	for _, reference := range slices.Backward(objects) {
		if reference.Kind == desired.KindNamespace {
			continue
		}
		live, err := c.deleteObject(ctx, w, reference)
		if err != nil {
			return nil, reference, err
		}
		if live != nil {
			remaining = append(remaining, remainingObject{reference, live.Finalizers})
		}
	}
	return remaining, desired.Reference{}, nil
}

// deleteObject deletes an object of the workspace. It returns the object as it was before, or nil if it was gone.
func (c *Cluster) deleteObject(
	ctx context.Context, w desired.Workspace, reference desired.Reference,
) (*metav1.PartialObjectMetadata, error) {
	if _, known := desired.LookupKind(reference.ApiVersion, reference.Kind); !known {
		return nil, nil //nolint:nilnil // it is deleted with the namespace
	}
	live, err := c.getMetadata(ctx, reference)
	if err != nil || live == nil || !c.owner(w).Owns(live.Labels) {
		return nil, err
	}
	if live.DeletionTimestamp == nil {
		if err := c.remove(ctx, reference, live.UID, metav1.DeletePropagationForeground); err != nil {
			return nil, err
		}
	}
	return live, nil
}

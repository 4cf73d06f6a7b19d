package kube

import (
	"context"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/services/dispatcher/desired"
	"lockstep.internal/services/dispatcher/failure"
)

// Terminate deletes what there is of the workspace and returns what remains; nothing when all is
// gone and forgotten. It does not wait: it is called again, when [Namespaces] tells that the
// namespace is gone or after a while. The error is always a [failure.Failure].
func (c *Cluster) Terminate(ctx context.Context, w desired.Workspace) ([]desired.Reference, error) {
	remaining, at, err := c.terminate(ctx, w)
	if err != nil {
		return nil, failure.Explain(err, at)
	}
	return remaining, nil
}

// terminate also returns the object that it was at.
func (c *Cluster) terminate(ctx context.Context, w desired.Workspace) ([]desired.Reference, desired.Reference, error) {
	var at desired.Reference
	namespace := desired.NamespaceReference(w.Namespace)
	have, remembered, err := c.inventories.get(ctx, w.ID)
	if err == nil && remembered && !have.exists() {
		have, err = c.inventories.read(ctx, w.ID)
	}
	if err != nil {
		return nil, at, err
	}
	live, err := c.look(ctx, namespace)
	if err != nil {
		return nil, namespace, err
	}
	mine := live != nil && c.owner(w).Owns(live.Labels)
	if !have.exists() && !mine {
		// It never was, or has been terminated before; or it is an orphan, of which only its labels
		// tell.
		if there, at, err := c.anyOwn(ctx, w); err != nil || !there {
			return nil, at, err
		}
	}
	held, err := c.claim(ctx, w, w.References())
	if err != nil {
		return nil, at, err
	}
	var remaining []desired.Reference
	if live != nil {
		if remaining, at, err = c.endAll(ctx, w, held.objects); err != nil {
			return nil, at, err
		}
	}
	// A namespace that is not the workspace's own stays, without the workspace's objects.
	if mine {
		if live.DeletionTimestamp == nil {
			c.namespaces.forget(w.Namespace)
			if err := c.remove(ctx, namespace, live.UID, metav1.DeletePropagationForeground); err != nil {
				return nil, namespace, err
			}
		}
		remaining = append(remaining, namespace)
	}
	if len(remaining) > 0 {
		return remaining, at, nil
	}
	if err := c.inventories.remove(ctx, w.ID, held); err != nil {
		if apierrors.IsConflict(err) {
			return []desired.Reference{namespace}, at, nil // somebody has written to it: look again
		}
		return nil, at, err
	}
	for _, reference := range held.objects {
		c.forget(reference)
	}
	return nil, at, nil
}

// anyOwn tells whether any of the objects that the workspace names is there and its own; or the one
// that it failed at.
func (c *Cluster) anyOwn(ctx context.Context, w desired.Workspace) (bool, desired.Reference, error) {
	for _, object := range w.Objects {
		live, err := c.look(ctx, object.Reference)
		if err != nil {
			return false, object.Reference, err
		}
		if live != nil && c.owner(w).Owns(live.Labels) {
			return true, desired.Reference{}, nil
		}
	}
	return false, desired.Reference{}, nil
}

// endAll deletes the objects, those applied last first, and returns those that are there still; or
// the one it failed at.
func (c *Cluster) endAll(
	ctx context.Context, w desired.Workspace, objects []desired.Reference,
) ([]desired.Reference, desired.Reference, error) {
	var remaining []desired.Reference
	for _, reference := range slices.Backward(objects) {
		if reference.Kind == desired.KindNamespace {
			continue
		}
		there, err := c.end(ctx, w, reference)
		if err != nil {
			return nil, reference, err
		}
		if there {
			remaining = append(remaining, reference)
		}
	}
	return remaining, desired.Reference{}, nil
}

// end deletes an object of the workspace and reports whether it is there still.
func (c *Cluster) end(ctx context.Context, w desired.Workspace, reference desired.Reference) (bool, error) {
	if _, known := desired.LookupKind(reference.ApiVersion, reference.Kind); !known {
		return false, nil // it goes with the namespace
	}
	live, err := c.look(ctx, reference)
	if err != nil {
		return false, err
	}
	if live == nil || !c.owner(w).Owns(live.Labels) {
		return false, nil
	}
	if live.DeletionTimestamp == nil {
		if err := c.remove(ctx, reference, live.UID, metav1.DeletePropagationForeground); err != nil {
			return false, err
		}
	}
	return true, nil
}

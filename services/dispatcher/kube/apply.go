package kube

import (
	"context"
	"encoding/base64"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/dispatcher/desired"
	"lockstep.internal/services/dispatcher/failure"
)

// Applied says what Apply has done.
type Applied struct {
	// Objects that there are now.
	Objects []desired.Reference
	// Pruned objects, whose deletion this call has asked for.
	Pruned []desired.Reference
}

// Apply brings the cluster to the workspace's objects. The error is always a [failure.Failure].
func (c *Cluster) Apply(ctx context.Context, w desired.Workspace, secrets Secrets) (Applied, error) {
	applied, at, err := c.apply(ctx, w, secrets)
	if err != nil {
		return Applied{}, failure.Explain(err, at)
	}
	return applied, nil
}

// apply also returns the object that it was at.
func (c *Cluster) apply(ctx context.Context, w desired.Workspace, secrets Secrets) (Applied, desired.Reference, error) {
	wanted := w.References()
	held, err := c.claim(ctx, w, wanted)
	if err != nil {
		return Applied{}, desired.Reference{}, err
	}
	namespace := c.policy.Namespace(w)
	fresh, err := c.applyNamespace(ctx, w, namespace)
	if err != nil {
		return Applied{}, namespace.Reference, err
	}
	for _, secret := range w.Secrets {
		if err := c.applySecret(ctx, w, secret, secrets, fresh); err != nil {
			return Applied{}, desired.SecretReference(w.Namespace, secret.Name), c.gone(w, err)
		}
	}
	for _, object := range w.Objects {
		if object.Reference == namespace.Reference {
			continue
		}
		if err := c.applyObject(ctx, w, object, fresh); err != nil {
			return Applied{}, object.Reference, c.gone(w, err)
		}
	}
	pruned, left, at, err := c.prune(ctx, w, desired.Prune(held.objects, wanted))
	if err != nil {
		return Applied{}, at, err
	}
	settled := held
	settled.objects = desired.Union(wanted, left)
	if !settled.equal(held) {
		if _, err := c.inventories.put(ctx, w.ID, settled); err != nil {
			return Applied{}, desired.Reference{}, err
		}
	}
	return Applied{Objects: wanted, Pruned: pruned}, desired.Reference{}, nil
}

// applyNamespace reports whether it has made the namespace, which is then empty.
func (c *Cluster) applyNamespace(ctx context.Context, w desired.Workspace, namespace desired.Object) (bool, error) {
	if c.namespaces.current(namespace) {
		return false, nil
	}
	for range maxClaims {
		live, err := c.look(ctx, namespace.Reference)
		if err != nil {
			return false, err
		}
		if err := c.own(w, namespace.Reference, live); err != nil {
			return false, err
		}
		if live == nil {
			applied, err := c.patch(ctx, namespace, "")
			if err != nil {
				return false, err
			}
			c.namespaces.remember(applied)
			return true, nil
		}
		applied, err := c.patch(ctx, namespace, live.UID)
		if isAnother(err) {
			continue // it was made anew in between
		}
		if err != nil {
			return false, err
		}
		c.namespaces.remember(applied)
		return false, nil
	}
	return false, failure.New(failure.Conflict, &namespace.Reference, "%s keeps changing hands; it is tried again", failure.Describe(namespace.Reference))
}

// own refuses an object that is there and is not the workspace's, or is on its way out.
func (c *Cluster) own(w desired.Workspace, reference desired.Reference, live *metav1.PartialObjectMetadata) error {
	switch {
	case live == nil:
		return nil
	case !c.owner(w).Owns(live.Labels):
		return failure.New(failure.Conflict, &reference,
			"%s exists and does not belong to this workspace, so it is not touched; delete or rename it, or give the workspace another name", failure.Describe(reference))
	case live.DeletionTimestamp != nil && reference.Kind == desired.KindNamespace:
		return failure.New(failure.NamespaceTerminating, &reference, "%s is being deleted; it is made again when that is finished", failure.Describe(reference))
	case live.DeletionTimestamp != nil:
		return failure.New(failure.ObjectTerminating, &reference, "%s is being deleted; it is made again when that is finished", failure.Describe(reference))
	default:
		return nil
	}
}

// applyObject applies one object. In a fresh namespace it need not look first.
func (c *Cluster) applyObject(ctx context.Context, w desired.Workspace, object desired.Object, fresh bool) error {
	for range maxClaims {
		uid := c.uid(object.Reference)
		if uid == "" && !fresh {
			live, err := c.look(ctx, object.Reference)
			if err != nil {
				return err
			}
			if err := c.own(w, object.Reference, live); err != nil {
				return err
			}
			if live != nil {
				uid = live.UID
			}
		}
		applied, err := c.patch(ctx, object, uid)
		if isAnother(err) && uid != "" {
			c.forget(object.Reference) // somebody has deleted it, and perhaps made another
			fresh = false
			continue
		}
		if err != nil {
			return err
		}
		c.remember(object.Reference, applied.UID)
		// A server-side apply succeeds on what is being deleted, and is then lost.
		return c.own(w, object.Reference, applied)
	}
	return failure.New(failure.Conflict, &object.Reference, "%s keeps changing hands; it is tried again", failure.Describe(object.Reference))
}

// isAnother tells that there is no object of the UID that was insisted on: a conflict when there is none of its name at all, an invalid
// metadata.uid when it is another one's.
func isAnother(err error) bool {
	if apierrors.IsConflict(err) {
		return true
	}
	var status apierrors.APIStatus
	if !apierrors.IsInvalid(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	for _, cause := range status.Status().Details.Causes {
		if cause.Field == "metadata.uid" {
			return true
		}
	}
	return false
}

// applySecret makes the Secret unless there is one of the same digest.
func (c *Cluster) applySecret(ctx context.Context, w desired.Workspace, secret events.SecretReference, secrets Secrets, fresh bool) error {
	reference := desired.SecretReference(w.Namespace, secret.Name)
	if !fresh {
		live, err := c.look(ctx, reference)
		if err != nil {
			return err
		}
		if err := c.own(w, reference, live); err != nil {
			return err
		}
		if live == nil {
			c.forget(reference)
		} else {
			c.remember(reference, live.UID)
			if live.Annotations[desired.AnnotationSecretDigest] == secret.Digest {
				return nil
			}
		}
	}
	values, err := secrets.Values(ctx, w.ID, secret)
	if err != nil {
		return err
	}
	data := make(map[string]any, len(values))
	for key, value := range values {
		data[key] = base64.StdEncoding.EncodeToString(value)
		clear(value)
	}
	labels := make(map[string]any, 2)
	for key, value := range c.owner(w).Labels() {
		labels[key] = value
	}
	return c.applyObject(ctx, w, desired.Object{Reference: reference, Manifest: map[string]any{
		"apiVersion": reference.ApiVersion, "kind": reference.Kind, "type": "Opaque", "data": data,
		"metadata": map[string]any{
			"name": reference.Name, "namespace": reference.Namespace, "labels": labels,
			"annotations": map[string]any{desired.AnnotationSecretDigest: secret.Digest},
		},
	}}, fresh)
}

// gone takes note of a namespace that turns out to be missing or on its way out, whatever was remembered of it.
func (c *Cluster) gone(w desired.Workspace, err error) error {
	var status apierrors.APIStatus
	if errors.As(err, &status) && (apierrors.IsNotFound(err) || apierrors.IsForbidden(err)) {
		c.namespaces.forget(w.Namespace)
	}
	return err
}

// prune deletes objects that belong to the workspace. It returns those whose deletion it has asked for, those that are not gone yet, and
// the one that it failed at.
func (c *Cluster) prune(ctx context.Context, w desired.Workspace, objects []desired.Reference) ([]desired.Reference, []desired.Reference, desired.Reference, error) {
	var pruned, left []desired.Reference
	for _, reference := range objects {
		if _, known := desired.LookupKind(reference.ApiVersion, reference.Kind); !known {
			left = append(left, reference) // a newer dispatcher's; the namespace's end will be its own
			continue
		}
		live, err := c.look(ctx, reference)
		if err != nil {
			return nil, nil, reference, err
		}
		if live == nil || !c.owner(w).Owns(live.Labels) {
			c.forget(reference)
			continue
		}
		if live.DeletionTimestamp == nil {
			if err := c.remove(ctx, reference, live.UID, metav1.DeletePropagationBackground); err != nil {
				return nil, nil, reference, err
			}
			pruned = append(pruned, reference)
		}
		still, err := c.look(ctx, reference)
		if err != nil {
			return nil, nil, reference, err
		}
		if still != nil && still.UID == live.UID {
			left = append(left, reference)
		}
	}
	return pruned, left, desired.Reference{}, nil
}

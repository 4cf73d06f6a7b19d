package kube

import (
	"context"
	"encoding/base64"
	"errors"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/dispatcher/desired"
	"lockstep.internal/services/dispatcher/failure"
)

// Applied is the result of Apply.
type Applied struct {
	// Objects lists all objects of the workspace.
	Objects []desired.Reference
	// Pruned lists the objects that this call deleted.
	Pruned []desired.Reference
	// DeploymentUID and DeploymentGeneration identify the workspace's Deployment after the apply; empty without one.
	DeploymentUID        types.UID
	DeploymentGeneration int64
	// Repaired lists the objects that were changed or missing. Set by Repair only.
	Repaired []desired.Reference
}

// Apply creates or updates the workspace's objects and prunes the others. The error is always a [failure.Failure].
func (c *Cluster) Apply(ctx context.Context, w desired.Workspace, secrets SecretSource) (Applied, error) {
	return c.applyExplained(ctx, w, secrets, applyOptions{})
}

// Repair is Apply of a revision that was applied before. It reads every object except the namespace instead of using
// the cached UIDs, and returns the objects that others have changed.
func (c *Cluster) Repair(ctx context.Context, w desired.Workspace, secrets SecretSource) (Applied, error) {
	return c.applyExplained(ctx, w, secrets, applyOptions{repair: true})
}

func (c *Cluster) applyExplained(
	ctx context.Context, w desired.Workspace, secrets SecretSource, options applyOptions,
) (Applied, error) {
	applied, at, err := c.apply(ctx, w, secrets, options)
	if err != nil {
		return Applied{}, failure.Explain(err, at)
	}
	return applied, nil
}

// applyOptions control how objects are applied.
type applyOptions struct {
	fresh  bool // the namespace was created by this call and is empty
	repair bool // read every object except the namespace, to find the changes of others
}

// appliedObject is an object after the apply.
type appliedObject struct {
	live *metav1.PartialObjectMetadata
	// changed reports whether another client had changed or deleted the object. Valid in a repair only.
	changed bool
}

// apply also returns the reference of the object at which it failed.
func (c *Cluster) apply(
	ctx context.Context, w desired.Workspace, secrets SecretSource, options applyOptions,
) (Applied, desired.Reference, error) {
	wanted := w.References()
	have, err := c.recordRevision(ctx, w, wanted)
	if err != nil {
		return Applied{}, desired.Reference{}, err
	}
	out := Applied{Objects: wanted}
	note := func(reference desired.Reference, t appliedObject) {
		if options.repair && t.changed {
			out.Repaired = append(out.Repaired, reference)
		}
		if reference.Kind == desired.KindDeployment && reference.Name == w.Name {
			out.DeploymentUID, out.DeploymentGeneration = t.live.UID, t.live.Generation
		}
	}
	namespace := c.policy.Namespace(w)
	applied, err := c.applyNamespace(ctx, w, namespace)
	if err != nil {
		return Applied{}, namespace.Reference, err
	}
	if applied.live != nil {
		note(namespace.Reference, applied.appliedObject)
	}
	options.fresh = applied.fresh
	for _, secret := range w.Secrets {
		t, err := c.applySecret(ctx, w, secret, secrets, options)
		if err != nil {
			return Applied{}, desired.SecretReference(w.Namespace, secret.Name), c.forgetNamespace(w, err)
		}
		note(desired.SecretReference(w.Namespace, secret.Name), t)
	}
	for _, object := range w.Objects {
		if object.Reference == namespace.Reference {
			continue
		}
		t, err := c.applyObject(ctx, w, object, options)
		if err != nil {
			return Applied{}, object.Reference, c.forgetNamespace(w, err)
		}
		note(object.Reference, t)
	}
	pruned, left, at, err := c.prune(ctx, w, desired.Prune(have.objects, wanted))
	if err != nil {
		return Applied{}, at, err
	}
	if err := c.checkNamespaceActive(ctx, w, namespace.Reference); err != nil {
		return Applied{}, namespace.Reference, c.forgetNamespace(w, err)
	}
	updated := have
	updated.objects = desired.Union(wanted, left)
	if !updated.equal(have) {
		if _, err := c.inventories.put(ctx, w.ID, updated); err != nil {
			return Applied{}, desired.Reference{}, err
		}
	}
	out.Pruned = pruned
	return out, desired.Reference{}, nil
}

// checkNamespaceActive returns an error if the namespace is missing, is being deleted or has another owner. In a
// terminating namespace, updates of objects still succeed.
func (c *Cluster) checkNamespaceActive(ctx context.Context, w desired.Workspace, namespace desired.Reference) error {
	live, err := c.getMetadata(ctx, namespace)
	if err != nil {
		return err
	}
	if live != nil {
		if err = c.checkOwner(w, namespace, live); err == nil {
			return nil
		}
	} else {
		err = failure.New(
			failure.NamespaceMissing, &namespace,
			"%s was deleted while the workspace was applied; the dispatcher creates it again", failure.Describe(namespace),
		)
	}
	c.namespaces.forget(w.Namespace)
	return err
}

// appliedNamespace is the result of applyNamespace. live is nil if the informer cache showed no change.
type appliedNamespace struct {
	appliedObject

	fresh bool // it was created by this call and is empty
}

func (c *Cluster) applyNamespace(
	ctx context.Context, w desired.Workspace, namespace desired.Object,
) (appliedNamespace, error) {
	if c.namespaces.current(namespace) {
		return appliedNamespace{}, nil
	}
	for range maxConflicts {
		live, err := c.getMetadata(ctx, namespace.Reference)
		if err != nil {
			return appliedNamespace{}, err
		}
		if err := c.checkOwner(w, namespace.Reference, live); err != nil {
			return appliedNamespace{}, err
		}
		var uid types.UID
		if live != nil {
			uid = live.UID
		}
		applied, err := c.patch(ctx, namespace, uid)
		if live != nil && isUIDMismatch(err) {
			continue // it was deleted and recreated meanwhile
		}
		if err != nil {
			return appliedNamespace{}, err
		}
		c.namespaces.remember(applied)
		return appliedNamespace{
			fresh:         live == nil,
			appliedObject: appliedObject{live: applied, changed: changed(live, applied)},
		}, nil
	}
	return appliedNamespace{}, failure.New(
		failure.Conflict, &namespace.Reference, "%s is deleted and recreated repeatedly; the dispatcher retries",
		failure.Describe(namespace.Reference),
	)
}

// checkOwner fails if the object exists and has another owner, or is being deleted.
func (c *Cluster) checkOwner(
	w desired.Workspace, reference desired.Reference, live *metav1.PartialObjectMetadata,
) error {
	switch {
	case live == nil:
		return nil
	case !c.owner(w).Owns(live.Labels):
		return failure.New(
			failure.Conflict, &reference,
			"%s exists and does not belong to this workspace, so it is not touched; "+
				"delete or rename it, or give the workspace another name",
			failure.Describe(reference),
		)
	case live.DeletionTimestamp != nil && reference.Kind == desired.KindNamespace:
		return failure.New(
			failure.NamespaceTerminating, &reference,
			"%s is being deleted; the dispatcher creates it again when the deletion is complete", failure.Describe(reference),
		)
	case live.DeletionTimestamp != nil:
		return failure.New(
			failure.ObjectTerminating, &reference,
			"%s is being deleted; the dispatcher creates it again when the deletion is complete", failure.Describe(reference),
		)
	default:
		return nil
	}
}

// applyObject applies one object. It does not read the object first in a new namespace or if its UID is cached. A
// volume keeps its StorageClass.
func (c *Cluster) applyObject(
	ctx context.Context, w desired.Workspace, object desired.Object, options applyOptions,
) (appliedObject, error) {
	for range maxConflicts {
		uid := c.uid(object.Reference)
		var before *metav1.PartialObjectMetadata
		if options.repair || uid == "" && !options.fresh {
			var err error
			if before, uid, err = c.inspect(ctx, w, object.Reference, uid); err != nil {
				return appliedObject{}, err
			}
		}
		applied, err := c.patch(ctx, object, uid)
		if isUIDMismatch(err) && uid != "" {
			c.forget(object.Reference) // it was deleted, and perhaps recreated
			options.fresh = false
			continue
		}
		if object.Kind == kindVolumeClaim && apierrors.IsInvalid(err) {
			claim, differs, readErr := c.withStoredClass(ctx, object)
			if readErr != nil {
				return appliedObject{}, readErr
			}
			if differs {
				object = claim
				continue
			}
		}
		if err != nil {
			return appliedObject{}, err
		}
		c.remember(object.Reference, applied.UID)
		// A server-side apply succeeds on an object that is being deleted, and the change is then lost.
		return appliedObject{live: applied, changed: changed(before, applied)}, c.checkOwner(w, object.Reference, applied)
	}
	return appliedObject{}, failure.New(
		failure.Conflict, &object.Reference, "%s is deleted and recreated repeatedly; the dispatcher retries",
		failure.Describe(object.Reference),
	)
}

// inspect returns an object and its UID, or an empty UID if it does not exist. An object with the cached UID
// belongs to the workspace even without its labels.
func (c *Cluster) inspect(
	ctx context.Context, w desired.Workspace, reference desired.Reference, known types.UID,
) (*metav1.PartialObjectMetadata, types.UID, error) {
	live, err := c.getMetadata(ctx, reference)
	if err != nil || live == nil {
		return nil, "", err
	}
	if live.UID != known || live.DeletionTimestamp != nil {
		if err := c.checkOwner(w, reference, live); err != nil {
			return nil, "", err
		}
	}
	return live, live.UID, nil
}

// isUIDMismatch reports whether the object with the required UID does not exist. The API server answers Conflict
// when there is no object of that name, and Invalid metadata.uid when it has another UID.
func isUIDMismatch(err error) bool {
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

// applySecret applies the Secret unless it exists with the same digest and unmodified data.
func (c *Cluster) applySecret(
	ctx context.Context, w desired.Workspace, secret events.SecretReference, secrets SecretSource, options applyOptions,
) (appliedObject, error) {
	reference := desired.SecretReference(w.Namespace, secret.Name)
	if !options.fresh {
		live, uid, err := c.inspect(ctx, w, reference, c.uid(reference))
		if err != nil {
			return appliedObject{}, err
		}
		if live == nil {
			c.forget(reference)
		} else {
			c.remember(reference, uid)
			if live.Annotations[desired.AnnotationSecretDigest] == secret.Digest && c.owner(w).Owns(live.Labels) &&
				isUnmodified(live) {
				return appliedObject{live: live}, nil
			}
		}
	}
	values, err := secrets.Values(ctx, w.ID, secret)
	if err != nil {
		return appliedObject{}, err
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
	// Kubelets use no other type for image pulls. Other Secrets of workspaces cannot have this key.
	kind := corev1.SecretTypeOpaque
	if _, pulls := data[corev1.DockerConfigJsonKey]; pulls {
		kind = corev1.SecretTypeDockerConfigJson
	}
	return c.applyObject(ctx, w, desired.Object{Reference: reference, Manifest: map[string]any{
		"apiVersion": reference.ApiVersion, "kind": reference.Kind, "type": string(kind), "data": data,
		"metadata": map[string]any{
			"name": reference.Name, "namespace": reference.Namespace, "labels": labels,
			"annotations": map[string]any{
				desired.AnnotationSecretDigest: secret.Digest,
				annotationSecretKeys:           strings.Join(slices.Sorted(maps.Keys(data)), ","),
			},
		},
	}}, options)
}

// forgetNamespace drops the cached namespace if err can mean that it is missing or being deleted. It returns err.
func (c *Cluster) forgetNamespace(w desired.Workspace, err error) error {
	var status apierrors.APIStatus
	if errors.As(err, &status) && (apierrors.IsNotFound(err) || apierrors.IsForbidden(err)) {
		c.namespaces.forget(w.Namespace)
	}
	return err
}

// prune deletes objects of the workspace. It returns the deleted objects, the objects that still exist, and the
// object at which it failed.
func (c *Cluster) prune(
	ctx context.Context, w desired.Workspace, objects []desired.Reference,
) ([]desired.Reference, []desired.Reference, desired.Reference, error) {
	var pruned, left []desired.Reference
	for _, reference := range objects {
		if _, known := desired.LookupKind(reference.ApiVersion, reference.Kind); !known {
			left = append(left, reference) // applied by a newer dispatcher; it is deleted with the namespace
			continue
		}
		live, err := c.getMetadata(ctx, reference)
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
		current, err := c.getMetadata(ctx, reference)
		if err != nil {
			return nil, nil, reference, err
		}
		if current != nil && current.UID == live.UID {
			left = append(left, reference)
		}
	}
	return pruned, left, desired.Reference{}, nil
}

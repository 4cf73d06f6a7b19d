package kube

import (
	"context"
	"encoding/base64"
	"errors"
	"maps"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

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
	// DeploymentUID and DeploymentGeneration are those of the workspace's Deployment as it was
	// left; empty when there is none.
	DeploymentUID        types.UID
	DeploymentGeneration int64
	// Repaired is what Repair found changed or missing.
	Repaired []desired.Reference
}

// Apply brings the cluster to the workspace's objects. The error is always a [failure.Failure].
func (c *Cluster) Apply(ctx context.Context, w desired.Workspace, secrets Secrets) (Applied, error) {
	return c.explained(ctx, w, secrets, pass{})
}

// Repair is Apply of a revision that was applied before. It looks at every object, whatever is
// remembered of it, and tells which ones somebody else has changed.
func (c *Cluster) Repair(ctx context.Context, w desired.Workspace, secrets Secrets) (Applied, error) {
	return c.explained(ctx, w, secrets, pass{repair: true})
}

func (c *Cluster) explained(ctx context.Context, w desired.Workspace, secrets Secrets, p pass) (Applied, error) {
	applied, at, err := c.apply(ctx, w, secrets, p)
	if err != nil {
		return Applied{}, failure.Explain(err, at)
	}
	return applied, nil
}

// pass is how objects are applied.
type pass struct {
	fresh  bool // the namespace was just made: nothing is in it
	repair bool // every object is looked at, to find what somebody else has changed
}

// touched is an object after its application.
type touched struct {
	live *metav1.PartialObjectMetadata
	// changed is that it was not as it had been left; told in a repair only.
	changed bool
}

// apply also returns the object that it was at.
func (c *Cluster) apply(
	ctx context.Context, w desired.Workspace, secrets Secrets, p pass,
) (Applied, desired.Reference, error) {
	wanted := w.References()
	held, err := c.claim(ctx, w, wanted)
	if err != nil {
		return Applied{}, desired.Reference{}, err
	}
	out := Applied{Objects: wanted}
	note := func(reference desired.Reference, t touched) {
		if p.repair && t.changed {
			out.Repaired = append(out.Repaired, reference)
		}
		if reference.Kind == desired.KindDeployment && reference.Name == w.Name {
			out.DeploymentUID, out.DeploymentGeneration = t.live.UID, t.live.Generation
		}
	}
	namespace := c.policy.Namespace(w)
	made, err := c.applyNamespace(ctx, w, namespace)
	if err != nil {
		return Applied{}, namespace.Reference, err
	}
	if made.live != nil {
		note(namespace.Reference, made.touched)
	}
	p.fresh = made.fresh
	for _, secret := range w.Secrets {
		t, err := c.applySecret(ctx, w, secret, secrets, p)
		if err != nil {
			return Applied{}, desired.SecretReference(w.Namespace, secret.Name), c.gone(w, err)
		}
		note(desired.SecretReference(w.Namespace, secret.Name), t)
	}
	for _, object := range w.Objects {
		if object.Reference == namespace.Reference {
			continue
		}
		t, err := c.applyObject(ctx, w, object, p)
		if err != nil {
			return Applied{}, object.Reference, c.gone(w, err)
		}
		note(object.Reference, t)
	}
	pruned, left, at, err := c.prune(ctx, w, desired.Prune(held.objects, wanted))
	if err != nil {
		return Applied{}, at, err
	}
	if err := c.stays(ctx, w, namespace.Reference); err != nil {
		return Applied{}, namespace.Reference, c.gone(w, err)
	}
	settled := held
	settled.objects = desired.Union(wanted, left)
	if !settled.equal(held) {
		if _, err := c.inventories.put(ctx, w.ID, settled); err != nil {
			return Applied{}, desired.Reference{}, err
		}
	}
	out.Pruned = pruned
	return out, desired.Reference{}, nil
}

// stays refuses to call applied what is in a namespace that is on its way out: its objects can
// still be written to, until each is deleted in turn.
func (c *Cluster) stays(ctx context.Context, w desired.Workspace, namespace desired.Reference) error {
	live, err := c.look(ctx, namespace)
	if err != nil {
		return err
	}
	if live != nil {
		if err = c.own(w, namespace, live); err == nil {
			return nil
		}
	} else {
		err = failure.New(
			failure.NamespaceMissing, &namespace, "%s was deleted while the workspace was applied; it is made again",
			failure.Describe(namespace),
		)
	}
	c.namespaces.forget(w.Namespace)
	return err
}

// madeNamespace is a namespace after its application; not looked at when it is known to be as it
// should.
type madeNamespace struct {
	touched

	fresh bool // it was made, and is empty
}

func (c *Cluster) applyNamespace(
	ctx context.Context, w desired.Workspace, namespace desired.Object,
) (madeNamespace, error) {
	if c.namespaces.current(namespace) {
		return madeNamespace{}, nil
	}
	for range maxClaims {
		live, err := c.look(ctx, namespace.Reference)
		if err != nil {
			return madeNamespace{}, err
		}
		if err := c.own(w, namespace.Reference, live); err != nil {
			return madeNamespace{}, err
		}
		var uid types.UID
		if live != nil {
			uid = live.UID
		}
		applied, err := c.patch(ctx, namespace, uid)
		if live != nil && isAnother(err) {
			continue // it was made anew in between
		}
		if err != nil {
			return madeNamespace{}, err
		}
		c.namespaces.remember(applied)
		return madeNamespace{fresh: live == nil, touched: touched{live: applied, changed: changed(live, applied)}}, nil
	}
	return madeNamespace{}, failure.New(
		failure.Conflict, &namespace.Reference, "%s keeps changing hands; it is tried again",
		failure.Describe(namespace.Reference),
	)
}

// own refuses an object that is there and is not the workspace's, or is on its way out.
func (c *Cluster) own(w desired.Workspace, reference desired.Reference, live *metav1.PartialObjectMetadata) error {
	switch {
	case live == nil:
		return nil
	case !c.owner(w).Owns(live.Labels):
		return failure.New(
			failure.Conflict, &reference,
			"%s exists and does not belong to this workspace, so it is not touched; delete or rename it, or give the workspace another name",
			failure.Describe(reference),
		)
	case live.DeletionTimestamp != nil && reference.Kind == desired.KindNamespace:
		return failure.New(
			failure.NamespaceTerminating, &reference, "%s is being deleted; it is made again when that is finished",
			failure.Describe(reference),
		)
	case live.DeletionTimestamp != nil:
		return failure.New(
			failure.ObjectTerminating, &reference, "%s is being deleted; it is made again when that is finished",
			failure.Describe(reference),
		)
	default:
		return nil
	}
}

// applyObject applies one object. In a fresh namespace it need not look first, nor where it has
// seen the object before.
func (c *Cluster) applyObject(
	ctx context.Context, w desired.Workspace, object desired.Object, p pass,
) (touched, error) {
	for range maxClaims {
		uid := c.uid(object.Reference)
		var before *metav1.PartialObjectMetadata
		if p.repair || uid == "" && !p.fresh {
			var err error
			if before, uid, err = c.inspect(ctx, w, object.Reference, uid); err != nil {
				return touched{}, err
			}
		}
		applied, err := c.patch(ctx, object, uid)
		if isAnother(err) && uid != "" {
			c.forget(object.Reference) // somebody has deleted it, and perhaps made another
			p.fresh = false
			continue
		}
		if err != nil {
			return touched{}, err
		}
		c.remember(object.Reference, applied.UID)
		// A server-side apply succeeds on what is being deleted, and is then lost.
		return touched{live: applied, changed: changed(before, applied)}, c.own(w, object.Reference, applied)
	}
	return touched{}, failure.New(
		failure.Conflict, &object.Reference, "%s keeps changing hands; it is tried again",
		failure.Describe(object.Reference),
	)
}

// inspect returns an object and its UID, empty when it is not there. One that is known by its UID
// is the workspace's own even if somebody took its labels.
func (c *Cluster) inspect(
	ctx context.Context, w desired.Workspace, reference desired.Reference, known types.UID,
) (*metav1.PartialObjectMetadata, types.UID, error) {
	live, err := c.look(ctx, reference)
	if err != nil || live == nil {
		return nil, "", err
	}
	if live.UID != known || live.DeletionTimestamp != nil {
		if err := c.own(w, reference, live); err != nil {
			return nil, "", err
		}
	}
	return live, live.UID, nil
}

// isAnother tells that there is no object of the UID that was insisted on: a conflict when there is
// none of its name at all, an invalid metadata.uid when it is another one's.
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

// applySecret makes the Secret unless there is one of the same digest whose data nobody else has
// touched.
func (c *Cluster) applySecret(
	ctx context.Context, w desired.Workspace, secret events.SecretReference, secrets Secrets, p pass,
) (touched, error) {
	reference := desired.SecretReference(w.Namespace, secret.Name)
	if !p.fresh {
		live, uid, err := c.inspect(ctx, w, reference, c.uid(reference))
		if err != nil {
			return touched{}, err
		}
		if live == nil {
			c.forget(reference)
		} else {
			c.remember(reference, uid)
			if live.Annotations[desired.AnnotationSecretDigest] == secret.Digest && c.owner(w).Owns(live.Labels) &&
				intact(live) {
				return touched{live: live}, nil
			}
		}
	}
	values, err := secrets.Values(ctx, w.ID, secret)
	if err != nil {
		return touched{}, err
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
			"annotations": map[string]any{
				desired.AnnotationSecretDigest: secret.Digest,
				annotationSecretKeys:           strings.Join(slices.Sorted(maps.Keys(data)), ","),
			},
		},
	}}, p)
}

// gone takes note of a namespace that turns out to be missing or on its way out, whatever was
// remembered of it.
func (c *Cluster) gone(w desired.Workspace, err error) error {
	var status apierrors.APIStatus
	if errors.As(err, &status) && (apierrors.IsNotFound(err) || apierrors.IsForbidden(err)) {
		c.namespaces.forget(w.Namespace)
	}
	return err
}

// prune deletes objects that belong to the workspace. It returns those whose deletion it has asked
// for, those that are not gone yet, and the one that it failed at.
func (c *Cluster) prune(
	ctx context.Context, w desired.Workspace, objects []desired.Reference,
) ([]desired.Reference, []desired.Reference, desired.Reference, error) {
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

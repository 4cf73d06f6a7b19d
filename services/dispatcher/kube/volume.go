package kube

import (
	"context"
	"fmt"
	"maps"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/services/dispatcher/desired"
	"lockstep.internal/services/dispatcher/failure"
)

const kindVolumeClaim = "PersistentVolumeClaim"

// withStoredClass returns the claim with the StorageClass that it has in the cluster, which cannot change. It returns
// false if that is the class of the manifest already, or if the claim does not exist.
func (c *Cluster) withStoredClass(ctx context.Context, claim desired.Object) (desired.Object, bool, error) {
	const field = "storageClassName"
	live, err := c.client.core.PersistentVolumeClaims(claim.Namespace).Get(ctx, claim.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return claim, false, nil
	case err != nil:
		return claim, false, fmt.Errorf("get %s: %w", failure.Describe(claim.Reference), err)
	}
	var stored any
	if live.Spec.StorageClassName != nil {
		stored = *live.Spec.StorageClassName
	}
	original, _ := claim.Manifest["spec"].(map[string]any)
	if original[field] == stored {
		return claim, false, nil
	}
	spec := maps.Clone(original)
	delete(spec, field)
	if stored != nil {
		spec[field] = stored
	}
	claim.Manifest = maps.Clone(claim.Manifest)
	claim.Manifest["spec"] = spec
	return claim, true, nil
}

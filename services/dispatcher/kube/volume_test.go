package kube_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/services/dispatcher/desired"
	"lockstep.internal/services/dispatcher/failure"
)

// TestApplyKeepsTheStorageClassOfAVolume applies volumes that exist with another class than the desired one, as after
// the adoption of a workspace.
func TestApplyKeepsTheStorageClassOfAVolume(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	ofClass := func(class, size string) desired.Object {
		v := volume("data", size)
		if class != "" {
			v.Manifest["spec"].(map[string]any)["storageClassName"] = class
		}
		return v
	}
	for _, created := range []string{"slow", ""} {
		cluster, w := b.leader(t, admin(t)), b.workspace()
		_, err := cluster.Apply(testContext(t), b.with(w, 1, ofClass(created, "2Gi")), b.secrets)
		require.NoError(t, err)
		claims := b.admin.CoreV1().PersistentVolumeClaims(w.Namespace)
		before, err := claims.Get(testContext(t), "data", metav1.GetOptions{})
		require.NoError(t, err)
		for n, class := range []string{"fast", "", "slow", "fast"} {
			if n == 2 {
				cluster = b.leader(t, admin(t)) // the claim is not cached
			}
			next := b.with(w, int64(n+2), ofClass(class, "2Gi"), configMap("files", class))
			_, err := cluster.Apply(testContext(t), next, b.secrets)
			require.NoError(t, err, "%q instead of %q", class, created)
			after, err := claims.Get(testContext(t), "data", metav1.GetOptions{})
			require.NoError(t, err)
			require.Equal(t, before.UID, after.UID)
			require.Equal(t, before.Spec.StorageClassName, after.Spec.StorageClassName)
		}
		_, err = cluster.Apply(testContext(t), b.with(w, 9, ofClass("fast", "1Gi")), b.secrets)
		require.Equal(t, failure.Immutable, reason(t, err), "a volume cannot shrink")
	}
}

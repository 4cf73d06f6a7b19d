package kube

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"lockstep.internal/services/dispatcher/desired"
)

func TestRemainingObjectsAreExplained(t *testing.T) {
	t.Parallel()
	object := func(kind, name string, finalizers ...string) remainingObject {
		return remainingObject{desired.Reference{Kind: kind, Namespace: "ws-7-ide", Name: name}, finalizers}
	}
	condition := func(kind corev1.NamespaceConditionType, message string) corev1.NamespaceCondition {
		return corev1.NamespaceCondition{Type: kind, Status: corev1.ConditionTrue, Message: message}
	}
	namespace := remainingObject{Reference: desired.NamespaceReference("ws-7-ide")}
	workload := object("Deployment", "ide", "foregroundDeletion")
	volume := object("PersistentVolumeClaim", "ide-data", "kubernetes.io/pvc-protection")
	content := condition(corev1.NamespaceContentRemaining, "Some resources are remaining: pods. has 1 resource instances")
	own := condition(corev1.NamespaceFinalizersRemaining,
		"Some content in the namespace has finalizers remaining: kubernetes.io/pvc-protection in 1 resource instances")
	for name, test := range map[string]struct {
		objects         []remainingObject
		conditions      []corev1.NamespaceCondition
		reason, message string
	}{
		"pods end": {
			[]remainingObject{workload, volume, namespace},
			nil, ReasonObjectsRemain,
			"Deployment ws-7-ide/ide, PersistentVolumeClaim ws-7-ide/ide-data, Namespace ws-7-ide are still to be deleted",
		},
		"many objects": {
			[]remainingObject{workload, workload, workload, namespace},
			nil, ReasonObjectsRemain,
			"Deployment ws-7-ide/ide, Deployment ws-7-ide/ide, Deployment ws-7-ide/ide and 1 more are still to be deleted",
		},
		"the namespace is deleted": {
			[]remainingObject{workload, volume, namespace},
			[]corev1.NamespaceCondition{content, own},
			ReasonObjectsRemain,
			"Kubernetes is deleting the content of the namespace: " +
				"Some resources are remaining: pods. has 1 resource instances",
		},
		"Kubernetes removes its own finalizers": {
			[]remainingObject{namespace},
			[]corev1.NamespaceCondition{content, condition(corev1.NamespaceFinalizersRemaining, "Some content in the "+
				"namespace has finalizers remaining: batch.kubernetes.io/job-tracking in 1 resource instances, "+
				"foregroundDeletion in 1 resource instances, resource.kubernetes.io/delete-protection in 1 resource instances")},
			ReasonObjectsRemain,
			"Kubernetes is deleting the content of the namespace: " +
				"Some resources are remaining: pods. has 1 resource instances",
		},
		"a condition that is not true": {
			[]remainingObject{namespace},
			[]corev1.NamespaceCondition{{Type: content.Type, Status: corev1.ConditionFalse, Message: "none"}},
			ReasonObjectsRemain, "Namespace ws-7-ide is still to be deleted",
		},
		"another pod uses the volume": {
			[]remainingObject{volume, namespace},
			[]corev1.NamespaceCondition{content, own},
			ReasonVolumeInUse,
			"PersistentVolumeClaim ws-7-ide/ide-data is still used by a pod",
		},
		"a foreign finalizer of an object of the workspace": {
			[]remainingObject{volume, object("ConfigMap", "files", "foregroundDeletion", "example.test/stuck"), namespace},
			[]corev1.NamespaceCondition{content},
			ReasonFinalizersRemain,
			"ConfigMap ws-7-ide/files waits for its finalizer example.test/stuck, which another program must remove",
		},
		"a foreign finalizer of another object": {
			[]remainingObject{namespace},
			[]corev1.NamespaceCondition{content, condition(corev1.NamespaceFinalizersRemaining, "Some content in the "+
				"namespace has finalizers remaining: example.test/a in 2 resource instances")},
			ReasonFinalizersRemain,
			"other programs must remove their finalizers from objects in the namespace: Some content in the " +
				"namespace has finalizers remaining: example.test/a in 2 resource instances",
		},
		"the namespace cannot be deleted": {
			[]remainingObject{object("ConfigMap", "files", "example.test/stuck"), namespace},
			[]corev1.NamespaceCondition{content, condition(corev1.NamespaceDeletionDiscoveryFailure, "no metrics.k8s.io")},
			ReasonNamespaceDeletionFailed, "Kubernetes cannot delete the namespace: no metrics.k8s.io",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := newRemaining(test.objects, test.conditions)
			require.Equal(t, test.reason, got.Reason)
			require.Equal(t, test.message, got.Message)
			require.Len(t, got.Objects, len(test.objects))
			require.True(t, got.Equal(newRemaining(test.objects, test.conditions)))
			require.False(t, got.Equal(Remaining{}))
		})
	}
}

package kube

import (
	"fmt"
	"slices"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/services/dispatcher/desired"
	"lockstep.internal/services/dispatcher/failure"
)

// Reasons why objects remain while a workspace is terminated. They are published.
const (
	// ReasonObjectsRemain: they need time, such as pods that end.
	ReasonObjectsRemain = "ObjectsRemain"
	// ReasonFinalizersRemain: another program must remove its finalizers.
	ReasonFinalizersRemain = "FinalizersRemain"
	// ReasonVolumeInUse: a pod that does not belong to the workspace's Deployment uses its volume.
	ReasonVolumeInUse = "VolumeInUse"
	// ReasonNamespaceDeletionFailed: Kubernetes cannot delete the content of the namespace.
	ReasonNamespaceDeletionFailed = "NamespaceDeletionFailed"
)

// Remaining are the objects of a workspace that still exist while it is terminated.
type Remaining struct {
	Objects []desired.Reference
	// Reason and Message explain why they exist. Message is a sentence for the user.
	Reason, Message string
}

// Equal reports whether both are the same.
func (r Remaining) Equal(other Remaining) bool {
	return r.Reason == other.Reason && r.Message == other.Message && slices.Equal(r.Objects, other.Objects)
}

// remainingObject is an object that still exists.
type remainingObject struct {
	desired.Reference

	finalizers []string
}

// volumeProtection is the finalizer of volumes that Kubernetes removes when no pod uses the volume.
const volumeProtection = "kubernetes.io/pvc-protection"

// isForeign reports whether a finalizer is not one that Kubernetes itself removes.
func isForeign(finalizer string) bool {
	switch finalizer {
	case volumeProtection, batchv1.JobTrackingFinalizer, resourcev1.Finalizer,
		metav1.FinalizerDeleteDependents, metav1.FinalizerOrphanDependents:
		return false
	default:
		return true
	}
}

// newRemaining explains why objects remain. conditions are those of the workspace's namespace, if it is being deleted.
func newRemaining(objects []remainingObject, conditions []corev1.NamespaceCondition) Remaining {
	var r Remaining
	for _, o := range objects {
		r.Objects = append(r.Objects, o.Reference)
	}
	isDeployment := func(o remainingObject) bool { return o.Kind == desired.KindDeployment }
	foreign := slices.IndexFunc(objects, func(o remainingObject) bool {
		return slices.ContainsFunc(o.finalizers, isForeign)
	})
	volume := slices.IndexFunc(objects, func(o remainingObject) bool {
		return o.Kind == kindVolumeClaim && slices.Contains(o.finalizers, volumeProtection)
	})
	failed := conditionMessage(conditions, corev1.NamespaceDeletionDiscoveryFailure,
		corev1.NamespaceDeletionGVParsingFailure, corev1.NamespaceDeletionContentFailure)
	finalizers := conditionMessage(conditions, corev1.NamespaceFinalizersRemaining)
	content := conditionMessage(conditions, corev1.NamespaceContentRemaining)
	switch {
	case failed != "":
		r.Reason, r.Message = ReasonNamespaceDeletionFailed, "Kubernetes cannot delete the namespace: "+failed
	case foreign >= 0:
		o := objects[foreign]
		at := slices.IndexFunc(o.finalizers, isForeign)
		r.Reason = ReasonFinalizersRemain
		r.Message = fmt.Sprintf("%s waits for its finalizer %s, which another program must remove",
			failure.Describe(o.Reference), o.finalizers[at])
	case listsForeign(finalizers):
		r.Reason = ReasonFinalizersRemain
		r.Message = "other programs must remove their finalizers from objects in the namespace: " + finalizers
	case volume >= 0 && !slices.ContainsFunc(objects, isDeployment):
		r.Reason, r.Message = ReasonVolumeInUse, failure.Describe(objects[volume].Reference)+" is still used by a pod"
	case content != "":
		r.Reason, r.Message = ReasonObjectsRemain, "Kubernetes is deleting the content of the namespace: "+content
	default:
		r.Reason, r.Message = ReasonObjectsRemain, describe(r.Objects)+" still to be deleted"
	}
	return r
}

// conditionMessage returns the message of the first condition of one of the kinds that is true.
func conditionMessage(conditions []corev1.NamespaceCondition, kinds ...corev1.NamespaceConditionType) string {
	for _, c := range conditions {
		if c.Status == corev1.ConditionTrue && slices.Contains(kinds, c.Type) {
			return c.Message
		}
	}
	return ""
}

// listsForeign reports whether the message of the condition NamespaceFinalizersRemaining lists a foreign finalizer:
// "Some content in the namespace has finalizers remaining: example.test/stuck in 1 resource instances, …".
func listsForeign(message string) bool {
	_, list, _ := strings.Cut(message, ": ")
	for entry := range strings.SplitSeq(list, ", ") {
		if finalizer, _, _ := strings.Cut(entry, " "); finalizer != "" && isForeign(finalizer) {
			return true
		}
	}
	return false
}

// describe names the first objects, and counts the others.
func describe(objects []desired.Reference) string {
	const named = 3
	names := make([]string, 0, named)
	for _, o := range objects[:min(named, len(objects))] {
		names = append(names, failure.Describe(o))
	}
	text := strings.Join(names, ", ")
	if more := len(objects) - named; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	if len(objects) == 1 {
		return text + " is"
	}
	return text + " are"
}

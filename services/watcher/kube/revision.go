package kube

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	annotationRevision        = "deployment.kubernetes.io/revision"
	annotationRevisionHistory = "deployment.kubernetes.io/revision-history"
	// What StatefulSets and DaemonSets label their ControllerRevisions with.
	labelControllerHash     = "controller.kubernetes.io/hash"
	labelControllerRevision = appsv1.ControllerRevisionHashLabelKey
)

// Revision is what is kept of a ReplicaSet or ControllerRevision. It is not changed once made.
type Revision struct {
	// ObjectMeta has identity, times, and the annotations that are kept, without those that are fields here.
	metav1.ObjectMeta

	Kind  Kind
	Owner Owner
	// Number is the revision, 0 where there is none that can be read.
	Number int64
	// History are revisions that a ReplicaSet bore before.
	History []int64
	// Hash of the pod template, or of the revision.
	Hash string
}

// Owner is the workload that controls a revision; zero where what controls it is none, or nothing does.
type Owner struct {
	Kind      Kind
	Name, UID string
}

// Same tells whether two versions of a revision say the same. Most versions of a ReplicaSet do: they count its pods.
func (r *Revision) Same(other *Revision) bool {
	return r.UID == other.UID && r.Owner == other.Owner && r.Number == other.Number && r.Hash == other.Hash && slices.Equal(r.History, other.History) &&
		r.DeletionTimestamp.Equal(other.DeletionTimestamp) && maps.Equal(r.Annotations, other.Annotations)
}

func (c compactor) controllerRevision(o *appsv1.ControllerRevision) *Revision {
	r := c.revision(ControllerRevision, &o.ObjectMeta)
	r.Number = o.Revision
	if r.Hash = o.Labels[labelControllerHash]; r.Hash == "" {
		r.Hash = o.Labels[labelControllerRevision]
	}
	return r
}

func (c compactor) replicaSet(m *metav1.ObjectMeta) *Revision {
	r := c.revision(ReplicaSet, m)
	r.Number, _ = parseRevision(m.Annotations[annotationRevision])
	for number := range strings.SplitSeq(m.Annotations[annotationRevisionHistory], ",") {
		if n, ok := parseRevision(number); ok {
			r.History = append(r.History, n)
		}
	}
	r.Hash = m.Labels[appsv1.DefaultDeploymentUniqueLabelKey]
	return r
}

func (c compactor) revision(kind Kind, m *metav1.ObjectMeta) *Revision {
	r := &Revision{Kind: kind, ObjectMeta: identity(m), Owner: ownerOf(m)}
	r.Annotations = kept(m.Annotations, c.annotations)
	maps.DeleteFunc(r.Annotations, func(name, _ string) bool { return strings.HasPrefix(name, deploymentPrefix) })
	if len(r.Annotations) == 0 {
		r.Annotations = nil
	}
	return r
}

func ownerOf(m *metav1.ObjectMeta) Owner {
	controller := metav1.GetControllerOfNoCopy(m)
	if controller == nil || !strings.HasPrefix(controller.APIVersion, appsv1.GroupName+"/") {
		return Owner{}
	}
	switch kind := Kind(strings.ToLower(controller.Kind)); kind {
	case Deployment, StatefulSet, DaemonSet:
		return Owner{Kind: kind, Name: controller.Name, UID: string(controller.UID)}
	case ReplicaSet, ControllerRevision, Pod:
		return Owner{}
	default:
		return Owner{}
	}
}

func parseRevision(text string) (int64, bool) {
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	return max(n, 0), err == nil
}

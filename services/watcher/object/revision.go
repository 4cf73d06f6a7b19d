package object

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
	// Labels of ControllerRevisions: the first for StatefulSets, the second for both.
	labelControllerHash     = "controller.kubernetes.io/hash"
	labelControllerRevision = appsv1.ControllerRevisionHashLabelKey
)

// Revision is a ReplicaSet or ControllerRevision in compact form. It is immutable.
type Revision struct {
	// ObjectMeta has identity, times and the kept annotations except those that are fields here.
	metav1.ObjectMeta

	Kind  Kind
	Owner Owner
	// Number of the revision, 0 for none.
	Number int64
	// History lists the earlier numbers of a ReplicaSet.
	History []int64
	// Hash of the pod template, or of the revision.
	Hash string
}

// Owner is the workload that controls a revision, zero for none.
type Owner struct {
	Kind      Kind
	Name, UID string
}

// Same reports whether two versions of a revision have equal content. Most versions of a ReplicaSet
// do: they differ in the number of its pods.
func (r *Revision) Same(other *Revision) bool {
	return r.UID == other.UID && r.Owner == other.Owner && r.Number == other.Number && r.Hash == other.Hash &&
		slices.Equal(r.History, other.History) && r.DeletionTimestamp.Equal(other.DeletionTimestamp) &&
		maps.Equal(r.Annotations, other.Annotations)
}

func (c Compactor) controllerRevision(o *appsv1.ControllerRevision) *Revision {
	r := c.revision(ControllerRevision, &o.ObjectMeta)
	r.Number = o.Revision
	if r.Hash = o.Labels[labelControllerHash]; r.Hash == "" {
		r.Hash = o.Labels[labelControllerRevision]
	}
	return r
}

func (c Compactor) replicaSet(m *metav1.ObjectMeta) *Revision {
	r := c.revision(ReplicaSet, m)
	r.ofReplicaSet(m)
	return r
}

// RevisionOf returns a ReplicaSet of a workspace as a revision, with all of its metadata. Its owner has
// no UID if no Deployment controls it.
func RevisionOf(m *metav1.PartialObjectMetadata) *Revision {
	r := &Revision{Kind: ReplicaSet, ObjectMeta: m.ObjectMeta}
	r.Owner = Owner{Kind: Deployment, Name: DeploymentOf(ReplicaSet, m)}
	if owner := ownerOf(&m.ObjectMeta); owner.Kind == Deployment {
		r.Owner.UID = owner.UID
	}
	r.ofReplicaSet(&m.ObjectMeta)
	return r
}

func (r *Revision) ofReplicaSet(m *metav1.ObjectMeta) {
	r.Number, _ = parseRevision(m.Annotations[annotationRevision])
	for number := range strings.SplitSeq(m.Annotations[annotationRevisionHistory], ",") {
		if n, ok := parseRevision(number); ok {
			r.History = append(r.History, n)
		}
	}
	r.Hash = m.Labels[appsv1.DefaultDeploymentUniqueLabelKey]
}

func (c Compactor) revision(kind Kind, m *metav1.ObjectMeta) *Revision {
	r := &Revision{Kind: kind, ObjectMeta: identity(m), Owner: ownerOf(m)}
	r.Annotations = withPrefixes(m.Annotations, c.annotations)
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

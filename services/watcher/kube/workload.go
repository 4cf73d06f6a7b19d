package kube

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	annotationRestartedAt        = "kubectl.kubernetes.io/restartedAt"
	annotationTemplateGeneration = appsv1.DeprecatedTemplateGeneration

	// digestBytes is how much of its SHA-256 the digest of a template has.
	digestBytes = 16
	// noDeadline is what a Deployment says that is never too late.
	noDeadline = math.MaxInt32
)

// Workload is what is kept of a Deployment, StatefulSet or DaemonSet. It is not changed once made.
type Workload struct {
	// ObjectMeta has the annotations that are kept, and nothing else but identity, labels, generation and times.
	metav1.ObjectMeta

	Kind Kind
	// Followed says whether it is; of one that is not, only its identity and version are kept.
	Followed bool

	// Replicas that are wanted, nil where the object does not say.
	Replicas         *int32
	Paused           bool
	Strategy         string
	Partition        int32
	ProgressDeadline *int32 // in seconds, nil for none
	MinReadySeconds  int32
	Template         Template

	// TemplateGeneration of a DaemonSet.
	TemplateGeneration string
	Status             WorkloadStatus
}

// Template is what is kept of a pod template.
type Template struct {
	// Digest of all of it but the time of a restart.
	Digest string
	Images []Image
	// RestartedAt is kubectl's annotation as it stands there.
	RestartedAt string
	// Changed is when the template was last written as far as its field managers tell, and By which of them that was.
	Changed             time.Time
	By                  string
	Labels, Annotations map[string]string
}

// Image of a container.
type Image struct{ Container, Image string }

// WorkloadStatus is the status of any kind of workload. Counts are zero where a kind does not have them.
type WorkloadStatus struct {
	// Written says that some controller has said something.
	Written                                                   bool
	ObservedGeneration                                        int64
	Replicas, Updated, Ready, Available, Unavailable, Desired int32
	Terminating                                               *int32
	// CurrentRevision and UpdateRevision of a StatefulSet.
	CurrentRevision, UpdateRevision string
	Conditions                      []Condition
}

// Condition of a workload.
type Condition struct {
	Type, Status, Reason, Message string
	LastTransitioned, LastUpdated metav1.Time
}

// compactor makes workloads and revisions of what the API server returns.
type compactor struct {
	selects     func(labels map[string]string) bool
	annotations []string
}

// compact may be called again on its own result; what it does not know passes unchanged.
func (c compactor) compact(object any) (any, error) {
	switch o := object.(type) {
	case *appsv1.Deployment:
		w, err := c.workload(Deployment, &o.ObjectMeta, &o.Spec.Template)
		if w.Followed {
			w.ofDeployment(o)
		}
		return w, err
	case *appsv1.StatefulSet:
		w, err := c.workload(StatefulSet, &o.ObjectMeta, &o.Spec.Template)
		if w.Followed {
			w.ofStatefulSet(o)
		}
		return w, err
	case *appsv1.DaemonSet:
		w, err := c.workload(DaemonSet, &o.ObjectMeta, &o.Spec.Template)
		if w.Followed {
			w.ofDaemonSet(o)
		}
		return w, err
	case *appsv1.ControllerRevision:
		return c.controllerRevision(o), nil
	case *metav1.PartialObjectMetadata:
		return c.replicaSet(&o.ObjectMeta), nil
	default:
		return object, nil
	}
}

func (c compactor) workload(kind Kind, m *metav1.ObjectMeta, template *corev1.PodTemplateSpec) (*Workload, error) {
	w := &Workload{Kind: kind, Followed: c.selects(m.Labels), ObjectMeta: identity(m)}
	if !w.Followed {
		return w, nil
	}
	w.Labels, w.Annotations, w.Generation = m.Labels, kept(m.Annotations, c.annotations), m.Generation
	digest, err := digestOf(template)
	if err != nil {
		return w, fmt.Errorf("%s %s/%s: %w", kind, m.Namespace, m.Name, err)
	}
	w.Template = Template{
		Digest: digest, RestartedAt: template.Annotations[annotationRestartedAt],
		Labels: template.Labels, Annotations: kept(template.Annotations, c.annotations),
	}
	w.Template.Changed, w.Template.By = templateWritten(m.ManagedFields)
	w.Template.Images = make([]Image, 0, len(template.Spec.InitContainers)+len(template.Spec.Containers))
	for _, containers := range [][]corev1.Container{template.Spec.InitContainers, template.Spec.Containers} {
		for i := range containers {
			w.Template.Images = append(w.Template.Images, Image{Container: containers[i].Name, Image: containers[i].Image})
		}
	}
	return w, nil
}

// identity is what is kept of every object.
func identity(m *metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion,
		CreationTimestamp: m.CreationTimestamp, DeletionTimestamp: m.DeletionTimestamp,
	}
}

func (w *Workload) ofDeployment(d *appsv1.Deployment) {
	w.Replicas, w.Paused, w.MinReadySeconds = d.Spec.Replicas, d.Spec.Paused, d.Spec.MinReadySeconds
	w.Strategy = string(d.Spec.Strategy.Type)
	if deadline := d.Spec.ProgressDeadlineSeconds; deadline != nil && *deadline != noDeadline {
		w.ProgressDeadline = deadline
	}
	s := &d.Status
	w.Status = WorkloadStatus{
		ObservedGeneration: s.ObservedGeneration, Replicas: s.Replicas, Updated: s.UpdatedReplicas, Ready: s.ReadyReplicas,
		Available: s.AvailableReplicas, Unavailable: s.UnavailableReplicas, Terminating: s.TerminatingReplicas,
	}
	for i := range s.Conditions {
		c := &s.Conditions[i]
		w.add(Condition{
			Type: string(c.Type), Status: string(c.Status), Reason: c.Reason, Message: c.Message,
			LastTransitioned: c.LastTransitionTime, LastUpdated: c.LastUpdateTime,
		})
	}
	w.Status.Written = w.Status.counts() || s.CollisionCount != nil
}

func (w *Workload) ofStatefulSet(s *appsv1.StatefulSet) {
	w.Replicas, w.MinReadySeconds = s.Spec.Replicas, s.Spec.MinReadySeconds
	w.Strategy = string(s.Spec.UpdateStrategy.Type)
	if rolling := s.Spec.UpdateStrategy.RollingUpdate; rolling != nil && rolling.Partition != nil {
		w.Partition = *rolling.Partition
	}
	status := &s.Status
	w.Status = WorkloadStatus{
		ObservedGeneration: status.ObservedGeneration, Replicas: status.Replicas, Updated: status.UpdatedReplicas, Ready: status.ReadyReplicas,
		Available: status.AvailableReplicas, CurrentRevision: status.CurrentRevision, UpdateRevision: status.UpdateRevision,
	}
	for i := range status.Conditions {
		c := &status.Conditions[i]
		w.add(Condition{Type: string(c.Type), Status: string(c.Status), Reason: c.Reason, Message: c.Message, LastTransitioned: c.LastTransitionTime})
	}
	w.Status.Written = w.Status.counts() || status.CollisionCount != nil || status.UpdateRevision != ""
}

func (w *Workload) ofDaemonSet(d *appsv1.DaemonSet) {
	w.Replicas, w.MinReadySeconds = new(d.Status.DesiredNumberScheduled), d.Spec.MinReadySeconds
	w.Strategy = string(d.Spec.UpdateStrategy.Type)
	w.TemplateGeneration = d.Annotations[annotationTemplateGeneration]
	s := &d.Status
	w.Status = WorkloadStatus{
		ObservedGeneration: s.ObservedGeneration, Replicas: s.CurrentNumberScheduled, Updated: s.UpdatedNumberScheduled, Ready: s.NumberReady,
		Available: s.NumberAvailable, Unavailable: s.NumberUnavailable, Desired: s.DesiredNumberScheduled,
	}
	for i := range s.Conditions {
		c := &s.Conditions[i]
		w.add(Condition{Type: string(c.Type), Status: string(c.Status), Reason: c.Reason, Message: c.Message, LastTransitioned: c.LastTransitionTime})
	}
	w.Status.Written = w.Status.counts() || s.CollisionCount != nil
}

func (w *Workload) add(c Condition) { w.Status.Conditions = append(w.Status.Conditions, c) }

// counts: the API always sends a status; one that no controller has written yet is empty.
func (s *WorkloadStatus) counts() bool {
	return s.ObservedGeneration != 0 || s.Replicas != 0 || s.Updated != 0 || s.Ready != 0 || s.Available != 0 || s.Unavailable != 0 ||
		s.Desired != 0 || s.Terminating != nil || len(s.Conditions) > 0
}

// digestOf is equal for templates that differ in nothing but when they were restarted. It is taken of their JSON, which leaves out what is not set: a field
// that a newer Kubernetes knows changes no digest until somebody sets it.
func digestOf(template *corev1.PodTemplateSpec) (string, error) {
	bare := *template
	if _, restarted := template.Annotations[annotationRestartedAt]; restarted {
		bare.Annotations = maps.Clone(template.Annotations)
		delete(bare.Annotations, annotationRestartedAt)
	}
	raw, err := json.Marshal(&bare)
	if err != nil {
		return "", fmt.Errorf("digest of the pod template: %w", err)
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:digestBytes]), nil
}

// templateWritten is when a field manager last wrote the pod template, and which: the latest of those that own a part of it. One that wrote something else
// since looks as if it had written the template then, since a manager has one time for all that it owns.
func templateWritten(entries []metav1.ManagedFieldsEntry) (time.Time, string) {
	var at time.Time
	var by string
	for i := range entries {
		e := &entries[i]
		if e.Subresource == "" && e.Time != nil && e.FieldsV1 != nil && !e.Time.Time.Before(at) && ownsTemplate(e.FieldsV1.GetRawBytes()) {
			at, by = e.Time.UTC(), e.Manager
		}
	}
	return at, by
}

func ownsTemplate(fields []byte) bool {
	if !bytes.Contains(fields, []byte(`"f:template"`)) {
		return false
	}
	var owned struct {
		Spec struct {
			Template json.RawMessage `json:"f:template"`
		} `json:"f:spec"`
	}
	return json.Unmarshal(fields, &owned) == nil && owned.Spec.Template != nil
}

// kept are the annotations that have one of the prefixes.
func kept(annotations map[string]string, prefixes []string) map[string]string {
	var out map[string]string
	for name, value := range annotations {
		for _, prefix := range prefixes {
			if strings.HasPrefix(name, prefix) {
				if out == nil {
					out = make(map[string]string)
				}
				out[name] = value
				break
			}
		}
	}
	return out
}

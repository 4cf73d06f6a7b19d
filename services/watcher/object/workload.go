package object

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

	// digestBytes is the length of a template's digest: the beginning of its SHA-256.
	digestBytes = 16
	// noDeadline is the progress deadline of a Deployment without one.
	noDeadline = math.MaxInt32
)

// Workload is a Deployment, StatefulSet or DaemonSet in compact form. It is immutable.
type Workload struct {
	// ObjectMeta has identity, labels, generation, times and the kept annotations.
	metav1.ObjectMeta

	Kind Kind
	// Selected is false for a workload that does not match the selection. Only identity and version are
	// kept then.
	Selected bool

	// Replicas of the specification, nil when it is not set.
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

// Template is a pod template in compact form.
type Template struct {
	// Digest of the template without the time of a restart.
	Digest string
	Images []Image
	// RestartedAt is the value of kubectl's annotation.
	RestartedAt string
	// Changed is when a field manager last wrote the template, By is that manager.
	Changed             time.Time
	By                  string
	Labels, Annotations map[string]string
}

// Image of a container.
type Image struct{ Container, Image string }

// WorkloadStatus is the status of any kind of workload. A count that a kind does not have is zero.
type WorkloadStatus struct {
	// Written is true once a controller has written the status.
	Written            bool
	ObservedGeneration int64
	Replicas           int32
	Updated            int32
	Ready              int32
	Available          int32
	Unavailable        int32
	Desired            int32
	Terminating        *int32
	// CurrentRevision and UpdateRevision of a StatefulSet.
	CurrentRevision, UpdateRevision string
	Conditions                      []Condition
}

// Condition of a workload.
type Condition struct {
	Type, Status, Reason, Message string
	LastTransitioned, LastUpdated metav1.Time
}

// Compactor makes a [Workload] or [Revision] from a Kubernetes object.
type Compactor struct {
	selects     func(labels map[string]string) bool
	annotations []string
}

// NewCompactor makes a compactor. selects reports whether a workload with these labels is selected.
// Annotations are prefixes of the annotations to keep, besides those that are always kept.
func NewCompactor(selects func(labels map[string]string) bool, annotations []string) Compactor {
	return Compactor{selects: selects, annotations: append(annotationPrefixes(), annotations...)}
}

// Compact converts a Kubernetes object to a [Workload] or [Revision]. It returns an error for other types.
func (c Compactor) Compact(o any) (Object, error) {
	switch o := o.(type) {
	case *appsv1.Deployment:
		w, err := c.workload(Deployment, &o.ObjectMeta, &o.Spec.Template)
		if w.Selected {
			w.ofDeployment(o)
		}
		return w, err
	case *appsv1.StatefulSet:
		w, err := c.workload(StatefulSet, &o.ObjectMeta, &o.Spec.Template)
		if w.Selected {
			w.ofStatefulSet(o)
		}
		return w, err
	case *appsv1.DaemonSet:
		w, err := c.workload(DaemonSet, &o.ObjectMeta, &o.Spec.Template)
		if w.Selected {
			w.ofDaemonSet(o)
		}
		return w, err
	case *appsv1.ControllerRevision:
		return c.controllerRevision(o), nil
	case *metav1.PartialObjectMetadata:
		return c.replicaSet(&o.ObjectMeta), nil
	default:
		return nil, fmt.Errorf("a %T is neither a workload nor a revision", o)
	}
}

func (c Compactor) workload(kind Kind, m *metav1.ObjectMeta, template *corev1.PodTemplateSpec) (*Workload, error) {
	w := &Workload{Kind: kind, Selected: c.selects(m.Labels), ObjectMeta: identity(m)}
	if !w.Selected {
		return w, nil
	}
	w.Labels, w.Annotations, w.Generation = m.Labels, withPrefixes(m.Annotations, c.annotations), m.Generation
	digest, err := digestOf(template)
	if err != nil {
		return w, fmt.Errorf("%s %s/%s: %w", kind, m.Namespace, m.Name, err)
	}
	w.Template = Template{
		Digest: digest, RestartedAt: template.Annotations[annotationRestartedAt],
		Labels: template.Labels, Annotations: withPrefixes(template.Annotations, c.annotations),
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

// RevisionNumber returns the number of a Deployment's revision, 0 for none.
func (w *Workload) RevisionNumber() int64 {
	number, _ := parseRevision(w.Annotations[annotationRevision])
	return number
}

// identity returns the metadata that every compact object keeps.
func identity(m *metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion,
		CreationTimestamp: m.CreationTimestamp, DeletionTimestamp: m.DeletionTimestamp,
	}
}

// WorkloadOf returns the Deployment of a workspace as a workload, with all of its metadata. It has no
// template, because [Encoder.Encode] drops it.
func WorkloadOf(d *appsv1.Deployment) *Workload {
	w := &Workload{Kind: Deployment, Selected: true, ObjectMeta: d.ObjectMeta}
	w.ofDeployment(d)
	return w
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
	w.Status.Written = w.Status.isSet() || s.CollisionCount != nil
}

func (w *Workload) ofStatefulSet(s *appsv1.StatefulSet) {
	w.Replicas, w.MinReadySeconds = s.Spec.Replicas, s.Spec.MinReadySeconds
	w.Strategy = string(s.Spec.UpdateStrategy.Type)
	if rolling := s.Spec.UpdateStrategy.RollingUpdate; rolling != nil && rolling.Partition != nil {
		w.Partition = *rolling.Partition
	}
	status := &s.Status
	w.Status = WorkloadStatus{
		ObservedGeneration: status.ObservedGeneration,
		Replicas:           status.Replicas, Updated: status.UpdatedReplicas, Ready: status.ReadyReplicas,
		Available: status.AvailableReplicas, CurrentRevision: status.CurrentRevision, UpdateRevision: status.UpdateRevision,
	}
	for i := range status.Conditions {
		c := &status.Conditions[i]
		w.add(Condition{
			Type: string(c.Type), Status: string(c.Status), Reason: c.Reason, Message: c.Message,
			LastTransitioned: c.LastTransitionTime,
		})
	}
	w.Status.Written = w.Status.isSet() || status.CollisionCount != nil || status.UpdateRevision != ""
}

func (w *Workload) ofDaemonSet(d *appsv1.DaemonSet) {
	w.Replicas, w.MinReadySeconds = new(d.Status.DesiredNumberScheduled), d.Spec.MinReadySeconds
	w.Strategy = string(d.Spec.UpdateStrategy.Type)
	w.TemplateGeneration = d.Annotations[annotationTemplateGeneration]
	s := &d.Status
	w.Status = WorkloadStatus{
		ObservedGeneration: s.ObservedGeneration,
		Replicas:           s.CurrentNumberScheduled, Updated: s.UpdatedNumberScheduled, Ready: s.NumberReady,
		Available: s.NumberAvailable, Unavailable: s.NumberUnavailable, Desired: s.DesiredNumberScheduled,
	}
	for i := range s.Conditions {
		c := &s.Conditions[i]
		w.add(Condition{
			Type: string(c.Type), Status: string(c.Status), Reason: c.Reason, Message: c.Message,
			LastTransitioned: c.LastTransitionTime,
		})
	}
	w.Status.Written = w.Status.isSet() || s.CollisionCount != nil
}

func (w *Workload) add(c Condition) { w.Status.Conditions = append(w.Status.Conditions, c) }

// isSet reports whether a controller has written the status. The API returns an empty one before.
func (s *WorkloadStatus) isSet() bool {
	return s.ObservedGeneration != 0 || s.Replicas != 0 || s.Updated != 0 || s.Ready != 0 || s.Available != 0 ||
		s.Unavailable != 0 || s.Desired != 0 || s.Terminating != nil || len(s.Conditions) > 0
}

// digestOf returns equal digests for templates that differ only in the time of their restart. It hashes
// the JSON, which omits unset fields: a new field of Kubernetes changes no digest until it is set.
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

// templateWritten returns when a field manager last wrote the pod template, and which one. A
// manager has one time for all fields that it owns, so a later write of another field counts as one
// of the template.
func templateWritten(entries []metav1.ManagedFieldsEntry) (time.Time, string) {
	var at time.Time
	var by string
	for i := range entries {
		e := &entries[i]
		if e.Subresource == "" && e.Time != nil && e.FieldsV1 != nil && !e.Time.Time.Before(at) &&
			ownsTemplate(e.FieldsV1.GetRawBytes()) {
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

// withPrefixes returns the annotations that have one of the prefixes, nil for none.
func withPrefixes(annotations map[string]string, prefixes []string) map[string]string {
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

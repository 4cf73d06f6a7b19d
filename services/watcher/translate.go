package watcher

import (
	"maps"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/watcher/kube"
)

// Labels and annotations that are read.
const (
	// LabelAgent is on every object that belongs to an agent; its value is the agent's id.
	LabelAgent = "lockstep.dev/agent"
	// LabelWorkspace holds a workspace's id.
	LabelWorkspace = "lockstep.dev/workspace"
	// LabelWorkspaceName holds a workspace's name, which is its Deployment's.
	LabelWorkspaceName = "lockstep.dev/workspace-name"

	annotationRevision = "deployment.kubernetes.io/revision"
	labelTemplateHash  = appsv1.DefaultDeploymentUniqueLabelKey
)

func objectMeta(clusterUID string, d Delivery) events.ObjectMeta {
	o := d.Object
	m := events.ObjectMeta{
		ClusterUID:      clusterUID,
		Namespace:       d.Namespace,
		Name:            d.Name,
		UID:             d.UID,
		ResourceVersion: d.Version,
		Verb:            d.Verb,
		UpdateType:      d.UpdateType(),
		ResyncID:        d.ResyncID,
		FirstSeen:       d.FirstSeen,
		ObservedAt:      d.SeenAt.UTC().Truncate(time.Millisecond),
		WorkspaceID:     o.GetLabels()[LabelWorkspace],
		Labels:          maps.Clone(o.GetLabels()),
		Annotations:     maps.Clone(o.GetAnnotations()),
		CreatedAt:       timeOf(o.GetCreationTimestamp()),
	}
	if deleted := o.GetDeletionTimestamp(); deleted != nil {
		m.DeletedAt = timeOf(*deleted)
	}
	return m
}

func observedDeployment(meta events.ObjectMeta, d *appsv1.Deployment) events.ObservedDeployment {
	status := d.Status
	return events.ObservedDeployment{
		Object:              meta,
		Generation:          natural(d.Generation),
		ObservedGeneration:  natural(status.ObservedGeneration),
		SpecReplicas:        count(d.Spec.Replicas),
		Paused:              d.Spec.Paused,
		HasStatus:           hasStatus(&status),
		Replicas:            natural(status.Replicas),
		UpdatedReplicas:     natural(status.UpdatedReplicas),
		ReadyReplicas:       natural(status.ReadyReplicas),
		AvailableReplicas:   natural(status.AvailableReplicas),
		UnavailableReplicas: natural(status.UnavailableReplicas),
		TerminatingReplicas: count(status.TerminatingReplicas),
		Revision:            revision(d),
		Conditions:          deploymentConditions(status.Conditions),
	}
}

// hasStatus: the API always sends a status; one that no controller has written yet is empty.
func hasStatus(s *appsv1.DeploymentStatus) bool {
	return s.ObservedGeneration != 0 || s.Replicas != 0 || s.UpdatedReplicas != 0 || s.ReadyReplicas != 0 || s.AvailableReplicas != 0 ||
		s.UnavailableReplicas != 0 || s.TerminatingReplicas != nil || len(s.Conditions) > 0 || s.CollisionCount != nil
}

func observedReplicaSet(meta events.ObjectMeta, r metav1.Object) events.ObservedReplicaSet {
	return events.ObservedReplicaSet{
		Object:          meta,
		Deployment:      owningDeployment(kube.ReplicaSet, r),
		Revision:        revision(r),
		PodTemplateHash: r.GetLabels()[labelTemplateHash],
	}
}

func observedPod(meta events.ObjectMeta, p *corev1.Pod) events.ObservedPod {
	conditions := make([]events.Condition, 0, len(p.Status.Conditions))
	for i := range p.Status.Conditions {
		c := &p.Status.Conditions[i]
		conditions = appendCondition(conditions, events.Condition{
			Type: string(c.Type), Status: string(c.Status), Reason: c.Reason, Message: c.Message, LastTransitionTime: timeOf(c.LastTransitionTime),
		})
	}
	containers := containerStates(p.Spec.InitContainers, p.Status.InitContainerStatuses, true)
	containers = append(containers, containerStates(p.Spec.Containers, p.Status.ContainerStatuses, false)...)
	return events.ObservedPod{
		Object:          meta,
		Deployment:      owningDeployment(kube.Pod, p),
		Replicaset:      controllerOf(p, "ReplicaSet"),
		PodTemplateHash: p.Labels[labelTemplateHash],
		Phase:           string(p.Status.Phase),
		Node:            p.Spec.NodeName,
		Conditions:      conditions,
		Containers:      containers,
	}
}

// containerStates goes by the spec, so that a container the kubelet has said nothing of yet is there, waiting.
func containerStates(specs []corev1.Container, statuses []corev1.ContainerStatus, initial bool) []events.ContainerState {
	byName := make(map[string]*corev1.ContainerStatus, len(statuses))
	for i := range statuses {
		byName[statuses[i].Name] = &statuses[i]
	}
	states := make([]events.ContainerState, 0, len(specs))
	for i := range specs {
		state := events.ContainerState{Name: specs[i].Name, Image: specs[i].Image, Init: initial, State: events.ContainerStatusWaiting}
		if status := byName[specs[i].Name]; status != nil {
			setStatus(&state, status)
		}
		states = append(states, state)
	}
	return states
}

func setStatus(state *events.ContainerState, status *corev1.ContainerStatus) {
	state.Ready, state.RestartCount = status.Ready, natural(status.RestartCount)
	if last := status.LastTerminationState.Terminated; last != nil {
		state.ExitCode = int(last.ExitCode)
	}
	switch now := status.State; {
	case now.Running != nil:
		state.State = events.ContainerStatusRunning
	case now.Terminated != nil:
		state.State = events.ContainerStatusTerminated
		state.Reason, state.Message, state.ExitCode = now.Terminated.Reason, now.Terminated.Message, int(now.Terminated.ExitCode)
	case now.Waiting != nil:
		state.Reason, state.Message = now.Waiting.Reason, now.Waiting.Message
	}
}

func deploymentConditions(conditions []appsv1.DeploymentCondition) []events.Condition {
	translated := make([]events.Condition, 0, len(conditions))
	for i := range conditions {
		c := &conditions[i]
		translated = appendCondition(translated, events.Condition{
			Type: string(c.Type), Status: string(c.Status), Reason: c.Reason, Message: c.Message,
			LastTransitionTime: timeOf(c.LastTransitionTime), LastUpdateTime: timeOf(c.LastUpdateTime),
		})
	}
	return translated
}

// appendCondition leaves out a condition that says nothing: one without a type or a status.
func appendCondition(to []events.Condition, c events.Condition) []events.Condition {
	if c.Type == "" || c.Status == "" {
		return to
	}
	return append(to, c)
}

// owningDeployment is the name of the Deployment that an object belongs to, empty when it belongs to none. A pod names its ReplicaSet,
// whose name is the Deployment's and the hash of the pod template; where that does not hold, the workspace's name is the Deployment's.
func owningDeployment(kind kube.Kind, o metav1.Object) string {
	switch kind {
	case kube.Deployment:
		return o.GetName()
	case kube.ReplicaSet:
		if owner := controllerOf(o, "Deployment"); owner != "" {
			return owner
		}
	case kube.Pod:
		hash := o.GetLabels()[labelTemplateHash]
		if name, found := strings.CutSuffix(controllerOf(o, "ReplicaSet"), "-"+hash); found && hash != "" && name != "" {
			return name
		}
	case kube.StatefulSet, kube.DaemonSet, kube.ControllerRevision: // of no workspace
	}
	return o.GetLabels()[LabelWorkspaceName]
}

// controllerOf is the name of the object's controller if that is of the kind.
func controllerOf(o metav1.Object, kind string) string {
	if owner := metav1.GetControllerOfNoCopy(o); owner != nil && owner.Kind == kind {
		return owner.Name
	}
	return ""
}

// revision is 0 when there is none that can be read.
func revision(o metav1.Object) int {
	return numberOf(o.GetAnnotations()[annotationRevision])
}

// numberOf is 0 for what is no number.
func numberOf(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0
	}
	return natural(n)
}

// natural is 0 for what is below: a status is written by whoever may, and the schema allows no negative counts.
func natural[N int | int32 | int64](n N) int { return int(max(n, 0)) }

func count(n *int32) *int {
	if n == nil {
		return nil
	}
	c := natural(*n)
	return &c
}

func timeOf(t metav1.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	utc := t.UTC()
	return &utc
}

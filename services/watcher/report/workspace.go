package report

import (
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/watcher/delivery"
	"lockstep.internal/services/watcher/object"
)

const labelTemplateHash = appsv1.DefaultDeploymentUniqueLabelKey

func objectMeta(clusterUID string, d delivery.Delivery, o metav1.Object) events.ObjectMeta {
	key := d.Key()
	m := events.ObjectMeta{
		ClusterUID:      clusterUID,
		Namespace:       key.Namespace,
		Name:            key.Name,
		UID:             key.UID,
		ResourceVersion: d.ResourceVersion,
		Verb:            d.Verb,
		UpdateType:      d.UpdateType(),
		ResyncID:        d.ResyncID,
		FirstSeen:       d.FirstSeen,
		ObservedAt:      d.ObservedAt.UTC().Truncate(time.Millisecond),
		WorkspaceID:     o.GetLabels()[object.LabelWorkspace],
		Labels:          o.GetLabels(),
		Annotations:     o.GetAnnotations(),
		CreatedAt:       timeOf(o.GetCreationTimestamp()),
	}
	if deleted := o.GetDeletionTimestamp(); deleted != nil {
		m.DeletedAt = timeOf(*deleted)
	}
	return m
}

func observedPod(meta events.ObjectMeta, p *corev1.Pod) events.ObservedPod {
	conditions := make([]events.Condition, 0, len(p.Status.Conditions))
	for i := range p.Status.Conditions {
		c := &p.Status.Conditions[i]
		conditions = appendCondition(conditions, events.Condition{
			Type: string(c.Type), Status: string(c.Status), Reason: c.Reason, Message: c.Message,
			LastTransitionTime: timeOf(c.LastTransitionTime),
		})
	}
	containers := containerStates(p.Spec.InitContainers, p.Status.InitContainerStatuses, true)
	containers = append(containers, containerStates(p.Spec.Containers, p.Status.ContainerStatuses, false)...)
	return events.ObservedPod{
		Object:          meta,
		Deployment:      object.DeploymentOf(object.Pod, p),
		Replicaset:      object.ControllerOf(p, "ReplicaSet"),
		PodTemplateHash: p.Labels[labelTemplateHash],
		Phase:           string(p.Status.Phase),
		Node:            p.Spec.NodeName,
		Conditions:      conditions,
		Containers:      containers,
	}
}

// containerStates reports every container of the specification. One without a status is waiting.
func containerStates(
	specs []corev1.Container, statuses []corev1.ContainerStatus, isInit bool,
) []events.ContainerState {
	byName := make(map[string]*corev1.ContainerStatus, len(statuses))
	for i := range statuses {
		byName[statuses[i].Name] = &statuses[i]
	}
	states := make([]events.ContainerState, 0, len(specs))
	for i := range specs {
		state := events.ContainerState{
			Name:  specs[i].Name,
			Image: specs[i].Image,
			Init:  isInit,
			State: events.ContainerStatusWaiting,
		}
		if status := byName[specs[i].Name]; status != nil {
			setStatus(&state, status)
		}
		states = append(states, state)
	}
	return states
}

func setStatus(state *events.ContainerState, status *corev1.ContainerStatus) {
	state.Ready, state.RestartCount = status.Ready, nonNegative(status.RestartCount)
	last := status.LastTerminationState.Terminated
	switch now := status.State; {
	case now.Running != nil:
		state.State, state.StartedAt = events.ContainerStatusRunning, timeOf(now.Running.StartedAt)
	case now.Terminated != nil:
		last = now.Terminated
		state.State, state.Reason, state.Message = events.ContainerStatusTerminated, last.Reason, last.Message
	case now.Waiting != nil:
		state.Reason, state.Message = now.Waiting.Reason, now.Waiting.Message
	}
	if last != nil {
		state.ExitCode, state.LastMessage = int(last.ExitCode), last.Message
		state.LastStartedAt, state.LastFinishedAt = timeOf(last.StartedAt), timeOf(last.FinishedAt)
	}
}

// appendCondition omits a condition without a type or a status.
func appendCondition(to []events.Condition, c events.Condition) []events.Condition {
	if c.Type == "" || c.Status == "" {
		return to
	}
	return append(to, c)
}

// numberOf returns 0 for text that is not a number.
func numberOf(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0
	}
	return nonNegative(n)
}

// nonNegative returns 0 for a negative number. The schema allows no negative counts, the API server
// does.
func nonNegative[N int | int32 | int64](n N) int { return int(max(n, 0)) }

func count(n *int32) *int {
	if n == nil {
		return nil
	}
	c := nonNegative(*n)
	return &c
}

func timeOf(t metav1.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	utc := t.UTC()
	return &utc
}

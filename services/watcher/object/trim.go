package object

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// deploymentPrefix begins the names of the Deployment controller's annotations.
const deploymentPrefix = "deployment.kubernetes.io/"

// annotationPrefixes returns the prefixes of the annotations that are always kept.
func annotationPrefixes() []string { return []string{"lockstep.dev/", deploymentPrefix} }

// trim returns a copy of an object of a workspace with the fields that are reported. It returns nil for
// other types.
func trim(o any) (Kind, message) {
	switch o := o.(type) {
	case *appsv1.Deployment:
		return Deployment, &appsv1.Deployment{
			ObjectMeta: trimMeta(&o.ObjectMeta),
			Spec: appsv1.DeploymentSpec{
				Replicas:                o.Spec.Replicas,
				Paused:                  o.Spec.Paused,
				Strategy:                appsv1.DeploymentStrategy{Type: o.Spec.Strategy.Type},
				MinReadySeconds:         o.Spec.MinReadySeconds,
				ProgressDeadlineSeconds: o.Spec.ProgressDeadlineSeconds,
			},
			Status: o.Status,
		}
	case *corev1.Pod:
		return Pod, &corev1.Pod{
			ObjectMeta: trimMeta(&o.ObjectMeta),
			Spec: corev1.PodSpec{
				NodeName:       o.Spec.NodeName,
				InitContainers: trimContainers(o.Spec.InitContainers),
				Containers:     trimContainers(o.Spec.Containers),
			},
			Status: corev1.PodStatus{
				Phase:                 o.Status.Phase,
				Conditions:            o.Status.Conditions,
				InitContainerStatuses: trimStatuses(o.Status.InitContainerStatuses),
				ContainerStatuses:     trimStatuses(o.Status.ContainerStatuses),
			},
		}
	case *metav1.PartialObjectMetadata:
		return ReplicaSet, &metav1.PartialObjectMetadata{ObjectMeta: trimMeta(&o.ObjectMeta)}
	default:
		return "", nil
	}
}

func trimMeta(m *metav1.ObjectMeta) metav1.ObjectMeta {
	trimmed := *m
	trimmed.ManagedFields, trimmed.Finalizers, trimmed.GenerateName = nil, nil, ""
	trimmed.Annotations = withPrefixes(m.Annotations, annotationPrefixes())
	return trimmed
}

func trimContainers(containers []corev1.Container) []corev1.Container {
	if len(containers) == 0 {
		return nil
	}
	trimmed := make([]corev1.Container, len(containers))
	for i := range containers {
		trimmed[i] = corev1.Container{Name: containers[i].Name, Image: containers[i].Image}
	}
	return trimmed
}

func trimStatuses(statuses []corev1.ContainerStatus) []corev1.ContainerStatus {
	if len(statuses) == 0 {
		return nil
	}
	trimmed := make([]corev1.ContainerStatus, len(statuses))
	for i := range statuses {
		s := &statuses[i]
		trimmed[i] = corev1.ContainerStatus{
			Name:                 s.Name,
			State:                s.State,
			LastTerminationState: s.LastTerminationState,
			Ready:                s.Ready,
			RestartCount:         s.RestartCount,
		}
	}
	return trimmed
}

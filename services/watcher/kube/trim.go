package kube

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// deploymentPrefix is that of the Deployment controller's annotations.
const deploymentPrefix = "deployment.kubernetes.io/"

// annotationPrefixes are those of the annotations that are always reported.
func annotationPrefixes() []string { return []string{"lockstep.dev/", deploymentPrefix} }

// trim drops from an object of a workspace, in place, what is not reported: most of it. It may be called again on its own result; what it does not
// know passes unchanged.
func trim(object any) (any, error) {
	switch o := object.(type) {
	case *appsv1.Deployment:
		trimMeta(&o.ObjectMeta)
		o.Spec = appsv1.DeploymentSpec{Replicas: o.Spec.Replicas, Paused: o.Spec.Paused}
	case *corev1.Pod:
		trimMeta(&o.ObjectMeta)
		o.Spec = corev1.PodSpec{
			NodeName:       o.Spec.NodeName,
			InitContainers: trimContainers(o.Spec.InitContainers),
			Containers:     trimContainers(o.Spec.Containers),
		}
		o.Status = corev1.PodStatus{
			Phase:                 o.Status.Phase,
			Conditions:            o.Status.Conditions,
			InitContainerStatuses: trimStatuses(o.Status.InitContainerStatuses),
			ContainerStatuses:     trimStatuses(o.Status.ContainerStatuses),
		}
	case *metav1.PartialObjectMetadata:
		trimMeta(&o.ObjectMeta)
	}
	return object, nil
}

func trimMeta(m *metav1.ObjectMeta) {
	m.ManagedFields, m.Finalizers, m.GenerateName = nil, nil, ""
	m.Annotations = kept(m.Annotations, annotationPrefixes())
}

func trimContainers(containers []corev1.Container) []corev1.Container {
	if len(containers) == 0 {
		return nil
	}
	kept := make([]corev1.Container, len(containers))
	for i := range containers {
		kept[i] = corev1.Container{Name: containers[i].Name, Image: containers[i].Image}
	}
	return kept
}

func trimStatuses(statuses []corev1.ContainerStatus) []corev1.ContainerStatus {
	if len(statuses) == 0 {
		return nil
	}
	kept := make([]corev1.ContainerStatus, len(statuses))
	for i := range statuses {
		s := &statuses[i]
		kept[i] = corev1.ContainerStatus{
			Name: s.Name, State: s.State, LastTerminationState: s.LastTerminationState, Ready: s.Ready, RestartCount: s.RestartCount,
		}
	}
	return kept
}

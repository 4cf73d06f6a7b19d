package kube

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// maxListedPods bounds a list of pods.
const maxListedPods = 100

// Pods lists pods of one controller that should run, and the version of the list. It reads the first 100 pods that the
// selector matches.
func (c *Client) Pods(ctx context.Context, namespace, selector, controller string) ([]corev1.Pod, string, error) {
	list, err := c.typed.CoreV1().Pods(namespace).List(ctx,
		metav1.ListOptions{LabelSelector: selector, Limit: maxListedPods})
	if err != nil {
		return nil, "", fmt.Errorf("list pods%s: %w", inNamespace(namespace), err)
	}
	pods := slices.DeleteFunc(list.Items, func(p corev1.Pod) bool {
		owner := metav1.GetControllerOfNoCopy(&p)
		return owner == nil || string(owner.UID) != controller || p.DeletionTimestamp != nil ||
			p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded
	})
	return pods, list.ResourceVersion, nil
}

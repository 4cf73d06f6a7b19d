package kube

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// source reads one kind in every namespace.
type source struct {
	kind    Kind
	client  any            // that says which ways of watching it supports
	example runtime.Object // of the objects it returns
	list    func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watch   func(context.Context, metav1.ListOptions) (watch.Interface, error)
}

func (c *Client) source(kind Kind) (source, error) {
	switch kind {
	case Deployment:
		deployments := c.typed.AppsV1().Deployments(metav1.NamespaceAll)
		return source{
			kind: kind, client: c.typed, example: &appsv1.Deployment{}, watch: deployments.Watch,
			list: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				return deployments.List(ctx, o)
			},
		}, nil
	case ReplicaSet:
		replicaSets := c.meta.Resource(appsv1.SchemeGroupVersion.WithResource("replicasets"))
		return source{
			kind: kind, client: c.meta, example: &metav1.PartialObjectMetadata{}, watch: replicaSets.Watch,
			list: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				return replicaSets.List(ctx, o)
			},
		}, nil
	case Pod:
		pods := c.typed.CoreV1().Pods(metav1.NamespaceAll)
		return source{
			kind: kind, client: c.typed, example: &corev1.Pod{}, watch: pods.Watch,
			list: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return pods.List(ctx, o) },
		}, nil
	default:
		return source{}, fmt.Errorf("kind %q is not watched", kind)
	}
}

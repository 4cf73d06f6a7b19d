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

// source reads one kind in one namespace, or in all.
type source struct {
	kind    Kind
	client  any            // that says which ways of watching it supports
	example runtime.Object // of the objects it returns
	list    func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watch   func(context.Context, metav1.ListOptions) (watch.Interface, error)
}

func (c *Client) source(kind Kind, namespace string) (source, error) {
	switch apps := c.typed.AppsV1(); kind {
	case Deployment:
		return sourceOf(kind, c.typed, &appsv1.Deployment{}, apps.Deployments(namespace)), nil
	case StatefulSet:
		return sourceOf(kind, c.typed, &appsv1.StatefulSet{}, apps.StatefulSets(namespace)), nil
	case DaemonSet:
		return sourceOf(kind, c.typed, &appsv1.DaemonSet{}, apps.DaemonSets(namespace)), nil
	case ControllerRevision: // as metadata it would lack its revision
		return sourceOf(kind, c.typed, &appsv1.ControllerRevision{}, apps.ControllerRevisions(namespace)), nil
	case ReplicaSet:
		replicaSets := c.meta.Resource(appsv1.SchemeGroupVersion.WithResource("replicasets")).Namespace(namespace)
		return sourceOf(kind, c.meta, &metav1.PartialObjectMetadata{}, replicaSets), nil
	case Pod:
		return sourceOf(kind, c.typed, &corev1.Pod{}, c.typed.CoreV1().Pods(namespace)), nil
	default:
		return source{}, fmt.Errorf("kind %q is not watched", kind)
	}
}

// resource is what a client has for each kind, L its list.
type resource[L runtime.Object] interface {
	List(ctx context.Context, options metav1.ListOptions) (L, error)
	Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
}

func sourceOf[L runtime.Object](kind Kind, client any, example runtime.Object, r resource[L]) source {
	return source{
		kind: kind, client: client, example: example, watch: r.Watch,
		list: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return r.List(ctx, o) },
	}
}

package kube

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"lockstep.internal/services/watcher/object"
)

// source reads one kind in one namespace, or in all namespaces.
type source struct {
	client  any            // tells the reflector whether it supports streamed lists
	example runtime.Object // has the type of the objects
	list    func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watch   func(context.Context, metav1.ListOptions) (watch.Interface, error)
}

func (c *Client) source(kind object.Kind, namespace string) (source, error) {
	switch apps := c.typed.AppsV1(); kind {
	case object.Deployment:
		return sourceOf(c.typed, &appsv1.Deployment{}, apps.Deployments(namespace)), nil
	case object.StatefulSet:
		return sourceOf(c.typed, &appsv1.StatefulSet{}, apps.StatefulSets(namespace)), nil
	case object.DaemonSet:
		return sourceOf(c.typed, &appsv1.DaemonSet{}, apps.DaemonSets(namespace)), nil
	case object.ControllerRevision: // its metadata lack the revision
		return sourceOf(c.typed, &appsv1.ControllerRevision{}, apps.ControllerRevisions(namespace)), nil
	case object.ReplicaSet:
		return c.metadata(kind, namespace), nil
	case object.Pod:
		return sourceOf(c.typed, &corev1.Pod{}, c.typed.CoreV1().Pods(namespace)), nil
	default:
		return source{}, fmt.Errorf("kind %q is not watched", kind)
	}
}

// resource is the client of one kind, L its list.
type resource[L runtime.Object] interface {
	List(ctx context.Context, options metav1.ListOptions) (L, error)
	Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
}

func sourceOf[L runtime.Object](client any, example runtime.Object, r resource[L]) source {
	return source{
		client: client, example: example, watch: r.Watch,
		list: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return r.List(ctx, o) },
	}
}

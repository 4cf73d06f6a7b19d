package endpoint

import (
	"context"
	"errors"
	"sync"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"lockstep.internal/tools/kubelab/kubelet"
)

// endError ends a stream when its container has ended.
type endError struct {
	// state is the termination state; nil if it is unknown.
	state *v1.ContainerStateTerminated
}

func (endError) Error() string { return "the container has ended" }

// errKubeletStopped ends the streams of a stopped node.
var errKubeletStopped = errors.New("the kubelet is stopped")

// endOf returns the termination state of the container that ended ctx.
func endOf(ctx context.Context) *v1.ContainerStateTerminated {
	if end, ok := errors.AsType[endError](context.Cause(ctx)); ok {
		return end.state
	}
	return nil
}

// alive returns a context that ends when the pod or its run ends, or the pod's node is stopped. run may be nil. The
// caller calls release.
func (s *Server) alive(ctx context.Context, pod *v1.Pod, run *Run) (alive context.Context, release func()) {
	alive, cancel := context.WithCancelCause(ctx)
	var watchers sync.WaitGroup
	pods, nodes := s.Client.CoreV1().Pods(pod.Namespace), s.Client.CoreV1().Nodes()
	watchers.Go(func() {
		var state *v1.ContainerStateTerminated
		over := s.await(alive, pod.Name, &v1.Pod{}, one(pod.Name, pods.List, pods.Watch), func(object runtime.Object) bool {
			now, ok := object.(*v1.Pod)
			switch {
			case !ok || now.UID != pod.UID:
				return true
			case run == nil:
				return now.Status.Phase == v1.PodSucceeded || now.Status.Phase == v1.PodFailed
			default:
				var over bool
				state, over = run.endIn(now)
				return over
			}
		})
		if over {
			cancel(endError{state: state})
		}
	})
	watchers.Go(func() {
		silent := s.await(
			alive,
			pod.Spec.NodeName,
			&v1.Node{},
			one(pod.Spec.NodeName, nodes.List, nodes.Watch),
			func(object runtime.Object) bool {
				node, ok := object.(*v1.Node)
				return !ok || !kubeletRuns(node)
			},
		)
		if silent {
			closeConnection(alive)
			cancel(errKubeletStopped)
		}
	})
	return alive, func() {
		cancel(context.Canceled)
		watchers.Wait()
	}
}

// kubeletRuns reports whether the kubelet of a node runs.
func kubeletRuns(node *v1.Node) bool {
	return node.Labels[kubelet.StateLabel] == kubelet.StateRunning
}

// await returns true when over returns true for the named object, false when ctx ends. over gets nil for a
// deleted object.
func (s *Server) await(
	ctx context.Context, name string, kind runtime.Object, lw *cache.ListWatch, over func(runtime.Object) bool,
) bool {
	isGone := func(store cache.Store) (bool, error) {
		for _, object := range store.List() {
			if named(object, name) {
				return false, nil
			}
		}
		return true, nil
	}
	condition := func(event watch.Event) (bool, error) {
		switch {
		case !named(event.Object, name):
			return false, nil
		case event.Type == watch.Deleted:
			return over(nil), nil
		default:
			return over(event.Object), nil
		}
	}
	// It retries on errors; only the end of ctx returns one.
	_, err := watchtools.UntilWithSync(ctx, cache.ToListWatcherWithWatchListSemantics(lw, s.Client), kind, isGone,
		condition)
	return err == nil
}

func named(object any, name string) bool {
	meta, ok := object.(metav1.Object)
	return ok && meta.GetName() == name
}

// one lists and watches a single object.
func one[L runtime.Object](
	name string,
	list func(context.Context, metav1.ListOptions) (L, error),
	watcher func(context.Context, metav1.ListOptions) (watch.Interface, error),
) *cache.ListWatch {
	selector := fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			options.FieldSelector = selector
			return list(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.FieldSelector = selector
			return watcher(ctx, options)
		},
	}
}

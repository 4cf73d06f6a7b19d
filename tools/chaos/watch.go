package main

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	retry "k8s.io/client-go/tools/watch"
)

// openWatch opens a watch of one kind.
type openWatch = func(context.Context, metav1.ListOptions) (watch.Interface, error)

// recordCluster records the versions of objects in the cluster until ctx ends. It reads the API server directly, not
// through a link, and returns an error if a watch ends before ctx.
func recordCluster(ctx context.Context, kube kubernetes.Interface, leases string, since string, to *recorder) error {
	apps := kube.AppsV1()
	kinds := map[string]openWatch{
		"Deployment":            apps.Deployments("").Watch,
		"ReplicaSet":            apps.ReplicaSets("").Watch,
		"StatefulSet":           apps.StatefulSets("").Watch,
		"DaemonSet":             apps.DaemonSets("").Watch,
		"ControllerRevision":    apps.ControllerRevisions("").Watch,
		"PersistentVolumeClaim": kube.CoreV1().PersistentVolumeClaims("").Watch,
		"Lease":                 kube.CoordinationV1().Leases(leases).Watch,
	}
	ended := make(chan error, len(kinds))
	for kind, open := range kinds {
		go func() { ended <- recordKind(ctx, kind, open, since, to) }()
	}
	var first error
	for range kinds {
		if err := <-ended; err != nil && first == nil {
			first = err
		}
	}
	return first
}

// recordKind records one kind. An interrupted watch continues after its last version.
func recordKind(ctx context.Context, kind string, open openWatch, since string, to *recorder) error {
	watcher, err := retry.NewRetryWatcherWithContext(ctx, since, &cache.ListWatch{WatchFuncWithContext: open})
	if err != nil {
		return fmt.Errorf("watch %ss: %w", kind, err)
	}
	for e := range watcher.ResultChan() {
		object, is := e.Object.(metav1.Object)
		switch {
		case e.Type == watch.Bookmark:
		case !is || e.Type == watch.Error:
			return fmt.Errorf("the watch of %ss ended: %v", kind, e)
		case kind == "Lease" && object.GetName() != watcherLease:
		default:
			to.object(time.Now(), e.Type == watch.Deleted, kind, object)
		}
	}
	if ctx.Err() == nil {
		return fmt.Errorf("the watch of %ss ended", kind)
	}
	return nil
}

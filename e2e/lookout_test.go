package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"lockstep.internal/e2e/history"
)

// lookout hears everything that the API server says of workloads, by watches of its own, and knows what that means without asking us.
type lookout struct {
	cluster string

	mu     sync.Mutex
	sights []history.Sight
}

// lookOut begins to look at a namespace, or with an empty one at all, until the test ends.
func lookOut(t *testing.T, kube kubernetes.Interface, namespace string) *lookout {
	t.Helper()
	system, err := kube.CoreV1().Namespaces().Get(t.Context(), metav1.NamespaceSystem, metav1.GetOptions{})
	require.NoError(t, err)
	l := &lookout{cluster: string(system.UID)}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	apps, here := kube.AppsV1(), metav1.ListOptions{}
	var looking sync.WaitGroup
	t.Cleanup(func() { cancel(); looking.Wait() })
	for _, open := range []func(context.Context, metav1.ListOptions) (watch.Interface, error){
		apps.Deployments(namespace).Watch, apps.ReplicaSets(namespace).Watch, apps.StatefulSets(namespace).Watch, apps.DaemonSets(namespace).Watch,
		apps.ControllerRevisions(namespace).Watch,
	} {
		seen, err := open(ctx, here)
		require.NoError(t, err)
		looking.Go(func() {
			for e := range seen.ResultChan() {
				object, is := e.Object.(metav1.Object)
				if ctx.Err() != nil {
					return
				}
				if !is || e.Type == watch.Bookmark || e.Type == watch.Error {
					t.Errorf("the API server broke off: %v", e)
					return
				}
				l.mu.Lock()
				l.sights = append(l.sights, history.Sight{At: time.Now(), Deleted: e.Type == watch.Deleted, Object: object})
				l.mu.Unlock()
			}
		})
	}
	return l
}

func (l *lookout) all() []history.Sight {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.sights)
}

// truth is what the cluster did, as far as was seen until now.
func (l *lookout) truth() []history.TrueWorkload { return history.Truth(l.cluster, l.all()) }

// deployments are the versions of a shop's Deployment that bear a revision, in order.
func (l *lookout) deployments(namespace, revision string) []*appsv1.Deployment {
	var seen []*appsv1.Deployment
	for _, s := range l.all() {
		if d, is := s.Object.(*appsv1.Deployment); is && d.Namespace == namespace && d.Annotations[revisionAnnotation] == revision {
			seen = append(seen, d)
		}
	}
	return seen
}

// keep writes what was seen, one line each.
func (l *lookout) keep(out *json.Encoder) error {
	for _, s := range l.all() {
		err := out.Encode(map[string]any{"at": s.At, "deleted": s.Deleted, "kind": fmt.Sprintf("%T", s.Object), "object": s.Object})
		if err != nil {
			return fmt.Errorf("write what was seen: %w", err)
		}
	}
	return nil
}

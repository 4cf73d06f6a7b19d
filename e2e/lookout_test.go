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
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	retry "k8s.io/client-go/tools/watch"

	"lockstep.internal/e2e/history"
)

// lookout hears everything that the API server says of workloads, by watches of its own, and knows what that means without asking us.
type lookout struct {
	cluster string
	since   string // version of the store at which it began

	mu     sync.Mutex
	sights []history.Sight
}

// opens a watch of one kind.
type opens func(context.Context, metav1.ListOptions) (watch.Interface, error)

// lookOut begins to look at the workloads of a namespace, or with an empty one at all, until the test ends.
func lookOut(t *testing.T, kube kubernetes.Interface, namespace string) *lookout {
	t.Helper()
	system, err := kube.CoreV1().Namespaces().Get(t.Context(), metav1.NamespaceSystem, metav1.GetOptions{})
	require.NoError(t, err)
	now, err := kube.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{Limit: 1})
	require.NoError(t, err)
	l := &lookout{cluster: string(system.UID), since: now.ResourceVersion}
	apps := kube.AppsV1()
	for _, open := range []opens{
		apps.Deployments(namespace).Watch, apps.ReplicaSets(namespace).Watch, apps.StatefulSets(namespace).Watch, apps.DaemonSets(namespace).Watch,
		apps.ControllerRevisions(namespace).Watch,
	} {
		l.hear(t, open, "")
	}
	return l
}

// hear records all that the API server says on a watch, of one name where one is given. A watch that breaks off goes on where it was.
func (l *lookout) hear(t *testing.T, open opens, name string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var looking sync.WaitGroup
	t.Cleanup(func() { cancel(); looking.Wait() })
	seen, err := retry.NewRetryWatcherWithContext(ctx, l.since, &cache.ListWatch{WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
		if name != "" {
			options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
		}
		return open(ctx, options)
	}})
	require.NoError(t, err)
	looking.Go(func() {
		for e := range seen.ResultChan() {
			object, is := e.Object.(metav1.Object)
			if ctx.Err() != nil {
				return
			}
			if e.Type == watch.Bookmark {
				continue
			}
			if !is || e.Type == watch.Error {
				t.Errorf("the API server broke off: %v", e)
				return
			}
			l.mu.Lock()
			l.sights = append(l.sights, history.Sight{At: time.Now(), Deleted: e.Type == watch.Deleted, Object: object})
			l.mu.Unlock()
		}
		if ctx.Err() == nil {
			t.Error("the API server broke off")
		}
	})
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
